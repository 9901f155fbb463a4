"""Who am I: job, node, worker, task, and what it was given."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from skate._core.environment import JOB_VARIABLE
from skate._core.resources import group_of
from skate._worker.current import get_runtime

if TYPE_CHECKING:
    from skate._worker.actor_process import ActorProcess
    from skate.ids import ActorID, JobID, NodeID, PlacementGroupID, TaskID, WorkerID
    from skate.runtime_env import RuntimeEnv


class RuntimeContext:
    """Facts about the code that asks.

    Methods give ids as hexadecimal strings, as people and logs write them. The properties `job_id`, `node_id`, … give
    the same ids as objects (`skate.ids`); Ray has both, and advises to use the methods.
    """

    def get_job_id(self) -> str:
        return get_runtime().welcome.job_id.hex()

    def get_node_id(self) -> str:
        """The id of the node of this process; in a driver that is on no node of its cluster, that of the head."""
        from skate._api import node_here

        return node_here()[0]

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
        """The module and the name of the function or method that runs: "module.Class.method"; None in a driver."""
        executor = get_runtime().executor
        current = executor.current_task() if executor is not None else None
        if executor is None or current is None:
            return None
        return f"{_module_of(executor.functions.loaded(current.fn))}.{executor.functions.name(current.fn)}"

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
        variables = {**self._variables_of_job(), **runtime.environment(given)}
        return json.dumps({**given, "env_vars": variables} if variables else given)

    def _variables_of_job(self) -> dict[str, str]:
        """In a worker of a node that `init` started: what that was told of environment variables."""
        said = os.environ.get(JOB_VARIABLE, "")
        if not said or get_runtime().executor is None:
            return {}
        import json

        variables: dict[str, str] = json.loads(said)
        return variables

    def is_canceled(self) -> bool:
        """Whether the current task was cancelled."""
        context = get_runtime().context
        return context.cancelled == context.id

    def get_resource_ids(self) -> dict[str, list[str]]:
        """The same as `get_accelerator_ids`, by an older name."""
        return self.get_accelerator_ids()

    def get_temp_dir(self) -> str:
        """Where this process would put temporary files."""
        from skate._config import temporary_directory

        return temporary_directory()

    def get_session_name(self) -> str:
        """A name that all processes of this cluster, or of this lone node, have in common."""
        return f"session_{self.gcs_address}"

    def get(self) -> dict[str, Any]:
        """The main facts as a dict, with ids as objects: "task_id" and "actor_id" only where there is one."""
        facts = {
            "job_id": self.job_id,
            "node_id": self.node_id,
            "worker_id": self.worker.worker_id,
            "task_id": self.task_id,
            "actor_id": self.actor_id,
            "namespace": self.namespace,
        }
        return {name: fact for name, fact in facts.items() if fact is not None}

    # -- the same as objects ------------------------------------------------------------------------------------------

    @property
    def job_id(self) -> JobID:
        from skate.ids import JobID

        return JobID(get_runtime().welcome.job_id)

    @property
    def node_id(self) -> NodeID:
        from skate.ids import NodeID

        return NodeID.from_hex(self.get_node_id())

    @property
    def task_id(self) -> TaskID | None:
        """The id of the current task; None in a driver."""
        from skate.ids import TaskID

        id = self.get_task_id()
        return TaskID.from_hex(id) if id is not None else None

    @property
    def actor_id(self) -> ActorID | None:
        """The id of the actor that asks; None in a task or a driver."""
        from skate.ids import ActorID

        actor = _actor()
        return ActorID(actor.id) if actor is not None else None

    @property
    def current_placement_group_id(self) -> PlacementGroupID:
        """The id of the group that the current task or actor runs in; nil if in none."""
        from skate.ids import PlacementGroupID

        id = group_of(self.get_assigned_resources())
        return PlacementGroupID(id) if id else PlacementGroupID.nil()

    @property
    def should_capture_child_tasks_in_placement_group(self) -> bool:
        """Whether what the current task or actor starts runs in its placement group, unless it says otherwise."""
        return bool(get_runtime().captures)

    @property
    def gcs_address(self) -> str:
        """What `skate.init(address=…)` takes to join this cluster, or this node if it is alone."""
        address = get_runtime().welcome.address
        return address.partition("@")[2] or address

    @property
    def runtime_env(self) -> RuntimeEnv:
        """The environment of this process: its own, and what it inherited."""
        from skate.runtime_env import RuntimeEnv

        return RuntimeEnv.deserialize(self.get_runtime_env_string())

    @property
    def worker(self) -> Worker:
        """This process."""
        return _worker


class Worker:
    """The process that asks, as far as programs written for Ray look at it."""

    @property
    def mode(self) -> int:
        """`skate.SCRIPT_MODE` in a driver, `skate.WORKER_MODE` in a worker."""
        return 0 if get_runtime().executor is None else 1

    @property
    def worker_id(self) -> WorkerID:
        from skate.ids import WorkerID

        return WorkerID(get_runtime().process_id)

    @property
    def current_job_id(self) -> JobID:
        return _context.job_id

    @property
    def current_node_id(self) -> NodeID:
        return _context.node_id

    @property
    def current_task_id(self) -> TaskID | None:
        return _context.task_id

    @property
    def actor_id(self) -> ActorID | None:
        return _context.actor_id

    @property
    def namespace(self) -> str:
        return _context.namespace


def _module_of(function: Any) -> str:
    """The module of a function. That of a script is known by the name of its file, also in a worker."""
    module = str(getattr(function, "__module__", None) or "__main__")
    file = getattr(getattr(function, "__code__", None), "co_filename", "<unknown>")
    if module != "__main__" or file.startswith("<"):
        return module
    return os.path.splitext(os.path.basename(file))[0]


def _actor() -> ActorProcess | None:
    executor = get_runtime().executor
    return executor.actor if executor is not None else None


_context = RuntimeContext()
_worker = Worker()


def get_runtime_context() -> RuntimeContext:
    """Facts about the current job, node, worker and task.

    >>> skate.get_runtime_context().get_node_id()
    """
    return _context
