"""The verbs: init, shutdown, get, put, wait, cancel, … Thin, typed, documented with examples."""

from __future__ import annotations

import atexit
import contextlib
import math
import numbers
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from skate._config import (
    STORE_BYTES_LEAST,
    cpu_count,
    default_store_bytes,
    machine_bytes,
    node_resources,
    store_warning,
    temporary_directory,
)
from skate._core import environment
from skate._core.resources import HEAD
from skate._core.version import COMMIT, VERSION
from skate._error_text import kind_of
from skate._node import interpreter
from skate._node.main import ClusterConfig, NodeConfig
from skate._object_ref import ObjectRef
from skate._streaming import ObjectRefGenerator
from skate._worker import current, interrupt
from skate._worker.driver import JoinedNode, LocalNode, Node, enter_cluster_here, enter_node, naming_limits
from skate._worker.surroundings import set_job_logging

if TYPE_CHECKING:
    import socket

    from skate._worker.logging_config import LoggingConfig
    from skate.job_config import JobConfig

T = TypeVar("T")
R = TypeVar("R")

_node: Node | None = None
_lock = threading.RLock()
_settings: dict[str, Any] = {}
LOGGING_LEVELS = ("NOTSET", "DEBUG", "INFO", "WARNING", "WARN", "ERROR", "FATAL", "CRITICAL")


class RuntimeInfo(dict[str, Any]):
    """What `init` returns: facts about the runtime as a mapping, and a context manager that shuts it down.

        >>> context = skate.init()
        >>> context["node_ip_address"], context.address_info["node_id"]

    It has the keys of Ray's context, with None for what Skate does not have: a session's directory, sockets with names,
    a dashboard.
    """

    def __enter__(self) -> RuntimeInfo:
        return self

    def __exit__(self, *_: object) -> None:
        shutdown()

    def disconnect(self) -> None:
        shutdown()

    @property
    def address_info(self) -> dict[str, Any]:
        """The same facts as a plain dict."""
        return dict(self)

    @property
    def dashboard_url(self) -> str | None:
        """None: there is no dashboard."""
        return None

    @property
    def python_version(self) -> str:
        return "{}.{}.{}".format(*sys.version_info)

    @property
    def ray_version(self) -> str:
        """What `ray.__version__` says where Skate has that name, else the version of Skate."""
        return str(getattr(sys.modules.get("ray"), "__version__", VERSION))

    @property
    def ray_commit(self) -> str:
        """What `ray.__commit__` says where Skate has that name."""
        return COMMIT


def init(
    address: str | None = None,
    *,
    num_cpus: float | None = None,
    num_gpus: int | None = None,
    resources: dict[str, float] | None = None,
    labels: dict[str, str] | None = None,
    object_store_memory: int | None = None,
    namespace: str | None = None,
    log_to_driver: bool = True,
    logging_level: int | str = "INFO",
    logging_format: str | None = None,
    configure_logging: bool = True,
    ignore_reinit_error: bool = False,
    include_dashboard: bool | None = None,
    runtime_env: dict[str, Any] | None = None,
    job_config: JobConfig | None = None,
    logging_config: LoggingConfig | None = None,
    spill_directory: str | os.PathLike[str] | None = None,
    object_spilling_directory: str | None = None,
    memory_threshold: float = 0.95,
    infeasible_grace_s: float = 10.0,
    idle_worker_s: float = 5.0,
    store_full_grace_s: float = 10.0,
    _memory: int | None = None,
    _temp_dir: str | None = None,
    _system_config: dict[str, Any] | None = None,
    **ignored: Any,
) -> RuntimeInfo:
    """Start Skate on this machine. Called implicitly, with the defaults, by the first use of the API.

        >>> skate.init(num_cpus=2)
        >>> with skate.init():          # shuts down at the end of the block
        ...     skate.get(f.remote())

    address: with "local" a node is started here. It ends with the last program that uses it, and its detached actors
    with it. "auto" joins the newest node that runs here: of a cluster (`skate start`), or one that another program has
    started and that has detached actors. The "address" that `init` returned there joins that one, and "host:port" the
    cluster whose head that is, through its node on this machine; "skate://host:port" works from machines that are no
    node of it, too. The variable SKATE_ADDRESS wins over "auto", and counts before "local" if none is given.
    num_cpus, num_gpus, resources: what tasks can ask for; by default the CPUs that this process may use. labels: what
    they can choose the node by.
    object_store_memory: most bytes of shared memory for objects; by default 30 % of the memory of the machine or
    the container, taken as needed. spill_directory: where objects go that do not fit; by default the directory for
    temporary files. object_spilling_directory: the same in Ray, which makes the directory if it is not there.
    runtime_env: {"env_vars": {"NAME": "value"}}, variables of all tasks and actors of this program, on all nodes.
    log_to_driver: whether what tasks print appears here. logging_config: how log records look, here and in workers.
    job_config: runtime_env, namespace and logging_config as one object.
    memory_threshold: part of the memory of the machine, or of the container, above which objects go to disk and then
    the newest task is ended; 1 switches that off.
    store_full_grace_s: how long an object waits for room in a full store before that is an error.
    infeasible_grace_s: how long a task that asks for more than there is may wait before that is an error.
    """
    global _node
    with _lock:
        if current.runtime_or_none() is not None:
            if ignore_reinit_error:
                return _info()
            raise RuntimeError(
                "skate.init() was called twice. Call skate.shutdown() first, or pass ignore_reinit_error=True to keep "
                "the runtime that is there."
            )
        if interpreter.runs_no_user_code:
            raise RuntimeError(
                "skate.init() was called in a process of Skate itself, which runs no code of users: a module of yours "
                "was imported there in place of another of that name. Give it another name."
            )
        shutdown()  # if the last one was interrupted
        environment.check(os.environ)
        by_variable = address in (None, "auto") and bool(os.environ.get("SKATE_ADDRESS"))
        if by_variable:
            address = os.environ["SKATE_ADDRESS"]
        if job_config is not None:
            from skate.job_config import checked_job_config

            job_config = checked_job_config(job_config)
            runtime_env = job_config.runtime_env if runtime_env is None else runtime_env
            namespace = job_config.ray_namespace if namespace is None else namespace
            logging_config = job_config.py_logging_config if logging_config is None else logging_config
        _check_init(address, num_cpus, num_gpus, _memory, object_store_memory, memory_threshold, logging_level, ignored)
        if address is not None and address.startswith(RAYS):
            address = OUTSIDE + address.removeprefix(RAYS)
        for name, seconds in (
            ("infeasible_grace_s", infeasible_grace_s),
            ("idle_worker_s", idle_worker_s),
            ("store_full_grace_s", store_full_grace_s),
        ):
            if not (_is_number(seconds) and 0 <= seconds < math.inf):
                raise ValueError(f"init({name}={seconds!r}): it may be a number of seconds, 0 or more.")
        if not isinstance(log_to_driver, bool):
            raise TypeError(f"init(log_to_driver={log_to_driver!r}): it may be True or False.")
        from skate._options import checked_labels, checked_text, task_options

        namespace = checked_text("init", "namespace", "" if namespace is None else namespace)
        checked = task_options(runtime_env=runtime_env or {})
        # Ray makes this one if it is not there, for files that Skate has not.
        temp_dir = _temp_dir if _temp_dir is not None and os.path.isdir(_temp_dir) else None
        if spill_directory is not None and not isinstance(spill_directory, (str, bytes, os.PathLike)):
            raise TypeError(f"init(spill_directory={spill_directory!r}): it may be a path.")
        if object_spilling_directory is not None and spill_directory is None:
            spill_directory = object_spilling_directory
            os.makedirs(spill_directory, exist_ok=True)
        directory = spill_directory or temp_dir or temporary_directory()
        if not os.path.isdir(directory):
            raise ValueError(f"spill_directory={directory!r} is not a directory; create it, or name another.")
        cpus = cpu_count() if num_cpus is None else num_cpus
        config = NodeConfig(
            control_fd=-1,
            num_cpus=float(cpus),
            num_gpus=int(num_gpus or 0),
            resources=node_resources(resources),
            labels=checked_labels(labels),
            memory=None if _memory is None else int(_memory),
            object_store_memory=int(object_store_memory or default_store_bytes()),
            spill_directory=os.fsdecode(directory),
            memory_threshold=float(memory_threshold),
            infeasible_grace_s=float(infeasible_grace_s),
            idle_worker_s=float(idle_worker_s),
            store_full_grace_s=float(store_full_grace_s),
        )
        _configure_logs(logging_config)
        _settings.clear()
        _settings.update(namespace=namespace, runtime_env=checked.runtime_env)
        env_vars = {name: os.path.expandvars(value) for name, value in checked.runtime_env.get("env_vars", {}).items()}
        with naming_limits():
            entered = None if address is None or address == "local" else _entered(address, by_variable=by_variable)
            if entered is not None:
                _node = JoinedNode(entered, log_to_driver=log_to_driver, namespace=namespace)
            else:
                outside = outside_cluster(address)
                if outside is not None:
                    # A node that gives nothing and listens nowhere: all else is as for any other driver.
                    config.cluster, config.serves = outside, False
                _node = LocalNode(config, log_to_driver=log_to_driver, env_vars=env_vars, namespace=namespace)
        runtime = _node.runtime
        runtime.settings = dict(_settings)
        if address not in (None, "local"):
            # The daemons of a cluster have environments of their own, so the variables go along with every task.
            runtime.inherit(env_vars)
        current.set_runtime(runtime)
        interrupt.guard_handlers()
        if configure_logging:
            import logging  # the runtime has imported it while the daemon started

            logging.getLogger("skate").setLevel(
                logging_level if isinstance(logging_level, int) else logging_level.upper()
            )
        return _info()


def _configure_logs(config: LoggingConfig | None) -> None:
    """Let log records look so in this process, and in the workers of what `init` is about to start."""
    if config is None:
        set_job_logging("")
        return
    import json

    from skate._worker.logging_config import LoggingConfig

    if not isinstance(config, LoggingConfig):
        raise TypeError(f"init(logging_config={config!r}): it may be a skate.LoggingConfig.")
    config.apply()
    set_job_logging(json.dumps(config.to_dict()))


def _check_init(
    address: str | None,
    num_cpus: Any,
    num_gpus: Any,
    memory: Any,
    object_store_memory: Any,
    memory_threshold: Any,
    logging_level: Any,
    ignored: dict[str, Any],
) -> None:
    from skate._no_effect import NO_EFFECT
    from skate._options import checked_amount

    if address not in (None, "local", "auto") and not _is_address(address):
        raise ValueError(
            f"{_named(address)}: it may be 'local' (or left out) to start a node here, 'auto' to join the "
            "newest that runs here, the 'host:port' of a cluster that this machine is a node of, or "
            "'skate://host:port' from elsewhere."
        )
    if address not in (None, "local"):
        for name, value in (
            ("num_cpus", num_cpus), ("num_gpus", num_gpus), ("object_store_memory", object_store_memory)
        ):  # fmt: skip
            if value is not None:
                raise ValueError(
                    f"init({name}={value!r}) with {_named(address)}: what the node has was decided by its start."
                )
    for name, value in (("num_cpus", num_cpus), ("num_gpus", num_gpus), ("_memory", memory)):
        if value is not None:
            checked_amount("init", name, value)
    if num_gpus is not None and num_gpus != int(num_gpus):
        raise ValueError(f"init(num_gpus={num_gpus!r}): it may be a whole number; tasks can ask for fractions.")
    if not (_is_number(memory_threshold) and 0 < memory_threshold <= 1):
        raise ValueError(f"init(memory_threshold={memory_threshold!r}): it may be a number above 0, at most 1.")
    if not isinstance(logging_level, int) and str(logging_level).upper() not in LOGGING_LEVELS:
        raise ValueError(f"init(logging_level={logging_level!r}): it may be a number or one of {LOGGING_LEVELS}.")
    if object_store_memory is not None and (
        not (_is_number(object_store_memory) and STORE_BYTES_LEAST <= object_store_memory < math.inf)
    ):
        raise ValueError(
            f"init(object_store_memory={object_store_memory!r}): it may be a number of bytes, "
            f"at least {STORE_BYTES_LEAST}."
        )
    if object_store_memory is not None and object_store_memory > machine_bytes():
        raise ValueError(
            f"init(object_store_memory={object_store_memory!r}): this machine has {machine_bytes()} bytes. Objects "
            "that do not fit into the store are spilled to disk."
        )
    if object_store_memory is not None and (warning := store_warning(int(object_store_memory))):
        import warnings

        warnings.warn(f"skate.init: {warning}", stacklevel=3)
    for name in ignored:
        if not name.startswith("_") and name not in NO_EFFECT["init"] and name != "local_mode":
            raise TypeError(f"init() has no argument {name!r}; see help(skate.init) for those that it has.")
    if ignored.get("local_mode"):
        raise ValueError("init(local_mode=True) is not part of Skate: call the plain function to debug it in place.")


def _named(address: str | None) -> str:
    """The address, and where it comes from."""
    return f"SKATE_ADDRESS={address}" if address == os.environ.get("SKATE_ADDRESS") else f"init({address=})"


#: How the addresses of clusters begin for drivers that are on no node of them.
OUTSIDE = "skate://"
#: The same in programs for Ray.
RAYS = "ray://"


def _entered(address: str, *, by_variable: bool) -> socket.socket | None:
    """A connection to a node on this machine that the address means; None for a driver that is on no node.

    "skate://host:port" means a node here, too, if one of that cluster is here: it asks for no token, and the cluster of
    a `Cluster` has one that only its nodes know. A token that was named says that this driver comes from outside.
    """
    if not address.startswith(OUTSIDE):
        try:
            return enter_node(address)
        except ConnectionError as error:
            if not by_variable:
                raise
            raise ConnectionError(f"{error}\n  note: the address is that of SKATE_ADDRESS.") from None
    from skate._wire.token import is_token_named

    return None if is_token_named() else enter_cluster_here(address.removeprefix(OUTSIDE))


def outside_cluster(address: str | None) -> ClusterConfig | None:
    """How a driver that is on no node of it finds a cluster, if that is what the address says."""
    if address is None or not address.startswith(OUTSIDE):
        return None
    from skate._wire.token import find_token

    host, _, port = address.removeprefix(OUTSIDE).rpartition(":")
    return ClusterConfig(control=(host.strip("[]"), int(port)), token=find_token(None).decode())


def has_node_of_its_own() -> bool:
    """Whether this driver has started a node that is alone, and which other programs did not know of before."""
    return isinstance(_node, LocalNode) and not _node.runtime.in_cluster


def is_on_no_node() -> bool:
    """Whether this driver uses a cluster without being on a node of it."""
    return isinstance(_node, LocalNode) and _node.runtime.in_cluster


def node_here() -> tuple[str, str]:
    """The id and the address of the node of this process. A driver on no node is told those of the head."""
    if is_on_no_node():
        living = [node for node in nodes() if node["Alive"]]
        for node in sorted(living, key=lambda node: HEAD not in node["Resources"]):
            return node["NodeID"], node["NodeManagerAddress"]
    welcome = current.get_runtime().welcome
    return welcome.node_id.hex(), welcome.host


def _is_address(address: Any) -> bool:
    if not isinstance(address, str):
        return False
    host, _, port = address.removeprefix(OUTSIDE).removeprefix(RAYS).rpartition(":")
    whole = bool(host and "/" not in host and port.isdecimal() and 0 < int(port) < 1 << 16)
    return whole or address.startswith("skate-")


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _info() -> RuntimeInfo:
    welcome = current.get_runtime().welcome
    node_id, host = node_here()
    return RuntimeInfo(
        node_id=node_id,
        job_id=welcome.job_id.hex(),
        namespace=_settings.get("namespace", ""),
        address=welcome.address,
        resources=dict(welcome.resources),
        node_ip_address=host,
        # What another program gives to `init` to use the same cluster; a node that is alone is one.
        gcs_address=welcome.address.partition("@")[2] or welcome.address,
        redis_address=None,
        raylet_socket_name=None,
        object_store_address=None,
        webui_url=None,
        session_dir=None,
        metrics_export_port=None,
        dashboard_agent_listen_port=None,
    )


def shutdown(_exiting_interpreter: bool = False) -> None:
    """End the runtime: tasks that still run are stopped, objects are gone. Safe to call twice.

    Ctrl-C makes it wait no longer for what the workers print last, and is raised when all is tidied up.
    """
    global _node
    with _lock:
        if _node is None:
            return
        # It is forgotten when it is closed, and not before: whatever interrupts this, another call can finish it.
        try:
            current.set_runtime(None)
            _node.close()
        except BaseException:
            _node.close()
            _node = None
            raise
        _node = None


def _at_exit() -> None:
    current.set_exiting()  # first: a thread that runs on must not start another runtime while this one ends
    with contextlib.suppress(KeyboardInterrupt):  # all is tidied up then, and atexit would print a traceback
        shutdown()


atexit.register(_at_exit)
current.set_initializer(lambda: (init(), None)[1])


def is_initialized() -> bool:
    """Whether this process has a running Skate: after `init` (or first use), before `shutdown`; always in a task."""
    return current.runtime_or_none() is not None


class _NotAReferenceError(TypeError, ValueError):
    """`get` was given something else than references. Ray raises ValueError then."""


@overload
def get(refs: ObjectRef[T], *, timeout: float | None = None, _use_object_store: bool = False) -> T: ...
@overload
def get(refs: Sequence[ObjectRef[T]], *, timeout: float | None = None, _use_object_store: bool = False) -> list[T]: ...
@overload
def get(refs: ObjectRefGenerator[T], *, timeout: float | None = None, _use_object_store: bool = False) -> list[T]: ...
def get(refs: Any, *, timeout: float | None = None, _use_object_store: bool = False) -> Any:
    """Wait for the value of a reference, or for the values of a list of them.

        >>> skate.get(ref)
        >>> skate.get([ref, ref], timeout=5)    # GetTimeoutError after 5 s

    Raises the error of the task if it failed; `timeout=0` looks without waiting.
    """
    if timeout is not None:
        _check_timeout("get", timeout)
    if isinstance(refs, ObjectRef):
        value = current.get_runtime().get((refs,), timeout)[0]
        if interrupt.pending:
            interrupt.raise_pending()
        return value
    if isinstance(refs, ObjectRefGenerator):
        refs = list(refs)
    elif not isinstance(refs, (list, tuple)):
        raise _NotAReferenceError(f"get() takes a reference or a list of references, not {kind_of(refs)}.{_hint(refs)}")
    for ref in refs:
        if not isinstance(ref, ObjectRef):
            raise _NotAReferenceError(
                f"get() takes a list of references, and an element is {kind_of(ref)}.{_hint(ref)}"
            )
    values = current.get_runtime().get(refs, timeout)
    if interrupt.pending:
        interrupt.raise_pending()
    return values


def _check_timeout(call: str, timeout: Any) -> None:
    if not _is_number(timeout):
        raise TypeError(f"{call}(timeout={timeout!r}): it may be None or a number of seconds, 0 or more.")
    if not timeout >= 0:
        raise ValueError(f"{call}(timeout={timeout!r}): it may be None or a number of seconds, 0 or more.")


def _hint(value: object) -> str:
    from skate._remote_function import RemoteFunction

    if isinstance(value, RemoteFunction):
        return " Did you forget .remote(...)?"
    if isinstance(value, (set, frozenset, dict, Iterator)):
        return " Make a list of it first."
    return ""


def put(value: T, *, _owner: Any = None, _tensor_transport: str | None = None) -> ObjectRef[T]:
    """Store a value once, to pass it to many tasks by reference.

    >>> ref = skate.put(numpy.zeros(10_000_000))
    >>> skate.get(ref)              # zero copy: a read-only view of shared memory
    """
    if isinstance(value, ObjectRef):
        raise TypeError("put() of a reference: pass the reference itself on, or put it inside a list.")
    if _owner is not None:
        raise ValueError(
            f"put(_owner={_owner!r}): it may be None, because the process that calls put() owns the object.\n"
            "  next: let the actor that should own it call put(), and return the reference inside a list."
        )
    if interrupt.pending:
        interrupt.raise_pending()
    return current.get_runtime().put(value)


def wait(
    refs: Sequence[ObjectRef[T]],
    *,
    num_returns: int = 1,
    timeout: float | None = None,
    fetch_local: bool = True,
) -> tuple[list[ObjectRef[T]], list[ObjectRef[T]]]:
    """Wait until `num_returns` of the references are ready; (ready, not ready), both in the order given.

    >>> ready, rest = skate.wait(refs, num_returns=1, timeout=0.5)
    """
    if isinstance(refs, ObjectRef):
        raise TypeError("wait() takes a list of references; for one, use wait([ref]).")
    if not isinstance(refs, (list, tuple)):
        raise TypeError(f"wait() takes a list of references, not {kind_of(refs)}.{_hint(refs)}")
    for ref in refs:
        if not isinstance(ref, (ObjectRef, ObjectRefGenerator)):
            raise TypeError(f"wait() takes a list of references, and an element is {kind_of(ref)}.{_hint(ref)}")
    if not refs:
        return [], []
    if len(set(refs)) != len(refs):
        raise ValueError("wait() was given the same reference twice.")
    if isinstance(num_returns, bool) or not isinstance(num_returns, int) or not 0 < num_returns <= len(refs):
        raise ValueError(
            f"wait(num_returns={num_returns!r}): it may be from 1 to the number of references, {len(refs)}."
        )
    if timeout is not None:
        _check_timeout("wait", timeout)
    return current.get_runtime().wait(refs, num_returns, timeout)


def as_completed(refs: Iterable[ObjectRef[T]], *, timeout: float | None = None) -> Iterator[ObjectRef[T]]:
    """The references in the order in which they become ready.

    >>> for ref in skate.as_completed(refs):
    ...     print(skate.get(ref))
    """
    from skate._iterate import as_completed as run

    if timeout is not None:
        _check_timeout("as_completed", timeout)
    return run(current.get_runtime(), list(refs), timeout)


def map(
    function: Any,
    iterable: Iterable[Any],
    *more: Iterable[Any],
    max_in_flight: int | None = None,
    chunk: int | None = None,
) -> Iterator[Any]:
    """Like the built-in `map`, in parallel: results in order, while later items are still running.

        >>> list(skate.map(square, range(1_000_000)))

    Small items are sent in chunks whose size adapts to how long one takes. At most `max_in_flight` items are
    submitted and not yet consumed, so the iterable may be endless. With a method of an actor each item is a call.
    """
    from skate._iterate import parallel_map

    return parallel_map(current.get_runtime(), function, iterable, *more, max_in_flight=max_in_flight, chunk=chunk)


def cancel(ref: ObjectRef[Any] | ObjectRefGenerator[Any], *, force: bool = False, recursive: bool = True) -> None:
    """Stop a task. If it waits, it never starts; if it runs, TaskInterrupt (a KeyboardInterrupt) is raised inside it.

    force: kill its worker instead. recursive: cancel the tasks that it started, too. `get` then raises
    TaskCancelledError. A task that has ended is left alone.

    A call of an actor's method that waits never starts either; one that runs is interrupted only if it is a coroutine
    (CancelledError is raised in it), for the state of the actor has to survive. It can ask
    `get_runtime_context().is_canceled()`.
    """
    if not isinstance(ref, (ObjectRef, ObjectRefGenerator)):
        raise TypeError(f"cancel() takes a reference, not {kind_of(ref)}.")
    for name, value in (("force", force), ("recursive", recursive)):
        if not isinstance(value, bool):
            raise TypeError(f"cancel({name}={value!r}): it may be True or False.")
    current.get_runtime().cancel(ref._id, force=force, recursive=recursive)


def cluster_resources() -> dict[str, float]:
    """All that tasks can ask for: {"CPU": 2.0, "memory": …}."""
    total: dict[str, float] = current.get_runtime().query("resources")["total"]
    return total


def available_resources() -> dict[str, float]:
    """What is free now."""
    available: dict[str, float] = current.get_runtime().query("resources")["available"]
    return available


def nodes() -> list[dict[str, Any]]:
    """The machines of the cluster, as dicts with NodeID, Alive (and the same as alive), Resources, Available, …

    Those that live come first; after them, with Alive False and no resources, the last hundred that died. Resources is
    all that a node has, and Available what was free when it last reported.

    >>> [node["NodeID"] for node in skate.nodes() if node["Alive"]]
    """
    found: list[dict[str, Any]] = current.get_runtime().query("nodes")
    return found


def get_gpu_ids() -> list[int]:
    """The GPUs that the current task was given; in a driver, those in CUDA_VISIBLE_DEVICES."""
    runtime = current.get_runtime()
    if runtime.executor is not None:
        return list(runtime.executor.gpu_ids)
    from skate._worker.execute import visible_gpus

    return visible_gpus()


def timeline(filename: str | os.PathLike[str] | None = None) -> list[dict[str, Any]] | None:
    """Every finished task as a Chrome trace: open it in chrome://tracing or ui.perfetto.dev.

    >>> skate.timeline("trace.json")
    """
    from skate._timeline import chrome_trace

    # A number would be taken for a descriptor, and that of Skate's own closed after it.
    if filename is not None and not isinstance(filename, (str, bytes, os.PathLike)):
        raise TypeError(f"timeline(filename={filename!r}): it may be None or a path, not {kind_of(filename)}.")
    trace = chrome_trace(current.get_runtime().query("events"))
    if filename is None:
        return trace
    import json

    with open(filename, "w") as file:
        json.dump(trace, file)
    return None


def why(ref: ObjectRef[Any]) -> str:
    """What a pending reference waits for, in words.

    >>> print(skate.why(ref))
    """
    if not isinstance(ref, (ObjectRef, ObjectRefGenerator)):
        raise TypeError(f"why() takes a reference, not {kind_of(ref)}.{_hint(ref)}")
    from skate._worker.why import explain

    return explain(current.get_runtime(), ref)
