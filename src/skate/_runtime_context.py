"""Who am I: job, node, worker, task, and what it was given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from skate._core.resources import group_of
from skate._worker.current import get_runtime

if TYPE_CHECKING:
    from skate._worker.actor_process import ActorProcess


class RuntimeContext:
    """Facts about the code that asks. Ids are hexadecimal strings, as people and logs write them."""

    def get_job_id(self) -> str:
        return get_runtime().welcome.job_id.hex()

    def get_node_id(self) -> str:
        return get_runtime().welcome.node_id.hex()

    def get_node_labels(self) -> dict[str, str]:
        """Those that its `init` or `skate start` was given."""
        here = self.get_node_id()
        nodes: list[dict[str, Any]] = get_runtime().query("nodes")
        return next((dict(node["Labels"]) for node in nodes if node["NodeID"] == here), {})

    def get_worker_id(self) -> str:
        return get_runtime().process_id.hex()

    def get_task_id(self) -> str | None:
        """The id of the current task; None in a driver."""
        executor = get_runtime().executor
        current = executor.current_task() if executor is not None else None
        return current.id[:16].hex() if current is not None else None

    def get_task_name(self) -> str | None:
        runtime = get_runtime()
        return runtime.executor.task_name() if runtime.executor is not None else None

    def get_task_function_name(self) -> str | None:
        runtime = get_runtime()
        return runtime.executor.function_name() if runtime.executor is not None else None

    def get_attempt_number(self) -> int:
        """0 the first time that the task runs, 1 when it is retried after an exception, …"""
        return get_runtime().context.attempt

    def get_actor_id(self) -> str | None:
        """The id of the actor that asks; None in a task or a driver."""
        actor = _actor()
        return actor.id.hex() if actor is not None else None

    def get_actor_name(self) -> str | None:
        """The name that the current actor was given, "" if none."""
        actor = _actor()
        return actor.name if actor is not None else None

    @property
    def current_actor(self) -> Any:
        """A handle to the actor that asks."""
        from skate._actor import current_actor

        return current_actor()

    @property
    def namespace(self) -> str:
        return get_runtime().welcome.namespace

    @property
    def was_current_actor_reconstructed(self) -> bool:
        """Whether the actor that asks has lived before, in another process."""
        actor = _actor()
        return actor is not None and actor.is_restarted

    def get_assigned_resources(self) -> dict[str, float]:
        """What the current task holds: {"CPU": 1.0}."""
        runtime = get_runtime()
        return dict(runtime.executor.resources) if runtime.executor is not None else {}

    def get_placement_group_id(self) -> str | None:
        """The group that the current task or actor runs in; None if in none."""
        return group_of(self.get_assigned_resources()).hex() or None

    def get_accelerator_ids(self) -> dict[str, list[str]]:
        from skate._api import get_gpu_ids

        return {"GPU": [str(number) for number in get_gpu_ids()]}

    def get_runtime_env_string(self) -> str:
        """The runtime_env that this process has, its own and what it inherited, as JSON."""
        import json

        runtime = get_runtime()
        given = runtime.settings.get("runtime_env", {})
        variables = runtime.environment(given)
        return json.dumps({**given, "env_vars": variables} if variables else given)

    def is_canceled(self) -> bool:
        """Whether somebody cancelled the current task."""
        context = get_runtime().context
        return context.cancelled == context.id

    def get(self) -> dict[str, Any]:
        """The main facts as a dict."""
        return {
            "job_id": self.get_job_id(),
            "node_id": self.get_node_id(),
            "worker_id": self.get_worker_id(),
            "task_id": self.get_task_id(),
            "namespace": self.namespace,
        }

    @property
    def worker(self) -> RuntimeContext:
        return self


def _actor() -> ActorProcess | None:
    executor = get_runtime().executor
    return executor.actor if executor is not None else None


_context = RuntimeContext()


def get_runtime_context() -> RuntimeContext:
    """Facts about the current job, node, worker and task.

    >>> skate.get_runtime_context().get_node_id()
    """
    return _context
