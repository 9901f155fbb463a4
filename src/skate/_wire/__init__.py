"""Everything that crosses a process boundary: frames, messages, channels."""
