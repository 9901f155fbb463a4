"""Tasks whose arguments need work: references, large values, keywords, several returns.

References among the arguments are replaced by their values before the task is sent, now or when they are there;
references inside arguments stay references and are held until the task has ended. Large values go to the object store.

A large argument that is passed by value to many tasks is stored once:

    big = numpy.zeros(10_000_000)
    for i in range(1000):
        f.remote(big, i)        # one copy in shared memory, not a thousand

The object stored for a value is remembered for a moment. When the same value comes again, its bytes are compared with
what was stored: comparing costs no more than copying, and the answer is exact, so a value that was changed in between
is stored anew.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
import time
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, TypeAlias

from skate._core.ids import FIRST_RETURN, return_id
from skate._core.ownership import Entry, Pending
from skate._core.task import ALL_ARGUMENTS, Arg, Failure, RefInfo, Task
from skate._message_limits import limits
from skate._object_ref import NIL_SAYS, NilRef, ObjectRef
from skate._serialize.diagnose import explain_unpicklable, is_picklable
from skate._serialize.values import INLINE_BYTES_MAX, Serialized, is_plain, serialize

if TYPE_CHECKING:
    from skate._worker.actors import Creation, MethodCall
    from skate._worker.calls import Call
    from skate._worker.runtime import Runtime

    AnyCall: TypeAlias = Call | MethodCall | Creation

#: Values remembered at a time, and how long after their last use. Both small: each keeps an object in the store.
REMEMBERED_MAX = 16
REMEMBERED_S = 0.5

_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class StoredArguments:
    """Used with the runtime's lock held, except `same_bytes`."""

    def __init__(self) -> None:
        #: By identity of the value: a weak reference to it, what it was stored as, last use.
        self._known: OrderedDict[int, tuple[weakref.ref[Any], ObjectRef[Any], float]] = OrderedDict()

    def find(self, value: Any) -> ObjectRef[Any] | None:
        """What this very value was stored as a moment ago; its bytes may have changed since."""
        known = self._known.get(id(value))
        if known is None or known[0]() is not value:
            return None
        return known[1]

    def remember(self, value: Any, ref: ObjectRef[Any]) -> None:
        try:
            weak = weakref.ref(value)
        except TypeError:
            return
        self._known[id(value)] = (weak, ref, time.monotonic())
        self._known.move_to_end(id(value))
        while len(self._known) > REMEMBERED_MAX:
            self._known.popitem(last=False)

    def forget_old(self) -> None:
        if self._known:
            now = time.monotonic()
            for key, (weak, _, used) in list(self._known.items()):
                if now - used > REMEMBERED_S or weak() is None:
                    del self._known[key]

    def forget_all(self) -> None:
        self._known.clear()


def same_bytes(value: Serialized, stored: memoryview) -> bool:
    """Whether a serialised value is byte for byte what is stored."""
    numpy = sys.modules.get("numpy")
    if numpy is None or value.size != len(stored):
        return False

    def address(data: Any) -> int:
        return int(numpy.frombuffer(data, dtype="u1").ctypes.data)

    return all(
        not len(piece) or _memcmp(address(piece), address(stored[offset : offset + len(piece)]), len(piece)) == 0
        for offset, piece in value.pieces
    )


def _nil_argument(call: AnyCall, which: str) -> ValueError:
    return ValueError(
        f"{call.name}.remote(): the argument {which} is {NIL_SAYS}. A task is given the value of an argument that is a "
        "reference, and there is none; pass None, or put the reference inside a list."
    )


class Arguments:
    """The general case of submitting a task."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._stored = StoredArguments()
        self.forget_old = self._stored.forget_old
        self.forget_all = self._stored.forget_all

    def submit(self, call: AnyCall, args: tuple[Any, ...], kwargs: dict[str, Any], id: bytes = b"") -> Any:
        """The general case: references among the arguments or inside them, keywords, large values, several returns."""
        runtime = self._runtime
        extra = call.new_extra()
        refs: list[tuple[int | str, ObjectRef[Any]]] = []
        plain = list(args)
        for position, value in enumerate(plain):
            if isinstance(value, ObjectRef):
                if type(value) is NilRef:
                    name = call.parameters[position] if position < len(call.parameters) else ""
                    raise _nil_argument(call, f"{name!r}" if name else f"at position {position + 1}")
                refs.append((position, value))
                plain[position] = None
        if kwargs:
            kwargs = dict(kwargs)
            for name, value in kwargs.items():
                if isinstance(value, ObjectRef):
                    if type(value) is NilRef:
                        raise _nil_argument(call, f"{name!r}")
                    refs.append((name, value))
                    kwargs[name] = None
        serialized = self._serialize_args(call, plain, kwargs)
        if serialized.size > INLINE_BYTES_MAX:
            refs.extend(self._store_large(plain, kwargs, f"an argument of {call.name}"))
            serialized = self._serialize_args(call, plain, kwargs)
        nested = serialized.refs
        if serialized.size > INLINE_BYTES_MAX:  # many that are small
            refs.append((ALL_ARGUMENTS, ObjectRef(runtime.put_serialized(serialized), runtime.process_id)))
            payload = b""
            nested = ()  # they are inside that object
        else:
            payload = serialized.to_bytes()
        with runtime.lock:
            if runtime.broken:
                raise runtime.broken
            context = runtime.context
            table = runtime.table
            if call.link is not None and call.link.pending_max > 0:
                runtime.actors.check_limit(call.link)
            id = id or runtime.new_id(FIRST_RETURN)
            task = Task(id, call.fn, payload, context.depth, extra)
            pending = Pending(holds=[*(ref._id for _, ref in refs), *(ref._id for ref in nested)])
            for ref in itertools.chain((ref for _, ref in refs), nested):
                # The owner, in case that it is of an earlier runtime: what is not known here would pass for our own.
                table.hold(ref._id, b"" if ref._owner == runtime.process_id else ref._owner)
            extra.refs = [RefInfo(ref._id, ref._owner) for ref in nested]
            entry = Entry(1, int(call.holds_entry), None, b"", task, call, pending)
            table.entries[id] = entry
            for index in range(1, call.num_returns):
                table.entries[return_id(id, index)] = Entry(1, 1)
            if call.num_returns == 0:
                entry.refs = 0
            if call.generator == "streaming":
                pending.stream = runtime.streams.open(id)
            runtime.submitter.submitted += 1
            call.accept(task)
            self._resolve_args(entry, refs)
            if not pending.missing and entry.task is not None:
                self._ready(entry, task)
        if runtime.loop.dormant:
            runtime.loop.stir()
        return self._returned_refs(call, id)

    def _returned_refs(self, call: AnyCall, id: bytes) -> Any:
        runtime = self._runtime
        me = runtime.process_id
        if call.generator == "streaming":
            from skate._streaming import ObjectRefGenerator

            return ObjectRefGenerator(id)
        if call.num_returns == 1:
            return ObjectRef(id, me)
        if call.num_returns == 0:
            return None
        return [ObjectRef(return_id(id, index), me) for index in range(call.num_returns)]

    def _serialize_args(self, call: AnyCall, args: list[Any], kwargs: dict[str, Any]) -> Serialized:
        # A list marks keywords: a task without them carries its arguments as a tuple.
        everything = [tuple(args), kwargs] if kwargs else tuple(args)
        try:
            return serialize(everything)
        except Exception as error:
            names = [f"{name!r}" for name in call.parameters[: len(args)]]
            names += [f"at position {position}" for position in range(len(names) + 1, len(args) + 1)]
            for name, value in [*zip(names, args), *((f"{name!r}", value) for name, value in kwargs.items())]:
                if not is_picklable(value):
                    what = f"the argument {name} of {call.name}"
                    raise explain_unpicklable(value, error, what=what) from error
            raise explain_unpicklable(everything, error, what=f"an argument of {call.name}") from error

    def _store_large(
        self, args: list[Any], kwargs: dict[str, Any], what: str
    ) -> list[tuple[int | str, ObjectRef[Any]]]:
        """Move each large argument into the object store, in place."""
        moved: list[tuple[int | str, ObjectRef[Any]]] = []
        places: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
        for at, value in places:
            if is_plain(value) and type(value) not in (str, bytes, int):
                continue
            serialized = self._runtime.serialize(value, what=what)
            if serialized.size > INLINE_BYTES_MAX:
                if isinstance(at, int):
                    args[at] = None
                else:
                    kwargs[at] = None
                moved.append((at, self._store_argument(value, serialized)))
        return moved

    def _store_argument(self, original: Any, value: Serialized) -> ObjectRef[Any]:
        """A reference to the value in the store; what was stored for the same value before is used again."""
        runtime = self._runtime
        with runtime.lock:
            ref = self._stored.find(original)
            place = runtime.table.entries[ref._id].value if ref is not None else None
        if ref is not None and not value.refs:
            view = runtime.store.views([(ref._id, place)])[0] if isinstance(place, int) else None
            if view is None or not same_bytes(value, view):
                ref = None
        if ref is None:
            ref = ObjectRef(self._runtime.put_serialized(value), runtime.process_id)
        with runtime.lock:
            self._stored.remember(original, ref)
        return ref

    def _resolve_args(self, entry: Entry, refs: list[tuple[int | str, ObjectRef[Any]]]) -> None:
        """Put the values of arguments that are references into the task, now or when they are there."""
        runtime = self._runtime
        pending = entry.pending
        task = entry.task
        assert pending is not None
        assert task is not None
        assert task.extra is not None

        for at, ref in refs:
            arg = Arg(at, ref._id, ref._owner, b"")
            task.extra.args.append(arg)
            source = runtime.table.entries[ref._id]
            if source.value is not None:
                self._fill(entry, arg, source)
                if entry.task is None:
                    return  # an argument is an error: the task has failed
                continue
            pending.missing += 1

            def arrived(_: bytes, source: Entry, arg: Arg = arg) -> None:
                if entry.task is None:
                    return
                self._fill(entry, arg, source)
                pending.missing -= 1
                if not pending.missing and entry.task is not None:
                    self._ready(entry, entry.task)

            runtime.table.when_resolved(source, arrived)
            if source.owner:
                runtime.borrowing.fetch(ref._id, source)

    @staticmethod
    def _ready(entry: Entry, task: Task) -> None:
        """Everything is there. Of many values a part travels with the task, and the executor asks for the rest."""
        extra = task.extra
        if extra is not None and len(extra.args) * INLINE_BYTES_MAX > limits.inline:
            room = limits.inline
            for arg in extra.args:
                if isinstance(arg.value, bytes):
                    room -= len(arg.value)
                    if room < 0:
                        arg.value, arg.late = b"", True
        entry.call.ready(task)

    def _fill(self, entry: Entry, arg: Arg, source: Entry) -> None:
        runtime = self._runtime
        task = entry.task
        assert task is not None
        assert task.extra is not None
        value = source.value
        if type(value) is Failure:
            call = entry.call
            runtime.outcomes.fail_with(task.id, entry, value)
            call.gave_up(task, value)
            return
        assert isinstance(value, (bytes, int))
        arg.value = value
        if source.contained:
            task.extra.refs.extend(runtime.borrowing.describe(source.contained))
