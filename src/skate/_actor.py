"""`@skate.remote` on classes: classes whose instances live in processes of their own, and handles to them."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec, TypeVar, overload

from skate._core.ids import short_task
from skate._core.task import ActorInfo, ActorSettings
from skate._object_ref import ObjectRef
from skate._options import ActorOptions, MethodOptions, checked_text, merge, method_options
from skate._worker import interrupt
from skate._worker.current import get_runtime
from skate._worker.surroundings import late_ray_version
from skate.exceptions import ActorAlreadyExistsError

if TYPE_CHECKING:
    from typing import Protocol, runtime_checkable

    from skate._worker.actors import MethodCall
    from skate._worker.functions import Function

    MYPY = False  # but mypy takes it for true

P = ParamSpec("P")
T = TypeVar("T", covariant=True)
R = TypeVar("R", covariant=True)
F = TypeVar("F", bound=Callable[..., Any])

#: Calls at a time of an async actor that does not say.
ASYNC_CONCURRENCY = 1000
#: Longest pause between two looks for an actor whose name is taken, and which is not there yet, or not any more.
LOOK_AGAIN_S_MAX = 0.02
_METHOD_OPTIONS = "__skate_method_options__"


# --- what a handle knows of a class -----------------------------------------------------------------------------------


class Method(NamedTuple):
    options: MethodOptions
    #: "streaming" for one that yields.
    generator: str
    #: Parameters besides `self`: name, kind, whether it has a default; None if that is not known.
    parameters: tuple[tuple[str, int, bool], ...] | None


class About(NamedTuple):
    """A class, as far as its handles have to know it: they work where the class itself cannot be imported."""

    class_name: str
    methods: dict[str, Method]
    #: Attributes that are no methods.
    others: tuple[str, ...]
    settings: ActorSettings
    max_task_retries: int
    max_pending_calls: int


def _describe(cls: type, options: ActorOptions) -> About:
    methods: dict[str, Method] = {}
    others: list[str] = []
    is_async = False
    for name in dir(cls):
        found = inspect.getattr_static(cls, name)
        if name in dir(object) or name in ("__weakref__", "__dict__", "__module__"):
            continue
        function = found.__func__ if isinstance(found, (classmethod, staticmethod)) else found
        if not inspect.isroutine(function) or not callable(function):  # a cached property is a routine, too
            if not name.startswith("__"):
                others.append(name)
            continue
        is_async = is_async or inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
        chosen: MethodOptions = getattr(function, _METHOD_OPTIONS, None) or method_options()
        yields = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
        bound = not isinstance(found, staticmethod)
        methods[name] = Method(chosen, "streaming" if yields else "", _parameters(function, skip_first=bound))
        if chosen.concurrency_group and chosen.concurrency_group not in options.concurrency_groups:
            raise ValueError(
                f"{cls.__qualname__}.{name} is in the concurrency group {chosen.concurrency_group!r}, which its class "
                f"does not have.\n  next: @skate.remote(concurrency_groups={{{chosen.concurrency_group!r}: 1}})."
            )
    most = options.max_concurrency or (ASYNC_CONCURRENCY if is_async else 1)
    out_of_order = options.allow_out_of_order_execution
    ordered = None if out_of_order is None else not out_of_order
    settings = ActorSettings(most, options.concurrency_groups, is_async, ordered)
    name = cls.__qualname__.rpartition("<locals>.")[2]
    return About(name, methods, tuple(others), settings, options.max_task_retries, options.max_pending_calls)


def _parameters(function: Callable[..., Any], *, skip_first: bool) -> tuple[tuple[str, int, bool], ...] | None:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None
    if skip_first and parameters and parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL:
        parameters = parameters[1:]
    return tuple((p.name, int(p.kind), p.default is not p.empty) for p in parameters)


def _signature(parameters: tuple[tuple[str, int, bool], ...] | None) -> inspect.Signature | None:
    if parameters is None:
        return None
    parameter = inspect.Parameter
    kinds = [
        parameter.POSITIONAL_ONLY,
        parameter.POSITIONAL_OR_KEYWORD,
        parameter.VAR_POSITIONAL,
        parameter.KEYWORD_ONLY,
        parameter.VAR_KEYWORD,
    ]
    return inspect.Signature(
        [
            parameter(name, kinds[kind], default=... if has_default else parameter.empty)
            for name, kind, has_default in parameters
        ]
    )


@functools.lru_cache(maxsize=1024)
def _load_about(about: bytes) -> About:
    import pickle

    loaded: About = pickle.loads(about)
    return loaded


# --- classes ----------------------------------------------------------------------------------------------------------


class ActorClass(Generic[T]):
    """A class whose instances are actors: `Class.remote(...)` makes one elsewhere and returns a handle at once."""

    def __init__(self, cls: type, options: ActorOptions, about: About | None = None) -> None:
        self._cls = cls
        self._options = options
        # Given where it is unpickled: a class that refers to itself has no methods yet at that moment.
        self._about = about or _describe(cls, options)
        self._name = self._about.class_name
        self._pickled_about: bytes | None = None
        #: Shared by all that `.options()` makes of it, so that the class is pickled once.
        self._exported: dict[tuple[int, str], Function] = {}
        functools.update_wrapper(self, cls, updated=())

    def remote(self, /, *args: Any, **kwargs: Any) -> Actor[T]:
        """Make an actor. Arguments that are references are replaced by their values."""
        self._check(args, kwargs)
        runtime = get_runtime()
        options = runtime.in_group(self._options)
        sent_to = id(runtime), late_ray_version()
        exported = self._exported.get(sent_to)
        if exported is None:
            exported = runtime.export(self._cls, self._name)
            self._exported.clear()
            self._exported[sent_to] = exported
        about = self._pickle_about()
        info = ActorInfo(
            self._name,
            options.name,
            options.namespace or runtime.welcome.namespace,
            options.lifetime == "detached",
            options.max_restarts,
            options.resources_needed(),
            options.resources_to_place(),
            runtime.environment(options.runtime_env),
            about,
            options.where(),
        )
        from skate._worker.actors import ActorGone  # as everywhere in this file: when there is a runtime, it is loaded

        pause_s = 0.0
        while True:
            if interrupt.pending:
                interrupt.raise_pending()
            made = runtime.actors.create(
                exported, info, self._about.settings, args, kwargs, pending_max=options.max_pending_calls
            )
            if isinstance(made, ObjectRef):
                return Actor(made._id[:16], runtime.process_id, about, made)
            if not options.get_if_exists:
                break
            with contextlib.suppress(ActorGone):
                return _found(made)
            # Its owner lets go of it, or is about to make it, with arguments that may take a while to store.
            time.sleep(pause_s)
            pause_s = min(2 * pause_s + 0.0005, LOOK_AGAIN_S_MAX)
        elsewhere = f", {info.namespace!r}" if info.namespace != runtime.welcome.namespace else ""
        raise ActorAlreadyExistsError(
            actor_name=options.name,
            namespace=info.namespace,
            look_up=f"skate.get_actor({options.name!r}{elsewhere})",
        )

    def _remote(
        self, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> Actor[T]:
        """`options(**options).remote(*args, **kwargs)` in one call, for libraries that call Ray so."""
        return (self.options(**options) if options else self).remote(*(args or ()), **(kwargs or {}))

    def _pickle_about(self) -> bytes:
        if self._pickled_about is None:
            import cloudpickle

            self._pickled_about = cloudpickle.dumps(self._about, protocol=5)
        return self._pickled_about

    def _check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            signature = inspect.signature(self._cls)
        except (TypeError, ValueError):
            return
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self._name}.remote(): {error}; its signature is {signature}") from None

    def options(self, **options: Any) -> ActorClass[T]:
        """The same class with other options for the actors made through it: `C.options(name="c").remote()`."""
        other: ActorClass[T] = ActorClass(self._cls, merge(self._options, **options))
        other._exported = self._exported
        return other

    def bind(self, *args: Any, **kwargs: Any) -> Any:
        raise AttributeError(
            f"{self._name}.bind(): lazy call graphs are not part of Skate. Call {self._name}.remote()."
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            f"{self._name} is a remote class and cannot be called directly.\n"
            f"  next: {self._name}.remote(...) makes an actor and returns a handle to it. For an instance here and "
            f"now, call the class itself: {self._name}._cls(...)."
        )

    def __getattr__(self, name: str) -> Any:
        """What belongs to the class itself: its constants, class methods and static methods."""
        if name.startswith("__") or "_cls" not in self.__dict__:
            raise AttributeError(name)
        found = getattr(self._cls, name)
        # Wrapped, so that the function itself is not taken for one that can be imported under this name: in another
        # process that is a function of another copy of the class, and super() would not know the instance.
        return functools.partial(found) if inspect.isfunction(found) else found

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        """A class that inherits from a remote class inherits from the class behind it."""
        return (self._cls,)

    def __repr__(self) -> str:
        return f"ActorClass({self._name})"

    def __reduce__(self) -> Any:
        return ActorClass, (self._cls, self._options, self._about)


if TYPE_CHECKING and not MYPY:
    from skate._remote_class import Verbs

    @runtime_checkable
    class ActorClass(Verbs[T], Protocol[T]):  # met by decorated classes, as others see them
        @property
        def _cls(self) -> type[T]: ...


# --- handles ----------------------------------------------------------------------------------------------------------


class ActorMethod(Generic[P, R]):
    """A method of an actor: `handle.method.remote(...)` calls it there and returns a reference at once."""

    def __init__(self, actor: Actor[Any], name: str, method: Method, options: MethodOptions) -> None:
        self._actor_id = actor._actor_id
        self._owner = actor._owner
        self._about = actor._about
        #: Keeps the actor alive, as the handle does. Not the handle itself: that keeps its methods.
        self._ref = actor._ref
        self._name = name
        self._method = method
        self._options = options
        self._signature = _signature(method.parameters)
        self._least, self._most = _positional(self._signature)
        self._call: MethodCall | None = None

    def remote(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the method. Arguments that are references are replaced by their values."""
        if interrupt.pending:
            interrupt.raise_pending()
        call = self._call
        if call is None or call.runtime.closed:
            call = self._prepare()
        if kwargs or not self._least <= len(args) <= self._most:
            self._check(args, kwargs)
        ref: R = call.runtime.actors.call(call, args, kwargs)
        return ref

    def _remote(
        self, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> Any:
        """`options(**options).remote(*args, **kwargs)` in one call, for libraries that call Ray so."""
        method: Any = self.options(**options) if options else self
        return method.remote(*(args or ()), **(kwargs or {}))

    def _prepare(self) -> MethodCall:
        from skate._worker.actors import MethodCall

        runtime = get_runtime()
        about, options = _load_about(self._about), self._options
        actors = runtime.actors
        link = actors.link(
            bytes(self._actor_id), self._owner, about.class_name, about.settings, about.max_pending_calls
        )
        retries = about.max_task_retries if options.max_task_retries is None else options.max_task_retries
        generator = self._method.generator if options.num_returns is None else ""
        if isinstance(options.num_returns, str):
            generator = options.num_returns
        if options.concurrency_group and options.concurrency_group not in about.settings.groups:
            there_are = ", ".join(map(repr, about.settings.groups)) or "none"
            raise ValueError(
                f"concurrency_group={options.concurrency_group!r}: {about.class_name} has no such group; there are: "
                f"{there_are}."
            )
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        parameters = self._signature.parameters if self._signature is not None else {}
        self._call = MethodCall(
            runtime,
            link,
            self._name,
            options,
            generator=generator,
            max_retries=retries,
            parameters=tuple(name for name, parameter in parameters.items() if parameter.kind in kinds),
        )
        return self._call

    def _check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._signature is not None:
            try:
                self._signature.bind(*args, **kwargs)
            except TypeError as error:
                signature = str(self._signature).replace("=Ellipsis", "=…")
                raise TypeError(f"{self._name}.remote(): {error}; its parameters are {signature}") from None

    @overload
    def options(self, *, num_returns: int | str, **options: Any) -> ActorMethod[P, Any]: ...
    @overload
    def options(self, **options: Any) -> ActorMethod[P, R]: ...
    def options(self, **options: Any) -> ActorMethod[P, R]:
        """The same method with other options: `handle.method.options(num_returns=2).remote()`."""
        other: ActorMethod[P, R] = ActorMethod.__new__(ActorMethod)
        other.__dict__.update(self.__dict__, _options=merge(self._options, **options), _call=None)
        return other

    def bind(self, *args: Any, **kwargs: Any) -> Any:
        raise AttributeError(f"{self._name}.bind(): lazy call graphs are not part of Skate. Call .remote(...).")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            f"{self._name} is a method of an actor and cannot be called directly.\n"
            f"  next: handle.{self._name}.remote(...) calls it and returns a reference; skate.get(reference) gives the "
            "value."
        )

    def __repr__(self) -> str:
        return f"ActorMethod({_load_about(self._about).class_name}.{self._name})"

    def __reduce__(self) -> Any:
        handle: Actor[Any] = Actor(bytes(self._actor_id), self._owner, self._about, self._ref)
        return ActorMethod, (handle, self._name, self._method, self._options)


class Actor(Generic[T]):
    """A handle to an actor whose class is `T`.

        >>> counter = Counter.remote()
        >>> skate.get(counter.increment.remote())

    Handles can be compared, hashed, put in containers, passed to tasks and to actors. The actor lives as long as any
    handle to it, anywhere, unless it is detached.
    """

    def __init__(self, actor_id: bytes, owner: bytes, about: bytes, ref: ObjectRef[Any] | None) -> None:
        from skate.ids import ActorID  # loaded with the runtime, while the daemon boots; 0.4 ms

        self._actor_id = ActorID(actor_id)
        self._owner = owner
        self._about = about
        #: To the value of its creation: what keeps the actor alive. None: it is detached.
        self._ref = ref

    def __getattr__(self, name: str) -> ActorMethod[..., Any]:
        about = _load_about(self.__dict__["_about"])
        method = about.methods.get(name)
        if method is None:
            from skate._worker.actor_process import BUILT_IN

            if name in BUILT_IN:
                method = Method(method_options(), "", None)
        if method is None:
            raise AttributeError(self._explain(about, name))
        made: ActorMethod[..., Any] = ActorMethod(self, name, method, method.options)
        self.__dict__[name] = made
        return made

    def _explain(self, about: About, name: str) -> str:
        if name in about.others:
            return (
                f"{about.class_name}.{name} is no method, and only methods of an actor can be reached from outside.\n"
                f"  next: write a method that returns it, get_{name}(), and call handle.get_{name}.remote()."
            )
        import difflib

        close = difflib.get_close_matches(name, about.methods, n=3)
        hint = f" Did you mean {' or '.join(close)}?" if close else ""
        return f"the actor class {about.class_name} has no method {name!r}.{hint}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Actor) and other._actor_id == self._actor_id

    def __hash__(self) -> int:
        return hash(self._actor_id)

    def __repr__(self) -> str:
        return f"Actor({_load_about(self._about).class_name}, {short_task(self._actor_id)})"

    def __reduce__(self) -> Any:
        return Actor, (bytes(self._actor_id), self._owner, self._about, self._ref)

    def __copy__(self) -> Actor[T]:
        return self

    def __deepcopy__(self, memo: object) -> Actor[T]:
        return self


def _found(answer: dict[str, Any]) -> Actor[Any]:
    """A handle to an actor that was found by its name."""
    runtime = get_runtime()
    ref = runtime.actors.borrow(answer["actor"], answer["owner"])
    return Actor(answer["actor"], answer["owner"], answer["about"], ref)


def _positional(signature: inspect.Signature | None) -> tuple[int, int]:
    from skate._remote_function import positional

    return positional(signature)


# --- verbs ------------------------------------------------------------------------------------------------------------


@overload
def method(function: F, /) -> F: ...
@overload
def method(**options: Any) -> Callable[[F], F]: ...
def method(*function: Any, **options: Any) -> Any:
    """Options of one method of an actor.

        @skate.remote
        class Splitter:
            @skate.method(num_returns=2)
            def split(self, pair): return pair[0], pair[1]

    num_returns, concurrency_group, max_task_retries, retry_exceptions, name. Without any, the method is as it was.
    """
    if len(function) > 1 or (function and options):
        raise TypeError("@skate.method takes options by keyword: @skate.method(num_returns=2).")
    chosen = method_options(**options)

    def mark(function: F) -> F:
        target = function.__func__ if isinstance(function, (classmethod, staticmethod)) else function
        if not callable(target):
            raise TypeError(
                f"@skate.method gives options to a method, and {target!r} is none.\n"
                "  next: give options by keyword: @skate.method(num_returns=2)."
            )
        setattr(target, _METHOD_OPTIONS, chosen)
        return function

    return mark(function[0]) if function else mark


def kill(actor: Actor[Any], *, no_restart: bool = True) -> None:
    """End an actor now, whatever it does. With `no_restart=False` it may start again, as after a crash.

    >>> skate.kill(handle)
    """
    if not isinstance(actor, Actor):
        raise TypeError(f"skate.kill() ends actors, and {actor!r} is no handle to one; tasks end by skate.cancel().")
    if not isinstance(no_restart, bool):
        raise TypeError(f"kill(no_restart={no_restart!r}): it may be True or False.")
    get_runtime().actors.kill(bytes(actor._actor_id), no_restart=no_restart)


def get_actor(name: str, namespace: str | None = None) -> Actor[Any]:
    """A handle to the actor of that name; a ValueError if there is none.

    >>> skate.get_actor("counter").increment.remote()
    """
    from skate._worker.actors import ActorGone

    name = checked_text("get_actor", "name", name)
    if not name:
        raise ValueError("get_actor(''): the name is empty.")
    runtime = get_runtime()
    where = runtime.welcome.namespace if namespace is None else checked_text("get_actor", "namespace", namespace)
    answer = runtime.actors.find(name, where)
    found: Actor[Any] | None = None
    if answer is not None:
        with contextlib.suppress(ActorGone):
            found = _found(answer)
    if found is None:
        raise ValueError(_not_found(name, where))
    return found


def _not_found(name: str, namespace: str) -> str:
    """What is said of a name that is not known: where it was looked for, and where it may be."""
    from skate._api import has_node_of_its_own

    runtime = get_runtime()
    ours = runtime.welcome.namespace
    others: list[str] = []
    with contextlib.suppress(Exception):  # it is a hint, and the control service may be away
        actors = [actor for actor in runtime.query("actors") if actor["name"] == name and actor["state"] != "dead"]
        others = sorted({actor["namespace"] for actor in actors} - {namespace})
    whose = " (that of this program)" if namespace == ours else f"; that of this program is {ours!r}"
    lines = [f"there is no actor named {name!r} in the namespace {namespace!r}{whose}."]
    if others:
        known = ", ".join(map(repr, others))
        lines.append(f"  why:  actors of that name are in other namespaces: {known}.")
        lines.append(f"  next: skate.get_actor({name!r}, namespace={others[0]!r}).")
    else:
        elsewhere = f", namespace={namespace!r}" if namespace != ours else ""
        lines.append(
            "  why:  none was created with that name, or it is dead: an actor ends with its last handle unless it was "
            'created with lifetime="detached".'
        )
        lines.append(
            f"  next: Class.options(name={name!r}{elsewhere}, get_if_exists=True).remote() makes it if it is missing."
        )
        if has_node_of_its_own():
            lines.append(
                "  or:   this program has started a node of its own, where actors of other programs are not known; "
                'skate.init("auto") joins the node that runs here, skate.init("host:port") a cluster.'
            )
    return "\n".join(lines)


def exit_actor() -> None:
    """End the current actor from within, without a restart. The call that does this, and all that wait, fail.

    >>> skate.exit_actor()
    """
    executor = get_runtime().executor
    actor = executor.actor if executor is not None else None
    if actor is None:
        raise TypeError("skate.exit_actor() was called outside of an actor: only an actor can end itself with it.")
    from skate._worker.actor_process import ActorExit

    error = ActorExit()
    if actor.concurrency is not None or threading.current_thread() is not threading.main_thread():
        actor.exit(error)  # it may not be a call that ends here, but a thread or task of the actor's own
    raise error


def current_actor() -> Actor[Any]:
    """A handle to the actor that this code runs in."""
    runtime = get_runtime()
    executor = runtime.executor
    if executor is None or executor.actor is None:
        raise RuntimeError("this code does not run in an actor.")
    start = executor.actor.start
    owner = b"" if start.info.detached else start.owner
    ref = runtime.actors.borrow(start.create.actor, owner)
    return Actor(start.create.actor, owner, start.info.about, ref)


def list_named_actors(all_namespaces: bool = False) -> list[Any]:
    """Names of the living actors of this namespace; with `all_namespaces` dicts with "name" and "namespace".

    >>> skate.util.list_named_actors()
    """
    runtime = get_runtime()
    named = [actor for actor in runtime.query("actors") if actor["name"] and actor["state"] != "dead"]
    if all_namespaces:
        return [{"name": actor["name"], "namespace": actor["namespace"]} for actor in named]
    return [actor["name"] for actor in named if actor["namespace"] == runtime.welcome.namespace]
