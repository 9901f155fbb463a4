"""What lives inside every process that runs user code: driver and worker alike."""
