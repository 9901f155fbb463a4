"""Pure decisions: no sockets, no clocks, no threads, no global state."""
