"""Functions as they travel: pickled once by the owner, loaded once by each executor.

A function's id is the hash of its pickled definition (and of where else its modules are looked for, if its owner has
added to that since it started), so a function redefined under the same name is another function, and the same function
sent by two owners is loaded once.

    ExportedFunctions, of an owner ──with the first task──▶ LoadedFunctions, of an executor
                                   ──a moment later───────▶ the control service, from where actors get their classes
"""

from __future__ import annotations

import copyreg
import functools
import inspect
import io
import sys
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from skate._core.ids import function_id
from skate._core.task import RefInfo
from skate._message_limits import limits
from skate._object_ref import ObjectRef, collecting_refs
from skate._serialize.diagnose import explain_unpicklable, largest_captures
from skate._wire.messages import Define, Message, Needs, Undefine
from skate._worker.surroundings import job_path, late_ray_version, module_path, use_ray_version
from skate.exceptions import MessageTooLargeError

#: Above this size a definition most likely captured data that should have been put into the object store.
LARGE_DEFINITION_BYTES = 1 << 20
#: What a captured reference takes beside the definition.
REFERENCE_BYTES = 40


def _load_cached_property(function: Callable[[Any], Any], name: str | None) -> functools.cached_property[Any]:
    made = functools.cached_property(function)
    made.attrname = name  # which is said once, when a class is made by its statement
    return made


# Before Python 3.12 it has a lock, and a class of __main__ with one could not be sent.
copyreg.pickle(functools.cached_property, lambda made: (_load_cached_property, (made.func, made.attrname)))


class Function:
    """A remote function, as its owner keeps it."""

    __slots__ = ("__weakref__", "define", "id", "name", "parameters", "refs")

    def __init__(
        self, name: str, definition: bytes, refs: list[ObjectRef[Any]], parameters: tuple[str, ...] = ()
    ) -> None:
        path = [path for path in module_path() if path not in job_path]
        version = late_ray_version()
        self.id = function_id(definition, [*path, f"ray {version}"] if version else path)
        self.name = name
        #: Names of its positional parameters, as far as they are known.
        self.parameters = parameters
        #: What the function captured: kept alive as long as the function.
        self.refs = refs
        #: The message that makes it known to an executor.
        infos = [RefInfo(ref._id, ref._owner) for ref in refs]
        self.define = Define(self.id, name, definition, infos, path, version)


def export_function(function: Callable[..., Any], name: str) -> Function:
    """Pickle a function by value if it has to be (`__main__`, closures, lambdas), by reference otherwise."""
    from skate._serialize.code import CodePickler
    from skate._serialize.patches import with_patches

    kind, user = ("class", "actor") if isinstance(function, type) else ("function", "worker")
    with collecting_refs() as refs, io.BytesIO() as file:
        try:
            CodePickler(file, protocol=5).dump(with_patches(function) if isinstance(function, type) else function)
        except Exception as error:
            raise explain_unpicklable(function, error, what=f"the remote {kind} {name}") from error
        definition = file.getvalue()
    size = len(definition) + REFERENCE_BYTES * len(refs)
    if size > limits.definition:
        raise MessageTooLargeError(
            what=f"the remote {kind} {name}, which captures {largest_captures(function)},",
            size_bytes=size,
            limit_bytes=limits.definition,
            next="put large objects into the object store once, and pass the reference as an argument: "
            "ref = skate.put(value); f.remote(ref).",
        )
    if len(definition) > LARGE_DEFINITION_BYTES:
        warnings.warn(
            f"The remote {kind} {name} is {len(definition) / 2**20:.1f} MB when pickled, because it captures "
            f"{largest_captures(function)}. It is sent to every {user}. Put large objects into the object store once "
            "and pass the reference as an argument: ref = skate.put(value); f.remote(ref).",
            stacklevel=_frames_of_ours(),
        )
    return Function(name, definition, refs, _parameters(function))


def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names of those that may be given by position, without the instance."""
    is_class = isinstance(function, type)
    code = getattr(function.__init__ if is_class else function, "__code__", None)
    first = is_class or inspect.ismethod(function)
    return code.co_varnames[first : code.co_argcount] if code is not None else ()


def _frames_of_ours() -> int:
    """How far up the stack the user's code is, as `warnings.warn` counts in the function that called this."""
    package = __name__.partition(".")[0]
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == package:
        depth, frame = depth + 1, frame.f_back
    return depth


class LoadedFunctions:
    """Functions that an executor has received; unpickled when the first task runs, not when they arrive."""

    def __init__(self) -> None:
        self._definitions: dict[bytes, Define] = {}
        self._loaded: dict[bytes, Callable[..., Any]] = {}
        #: The function if it has been unpickled.
        self.loaded = self._loaded.get
        #: Who defined it: two owners may send the same function.
        self._owners: dict[bytes, set[bytes]] = {}
        self._method: Callable[[bytes], Callable[..., Any]] | None = None
        self._method_name: Callable[[bytes], str] | None = None
        self._method_names: dict[bytes, str] = {}
        #: Functions whose definitions were too large to be taken, and why.
        self._refused: dict[bytes, str] = {}

    def refuse(self, fn: bytes, reason: str) -> None:
        """Tasks of that function fail."""
        self._refused[fn] = reason

    def add(self, define: Define, owner: bytes) -> bool:
        """Whether it was new."""
        owners = self._owners.setdefault(define.fn, set())
        owners.add(owner)
        return self._definitions.setdefault(define.fn, define) is define

    def remove(self, fn: bytes, owner: bytes) -> list[RefInfo]:
        """One owner does not need it any more; the references that it captured, if it is forgotten."""
        owners = self._owners.get(fn)
        if owners is None:
            return []
        owners.discard(owner)
        if owners:
            return []
        del self._owners[fn]
        self._loaded.pop(fn, None)
        return self._definitions.pop(fn).refs

    def remove_all_of(self, owner: bytes) -> list[RefInfo]:
        """It is gone."""
        fns = [fn for fn, owners in self._owners.items() if owner in owners]
        return [ref for fn in fns for ref in self.remove(fn, owner)]

    def name(self, fn: bytes) -> str:
        definition = self._definitions.get(fn)
        if definition is not None:
            return definition.name
        name = self._method_names.get(fn)
        if name is None and self._method_name is not None:
            name = self._method_names[fn] = self._method_name(fn)
        return name or fn.hex()[:8]

    def serve(self, method: Callable[[bytes], Callable[..., Any]], name: Callable[[bytes], str]) -> None:
        """What has no definition is a method of the actor that this process has become.

        Its name is asked for apart from it: a call of a method that the actor does not have fails under that name.
        """
        self._method, self._method_name = method, name

    def serve_nobody(self) -> None:
        """The actor is over: nothing here keeps its instance."""
        self._method = None
        for fn in [fn for fn in self._loaded if fn not in self._definitions]:
            del self._loaded[fn]

    def load(self, fn: bytes) -> Callable[..., Any]:
        import pickle

        if self._method is not None and fn not in self._definitions:
            self._loaded[fn] = self._method(fn)
            return self._loaded[fn]
        if fn in self._refused:
            raise MessageTooLargeError(f"the remote function was not received: {self._refused[fn]}.")
        define = self._definitions[fn]
        sys.path.extend(path for path in define.sys_path if path not in sys.path)
        use_ray_version(define.ray_version)
        function: Callable[..., Any] = pickle.loads(define.definition)
        self._loaded[fn] = function
        return function


class ExportedFunctions:
    """The functions of an owner, each for as long as somebody may call it. With the runtime's lock held."""

    def __init__(self, send: Callable[[Message], None]) -> None:
        #: To the daemon, which keeps them for the cluster, or passes them on to the control service.
        self._send = send
        self._known: weakref.WeakValueDictionary[bytes, Function] = weakref.WeakValueDictionary()
        #: Those whose last user is gone; a finalizer only appends.
        self.retired: deque[bytes] = deque()
        #: What the control service is to be told of, and what it was told.
        self._untold: list[bytes] = []
        self._told: set[bytes] = set()

    def add(self, function: Function) -> Function:
        """The one record of it: executors forget it when that is gone."""
        known = self._known.setdefault(function.id, function)
        if known is function:
            weakref.finalize(function, self.retired.append, function.id).atexit = False
            # What captured a lot of data is told only where it has to be known.
            if len(function.define.definition) <= LARGE_DEFINITION_BYTES:
                self._untold.append(function.id)
        return known

    def tell(self, function: Function) -> None:
        """The control service is to know it now."""
        if function.id not in self._told:
            self._told.add(function.id)
            self._send(function.define)

    def tell_all(self) -> None:
        """Of those that were not over at once."""
        untold, self._untold = self._untold, []
        for fn in untold:
            function = self._known.get(fn)
            if function is not None:
                self.tell(function)

    def say_again(self) -> None:
        """To a control service that was started again: which functions this process needs. It has stored them."""
        self._send(Needs(sorted(self._told)))  # also if there are none: it waits for all who were there before

    def take_retired(self) -> list[bytes]:
        """Those that nobody can call any more. The same function may have been defined again since."""
        retired = [self.retired.popleft() for _ in range(len(self.retired))]
        fns = [fn for fn in retired if fn not in self._known]
        told = [fn for fn in fns if fn in self._told]
        if told:
            self._told.difference_update(told)
            self._send(Undefine(told))
        return fns
