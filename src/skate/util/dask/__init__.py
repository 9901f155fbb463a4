"""Dask on Skate: every task of a Dask graph is a task of Skate, and what it returns stays in the object store.

>>> import dask
>>> from skate.util.dask import ray_dask_get
>>> dask.delayed(sum)([1, 2, 3]).compute(scheduler=ray_dask_get)
6

`enable_dask_on_ray()` makes that the scheduler of all Dask collections. The names are Ray's, so that programs written
for Dask on Ray run unchanged.

Idea:      a graph is submitted in Dask's own order, in which dependencies come first. A task gets the values of its
           dependencies as arguments, so they move between workers and never through the driver. The driver drops its
           reference to a value once all tasks that read it are submitted.
Knows not: how Dask optimises graphs. Only the public specification of tasks (`dask.task_spec`) is used.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

import skate

try:
    import dask
    from dask.callbacks import Callback
    from dask.core import flatten
    from dask.order import order
    from dask.task_spec import Alias, DataNode, GraphNode, List, Task, TaskRef
    from dask.utils import key_split
except ImportError as error:
    raise ImportError(
        "skate.util.dask needs Dask with the module dask.task_spec, and that could not be imported.\n"
        f"  why:  {error}\n"
        "  next: pip install --upgrade dask"
    ) from error

__all__ = [
    "RayDaskCallback",
    "disable_dask_on_ray",
    "enable_dask_on_ray",
    "ray_dask_get",
    "ray_dask_get_sync",
    "ray_dask_persist",
]

#: The annotation, and the argument of `compute`, whose value are options of the tasks.
_OPTIONS = "ray_remote_args"

# --- hooks -----------------------------------------------------------------------------------------------------------


class _Hooks(NamedTuple):
    """The hooks of one callback; None for each hook that it does not have."""

    presubmit: Callable[[Any, Any, Any], Any] | None
    postsubmit: Callable[[Any, Any, Any, Any], Any] | None
    pretask: Callable[[Any, Any], Any] | None
    posttask: Callable[[Any, Any, Any], Any] | None
    postsubmit_all: Callable[[Any, Any], Any] | None
    finish: Callable[[Any], Any] | None


#: The callbacks whose `with` block is open, outermost first.
_active: list[RayDaskCallback] = []


class RayDaskCallback(Callback):  # type: ignore[misc, unused-ignore]  # a base class without types
    """Hooks around the tasks of a graph: give them as `ray_...=function`, or override `_ray_...` in a subclass.

    In the driver: `ray_presubmit(task, key, deps)` before a task is submitted (a result that is not None is used in
    place of the task's), `ray_postsubmit(task, key, deps, object_ref)` after it, `ray_postsubmit_all(object_refs, dsk)`
    when all are submitted, `ray_finish(result)` with the values. In the worker: `ray_pretask(key, object_refs)` before
    the task runs, and `ray_posttask(key, result, pre_state)` after it with what `ray_pretask` returned.

    >>> with RayDaskCallback(ray_postsubmit=lambda task, key, deps, object_ref: print(key)):
    ...     x.compute(scheduler=ray_dask_get)
    """

    #: The hooks that exist; an argument of __init__ has the prefix ray_, a method of a subclass _ray_.
    ray_hooks = _Hooks._fields

    def __init__(self, **hooks: Any) -> None:
        for name in _Hooks._fields:
            given = hooks.pop(f"ray_{name}", None)
            if given is not None:
                setattr(self, f"_ray_{name}", given)
        super().__init__(**hooks)

    @property
    def _hooks(self) -> _Hooks:
        return _Hooks(*(getattr(self, f"_ray_{name}", None) for name in _Hooks._fields))

    def __enter__(self) -> RayDaskCallback:
        _active.append(self)
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        _active.remove(self)
        super().__exit__(*error)

    def register(self) -> None:
        """Use this callback for all graphs until `unregister()`."""
        _active.append(self)
        super().register()

    def unregister(self) -> None:
        _active.remove(self)
        super().unregister()


# --- running a graph -------------------------------------------------------------------------------------------------


def ray_dask_get(
    dsk: Any,
    keys: Any,
    *,
    ray_callbacks: list[RayDaskCallback] | None = None,
    ray_persist: bool = False,
    ray_remote_args: Mapping[str, Any] | None = None,
    **_: Any,
) -> Any:
    """Compute the values of `keys` in a Dask graph, with a task of Skate for each of its tasks.

    This is a scheduler of Dask: pass it as `scheduler=` to `compute`, or call `enable_dask_on_ray()`. With
    `ray_persist=True` the results stay in the object store, and references to them are returned. `ray_remote_args` are
    options for all tasks; `dask.annotate(ray_remote_args={"num_gpus": 1})` sets them for a part of the graph.

    >>> dask.delayed(sum)([1, 2, 3]).compute(scheduler=ray_dask_get)
    6
    """
    graph = _graph_of(dsk)
    annotated = dsk.__dask_annotations__() if hasattr(dsk, "__dask_annotations__") else {}
    hooks = [callback._hooks for callback in ([*_active] if ray_callbacks is None else ray_callbacks)]
    refs = _submit(graph, set(flatten([keys])), hooks, dict(ray_remote_args or {}), annotated.get(_OPTIONS, {}))
    for each in hooks:
        if each.postsubmit_all is not None:
            each.postsubmit_all(list(refs.values()), dsk)
    values = refs if ray_persist else dict(zip(refs, skate.get(list(refs.values()))))
    result = _arranged(keys, values)
    for each in hooks:
        if each.finish is not None:
            each.finish(result)
    return result


def ray_dask_get_sync(dsk: Any, keys: Any, **_: Any) -> Any:
    """Compute the values of `keys` one after the other in this process, for debugging."""
    graph = _graph_of(dsk)
    values: dict[Hashable, Any] = {}
    priorities = order(graph)
    for key in sorted(graph, key=priorities.__getitem__):
        values[key] = _fetched(graph[key]({name: values[name] for name in graph[key].dependencies}))
    return _arranged(keys, values)


def _submit(
    graph: dict[Hashable, GraphNode],
    wanted: set[Hashable],
    hooks: list[_Hooks],
    options: dict[str, Any],
    annotated: Mapping[Hashable, Mapping[str, Any]],
) -> dict[Hashable, skate.ObjectRef[Any]]:
    """A reference to the value of each wanted key."""
    missing = wanted - graph.keys()
    if missing:
        raise KeyError(f"the graph has no key {next(iter(missing))!r}")
    readers = Counter(name for node in graph.values() for name in node.dependencies)
    priorities = order(graph)
    run = skate.remote(_run).options(**options) if options else skate.remote(_run)
    in_workers = [(each.pretask, each.posttask) for each in hooks if each.pretask or each.posttask]
    refs: dict[Hashable, skate.ObjectRef[Any]] = {}
    for key in sorted(graph, key=priorities.__getitem__):
        node = graph[key]
        names = sorted(node.dependencies, key=priorities.__getitem__)
        arguments = [refs[name] for name in names]
        if isinstance(node, Alias):
            refs[key] = refs[node.target]
        elif (stored := _stored(node)) is not None:
            refs[key] = stored
        elif isinstance(node, DataNode):
            refs[key] = skate.put(node.value)
        else:
            refs[key] = _submit_one(run, annotated.get(key), node, key, names, arguments, hooks, in_workers)
        for name in names:
            readers[name] -= 1
            if not readers[name] and name not in wanted:
                del refs[name]
    return {key: refs[key] for key in wanted}


def _submit_one(
    run: Any,
    options: Mapping[str, Any] | None,
    node: GraphNode,
    key: Hashable,
    names: list[Hashable],
    arguments: list[skate.ObjectRef[Any]],
    hooks: list[_Hooks],
    in_workers: list[Any],
) -> skate.ObjectRef[Any]:
    for each in hooks:
        if each.presubmit is not None:
            instead = each.presubmit(node, key, arguments)
            if instead is not None:
                return skate.put(instead)
    function = run.options(name=_label(key), **options) if options else run.options(name=_label(key))
    ref: skate.ObjectRef[Any] = function.remote(node, names, in_workers, *arguments)
    for each in hooks:
        if each.postsubmit is not None:
            each.postsubmit(node, key, arguments, ref)
    return ref


def _run(node: GraphNode, names: list[Hashable], hooks: list[Any], *values: Any) -> Any:
    """In a worker: one task of the graph, with the values of its dependencies."""
    states = [pretask(node.key, list(values)) if pretask is not None else None for pretask, _ in hooks]
    result = node(dict(zip(names, map(_fetched, values))))
    for (_, posttask), state in zip(hooks, states):
        if posttask is not None:
            posttask(node.key, result, state)
    return result


def _fetched(value: Any) -> Any:
    """The value itself, also of a reference: a collection that was persisted holds references."""
    return skate.get(value) if isinstance(value, skate.ObjectRef) else value


def _stored(node: GraphNode) -> skate.ObjectRef[Any] | None:
    """The reference that a node only reads: one that `ray_dask_persist` made, or one that is data of the graph."""
    value: Any = None
    if isinstance(node, DataNode):
        value = node.value
    elif isinstance(node, Task) and node.func is _fetched:
        value = node.args[0]
    return value if isinstance(value, skate.ObjectRef) else None


def _label(key: Hashable) -> str:
    """The name of a task in logs: "sum" of the key ("sum-1b2c", 0)."""
    return f"dask:{key_split(key)}"


def _arranged(keys: Any, values: Mapping[Hashable, Any]) -> Any:
    """The values in the shape of the keys, which may be lists of lists."""
    if isinstance(keys, list):
        return tuple(_arranged(key, values) for key in keys)
    return values[keys]


# --- graphs ----------------------------------------------------------------------------------------------------------


def _graph_of(dsk: Any) -> dict[Hashable, GraphNode]:
    """The graph as nodes of Dask's task specification. Graphs written by hand may hold tuples instead."""
    raw = dsk if isinstance(dsk, Mapping) else dsk.__dask_graph__()
    names = set(raw)
    graph: dict[Hashable, GraphNode] = {}
    for key, spec in raw.items():
        node = spec if isinstance(spec, GraphNode) else _parsed(spec, names, key)
        if isinstance(node, TaskRef):
            node = Alias(key, node)
        graph[key] = node if isinstance(node, GraphNode) else DataNode(key, node)
    return graph


def _parsed(spec: Any, names: set[Hashable], key: Hashable = None) -> Any:
    """A tuple (function, argument, …) is a task, a name of the graph a reference; all else is data."""
    if isinstance(spec, GraphNode):
        return spec
    if type(spec) is tuple and spec and callable(spec[0]):
        return Task(key, spec[0], *(_parsed(argument, names) for argument in spec[1:]))
    if isinstance(spec, Hashable) and _is_name(spec, names):
        return TaskRef(spec)
    if type(spec) is list:
        parts = [_parsed(part, names) for part in spec]
        if any(isinstance(part, (GraphNode, TaskRef)) for part in parts):
            return Task(key, _as_list, List(*parts))
    if type(spec) is dict:
        values = [_parsed(value, names) for value in spec.values()]
        if any(isinstance(value, (GraphNode, TaskRef)) for value in values):
            return Task(key, _as_dict, list(spec), List(*values))
    return spec


def _is_name(spec: Hashable, names: set[Hashable]) -> bool:
    try:
        return spec in names
    except TypeError:  # a tuple that holds a list
        return False


def _as_list(parts: Any) -> list[Any]:
    return list(parts)


def _as_dict(names: list[Any], values: list[Any]) -> dict[Any, Any]:
    return dict(zip(names, values))


# --- Dask's settings -------------------------------------------------------------------------------------------------


def enable_dask_on_ray(
    shuffle: str | None = "tasks", use_shuffle_optimization: bool | None = True
) -> contextlib.AbstractContextManager[Any]:
    """Make `ray_dask_get` the scheduler of all Dask collections; as a `with` block only inside it.

    `shuffle` is Dask's method for shuffles of data frames: "tasks", because "disk" needs a file system that all nodes
    share. `use_shuffle_optimization` is accepted for programs written for Ray and has no effect.

    >>> with enable_dask_on_ray():
    ...     frame.groupby("name").size().compute()
    """
    settings = {"scheduler": ray_dask_get, "dataframe.shuffle.method": shuffle}
    found: contextlib.AbstractContextManager[Any] = dask.config.set(settings)
    return found


def disable_dask_on_ray() -> contextlib.AbstractContextManager[Any]:
    """Give Dask its own schedulers back."""
    settings = {"scheduler": None, "dataframe.shuffle.method": None}
    found: contextlib.AbstractContextManager[Any] = dask.config.set(settings)
    return found


def ray_dask_persist(*collections: Any, **options: Any) -> Any:
    """Compute collections and leave the results in the object store: `dask.persist` without a copy in the driver.

    >>> (frame,) = ray_dask_persist(frame)
    >>> frame.sum().compute(scheduler=ray_dask_get)
    """
    return dask.persist(*collections, scheduler=_persisted, **options)


def _persisted(dsk: Any, keys: Any, **options: Any) -> Any:
    """A scheduler whose results are tasks that read the stored values, so that any scheduler can go on with them."""
    refs = ray_dask_get(dsk, keys, ray_persist=True, **options)
    return _reading(keys, refs)


def _reading(keys: Any, refs: Any) -> Any:
    if isinstance(keys, list):
        return tuple(_reading(key, ref) for key, ref in zip(keys, refs))
    return Task(keys, _fetched, refs)
