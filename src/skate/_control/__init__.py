"""The control service: what the cluster as a whole knows. In the head's daemon, or a process of its own."""
