"""Shared-memory objects of one node, as a process that uses them sees them."""
