"""The node daemon: local scheduler, worker pool and object store of one machine."""
