"""Facts about the code that asks: its job, node, worker, task and actor."""

from skate._runtime_context import RuntimeContext, get_runtime_context

__all__ = ["RuntimeContext", "get_runtime_context"]
