"""Skate under Ray's name: the modules that `import ray` finds, and the ways to switch them on."""
