"""An exception raised in a task, to bytes and back.

    worker                                                     whoever calls get()
    error ── pack_error ──► record (bytes) ── unpack_error ──► TaskError(ValueError)
                              │                                  is a TaskError and a ValueError
                              ├─ the exception, pickled          .cause    the exception itself
                              ├─ its names, str() and repr()     str()     the remote traceback, then the message
                              └─ a hop per task it went through  pickle    the same record again

Problem:  exceptions are bad travellers. Pickle calls the class with `args`, which fails (or silently garbles the
          message) as soon as a constructor takes anything else; one lock in an attribute makes the whole error
          unsendable; a class may not be importable where it arrives; and pickle drops the traceback.
Idea:     an exception is its class, its `__dict__`, and the values of its slots and of the fields that built-in classes
          keep in C (`args`, `errno`, `start`, …). All can be read and set from outside, so it is made again without
          its constructor. A class that defines its own pickling is asked first.
          When that fails the parts are sent one by one, and what arrives is a stand-in: a class of the same name below
          the nearest base that could be sent, with the same str(), repr(), and the attributes that could be sent.

Invariants, kept by tests/unit/test_errors_serialize.py:
- pack_error and unpack_error raise nothing, whatever the exception does when it is printed, pickled or subclassed.
- each unpack_error gives a new instance, so that errors raised by several get() do not share one growing traceback.
- nothing that would end the receiver arrives as itself: SystemExit in a task is a TaskError and no SystemExit.
- an error of the system (a SkateError that is no TaskError) that the runtime made arrives as itself. One that code of
  a task has raised, or has let pass, is a TaskError as well: a caller can tell its own actor's death from one inside.
- large arguments of an error are in its text in part (`error_text.py`): they are not printed as a whole.
- a long text, which is in the message, the traceback, the repr() and the pickle of an error, travels once.
- a record is not larger than `limits.error`: of an error that would be, the largest parts stay behind, and it says so.
"""

from __future__ import annotations

import builtins
import copyreg
import io
import pickle
import traceback
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, cast

from skate import exceptions
from skate._bounded_text import bounded_repr, cut
from skate._error_text import size as size_text
from skate._message_limits import limits
from skate._serialize.code import CodePickler
from skate._serialize.error_text import printable, repr_of, text_of
from skate.exceptions import SkateError, TaskError

# --- the record: what travels ----------------------------------------------------------------------------------------


class _Hop(NamedTuple):
    """A task that the error went through."""

    function_name: str
    pid: int
    node: str
    #: The traceback as text, in the first hop with the message and the chain of causes; frames only in the later ones.
    traceback: str


class _Record(NamedTuple):
    """All that is known of an error. Only text and bytes, so that it can be read where its class cannot be imported."""

    name: str
    qualname: str
    module: str
    #: The names of the class and its bases, e.g. ("app.Broken", "builtins.ValueError", …).
    ancestry: tuple[str, ...]
    text: str
    representation: str
    #: The exception, pickled; None when it cannot be.
    whole: bytes | None
    #: For a stand-in: the exception classes of the ancestry that can be pickled, nearest first.
    bases: tuple[bytes, ...]
    #: For a stand-in, when `whole` is None: attributes and fields by name, each pickled; the names of those that cannot
    #: be; and the arguments, each pickled or else as its repr().
    parts: dict[str, bytes]
    missing: tuple[str, ...]
    arguments: tuple[bytes | str, ...]
    #: Innermost first. When there are more than HOPS_MAX the middle ones are dropped and counted.
    hops: tuple[_Hop, ...]
    hops_dropped: int
    #: What add_note() was given, here or on the way; None when there are no notes.
    notes: tuple[str, ...] | None
    #: Parts that were too large to be sent, and how large.
    left_behind: tuple[str, ...] = ()


#: A recursion of tasks can be thousands deep; its two ends tell the story.
HOPS_MAX = 16

#: How Python begins a traceback.
TRACEBACK = "Traceback (most recent call last):"

#: Exceptions nested in each other deeper than this, of which none can be sent, are left out: a level doubles the work.
DEPTH_MAX = 5


#: From this length on a text is looked for in the whole record, to be sent once.
LONG_TEXT = 4096
#: Characters that are kept of each text of an error that is too large.
CUT_TEXT = 16 << 10
#: The first byte of a record without its repetitions; that of a pickle is 0x80.
_ONCE = b"\x01"


def _encode(record: _Record, long_texts: Iterable[str] = ()) -> bytes:
    # Pickle and not msgpack: texts may hold lone surrogates, e.g. of file names that are not UTF-8.
    data = pickle.dumps(record, protocol=5)
    if len(data) < 2 * LONG_TEXT:
        return data
    # A traceback ends with the text, without the newlines behind it.
    return _without_repetitions(data, {record.text, record.text.rstrip("\n"), *long_texts})


def _without_repetitions(data: bytes, texts: set[str]) -> bytes:
    """Pickle writes a text as UTF-8 in one piece, wherever it is in a value, so it can be found in the bytes."""
    repeated, saved = b"", 0
    for text in texts:
        if len(text) >= LONG_TEXT:
            encoded = text.encode("utf-8", "surrogatepass")
            saves = (data.count(encoded) - 1) * len(encoded)
            if saves > saved:
                repeated, saved = encoded, saves
    return _ONCE + pickle.dumps((repeated, data.split(repeated)), protocol=5) if repeated else data


def _decode(data: bytes) -> _Record:
    if data[:1] == _ONCE:
        repeated, pieces = pickle.loads(memoryview(data)[1:])
        data = repeated.join(pieces)
    return cast(_Record, pickle.loads(data))


# --- to bytes --------------------------------------------------------------------------------------------------------


def pack_error(error: BaseException, *, function_name: str, pid: int, node: str = "") -> bytes:
    """Make bytes of an error that the function raised. Called while `error.__traceback__` is still there."""
    if isinstance(error, _Received):
        # The error of another task passes through this one: what is known of it is kept as it came.
        record, text = _current_record(error), _attempt(_frames_of_user, error)
    elif isinstance(error, SkateError) and not isinstance(error, TaskError):
        record = _describe(error, frozenset())
        frames = _attempt(_frames_of_user, error)
        text = f"{TRACEBACK}\n{frames}\n{record.name}: {record.text}" if frames else ""
    else:
        record, text = _describe(error, frozenset()), _attempt(_traceback_text, error)
    record = _with_hop(record, _Hop(function_name, pid, node, text or ""))
    data = _encode(record, _long_arguments(error))
    if len(data) > limits.error:
        data = _encode(_reduced(record, error))
    return data


def _long_arguments(error: BaseException) -> list[str]:
    """The text of some errors is only made of their arguments: str(KeyError("x")) has quotes around it."""
    args = _attempt(lambda: error.args)
    return [each for each in args if type(each) is str] if type(args) is tuple else []


def _describe(error: BaseException, above: frozenset[int]) -> _Record:
    """The record of one exception. `above` are those of which it is a part, in case it refers back to them."""
    kind = type(error)
    above |= {id(error)}
    attributes, fields = _state_of(error)
    notes = attributes.get("__notes__")
    parts: dict[str, bytes | None] = {}
    arguments: tuple[bytes | str, ...] = ()
    too_large: dict[str, int] = {}
    whole = _pickle_whole(error, above)
    if whole is None:
        given = enumerate(fields.pop("args", ()))
        arguments = tuple(_loadable(each, above, f"args[{at}]", too_large) or _shown(each) for at, each in given)
        parts = {name: _loadable(value, above, name, too_large) for name, value in {**attributes, **fields}.items()}
    text = _attempt(text_of, error) or ""
    representation = _attempt(repr_of, error) or f"<{kind.__name__}>"
    if len(representation) > CUT_TEXT and text not in representation:
        representation = _cut(representation)  # the same text in another spelling would travel a second time
    classes = (_loadable(base, above) for base in kind.__mro__ if issubclass(base, BaseException))
    return _Record(
        name=kind.__name__,
        qualname=kind.__qualname__,
        module=kind.__module__,
        ancestry=tuple(f"{base.__module__}.{base.__qualname__}" for base in kind.__mro__),
        text=text,
        representation=representation,
        whole=whole,
        bases=tuple(data for data in classes if data),
        parts={name: data for name, data in parts.items() if data},
        missing=tuple(name for name, data in parts.items() if not data and name not in too_large),
        arguments=arguments,
        hops=(),
        hops_dropped=0,
        notes=tuple(map(str, notes)) if isinstance(notes, list) else None,
        left_behind=tuple(f"{name}, {size_text(size)}" for name, size in too_large.items()),
    )


def _reduced(record: _Record, error: BaseException) -> _Record:
    """The record of an error that is too large: its texts are cut, and its largest parts stay behind."""
    small = record._replace(
        text=_cut(record.text),
        representation=_cut(record.representation),
        hops=tuple(hop._replace(traceback=_cut(hop.traceback)) for hop in record.hops),
        notes=tuple(map(_cut, record.notes)) if record.notes is not None else None,
    )
    room = limits.error // 2
    if record.whole is not None and len(record.whole) <= room:
        return small._replace(left_behind=("part of its text",))
    pickled, arguments = _in_parts(record, error)
    left_behind: list[str] = []
    for position, argument in enumerate(arguments):
        if len(argument) > room:
            left_behind.append(f"args[{position}], {size_text(len(argument))}")
            given = _attempt(lambda position=position: _shown(error.args[position]))
            arguments[position] = given or "?"
        else:
            room -= len(argument)
    parts: dict[str, bytes] = {}
    for name, part in sorted(pickled.items(), key=lambda item: len(item[1] or b"")):
        if part is not None and len(part) > room:
            left_behind.append(f"{name}, {size_text(len(part))}")
        elif part is not None:
            parts[name] = part
            room -= len(part)
    return small._replace(
        whole=None,
        bases=tuple(data for data in record.bases if len(data) <= CUT_TEXT),
        parts=parts,
        missing=record.missing or tuple(name for name, part in pickled.items() if part is None),
        arguments=tuple(arguments),
        left_behind=(*record.left_behind, *left_behind) or ("part of its text",),
    )


def _in_parts(record: _Record, error: BaseException) -> tuple[dict[str, bytes | None], list[bytes | str]]:
    """Attributes and fields by name, pickled, and the arguments: as they came, if that is all there is of it."""
    if record.whole is None:
        return dict(record.parts), list(record.arguments)
    cause = error.__dict__["_skate_cause"] if isinstance(error, _Received) else error
    above = frozenset({id(cause)})
    attributes, fields = _state_of(cause)
    arguments = [_loadable(each, above) or _shown(each) for each in fields.pop("args", ())]
    return {name: _loadable(value, above) for name, value in {**attributes, **fields}.items()}, arguments


def _cut(text: str) -> str:
    return cut(text, CUT_TEXT)


def _shown(value: object) -> str:
    """Of an argument that cannot be sent."""
    return _attempt(bounded_repr, value, CUT_TEXT) or "?"


def _pickle_whole(error: BaseException, above: frozenset[int]) -> bytes | None:
    """The exception as one pickle that can be loaded again, or None.

    First as its class wants it; then made without its constructor; then with the exceptions inside it (causes, members
    of a group) described on their own, so that one of them that cannot be sent does not spoil the rest.
    """
    for pickler in (_AsTheClassWants, _ByParts, _ByPartsAlone):
        data = _attempt(_dumps, error, pickler, error, above)
        if isinstance(data, bytes) and isinstance(_attempt(pickle.loads, data), BaseException):
            return data
    return None


def _loadable(
    value: object, above: frozenset[int], name: str = "", too_large: dict[str, int] | None = None
) -> bytes | None:
    """The value pickled, if it can be loaded again. If it is too large for that, its size is noted under its name."""
    data = _attempt(_dumps, value, _ByPartsAlone, None, above)
    if isinstance(data, int) and too_large is not None:
        too_large[name] = data
    if not isinstance(data, bytes):
        return None
    return data if _attempt(lambda: (pickle.loads(data),)) is not None else None


def _dumps(value: object, pickler: type[_AsTheClassWants], top: object, above: frozenset[int]) -> bytes | int:
    """What is larger than an error may be is measured, and not kept: copies of it would cost seconds and memory."""
    file = _Measured()
    pickler(file, top, above).dump(value)
    return file.getvalue() if file.size <= limits.error else file.size


class _Measured(io.BytesIO):
    size = 0

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes  # an array of 64 KiB and more comes as a PickleBuffer, which has no len()
        self.size += size
        return super().write(data) if self.size <= limits.error else size


class _AsTheClassWants(CodePickler):
    """Pickles exceptions, wherever in the value, without their constructors unless the class has its own way."""

    def __init__(self, file: io.BytesIO, top: object, above: frozenset[int]) -> None:
        super().__init__(file, protocol=5)
        self._top = top
        self._above = above

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, BaseException) or isinstance(obj, (_Received, _StandIn)):
            return super().reducer_override(obj)
        return self.reduce_exception(obj)

    def reduce_exception(self, error: BaseException) -> Any:
        return NotImplemented if _pickles_itself(type(error)) else _reduce(error)


class _ByParts(_AsTheClassWants):
    """The same for all: the class's own way was tried, and what it made could not be loaded."""

    def reduce_exception(self, error: BaseException) -> Any:
        return _reduce(error)


class _ByPartsAlone(_AsTheClassWants):
    """Exceptions inside the one on top become records, which cannot fail."""

    def reduce_exception(self, error: BaseException) -> Any:
        if error is self._top:
            return _reduce(error)
        if id(error) in self._above or len(self._above) > DEPTH_MAX:
            raise pickle.PicklingError("exceptions refer to each other in a circle, or nest too deep")
        return _load, (_encode(_describe(error, self._above)),)


def _pickles_itself(kind: type[BaseException]) -> bool:
    methods = ("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__")
    # What built-in classes define there loses fields or calls constructors; what ours define is for plain pickle.
    theirs = (vars(base) for base in kind.__mro__ if base.__module__ not in ("builtins", exceptions.__name__))
    return kind in copyreg.dispatch_table or any(method in names for names in theirs for method in methods)


# --- an exception as its state ---------------------------------------------------------------------------------------

#: ExceptionGroup is the one built-in whose content can only be given when it is made. Python 3.10 has no such class.
_Group: Any = getattr(builtins, "BaseExceptionGroup", ())


def _state_of(error: BaseException) -> tuple[dict[str, Any], dict[str, Any]]:
    """Its attributes, and its fields: the slots of its classes and what built-in classes keep in C."""
    fields: dict[str, Any] = {}
    for base in reversed(type(error).__mro__[:-1]):  # Without object, whose one field is __class__.
        for name, field in _fields_of(base):
            try:
                value = field.__get__(error)
            except Exception:  # noqa: BLE001 - a slot never set, or whatever a class written in C raises
                continue
            if value is not None or not _reads_none_when_unset(error, base, name):
                fields[name] = value
    return dict(object.__getattribute__(error, "__dict__")), fields


def _reads_none_when_unset(error: BaseException, base: type, name: str) -> bool:
    # An unset field in C reads as None but is not the same: an OSError whose filename is set to None prints it.
    # OSError(None, "text") has set the first two, and prints as "[Errno None] text".
    given = base is OSError and name in ("errno", "strerror") and 2 <= len(error.args) <= 5
    return base.__module__ == "builtins" and not given


def _fields_of(base: type) -> Iterator[tuple[str, Any]]:
    for name, field in vars(base).items():
        if base is BaseException and name not in ("args", "__cause__"):
            continue  # Tracebacks and contexts stay behind: they hold frames, and the text tells what was in them.
        if base is AttributeError and name == "obj":
            continue  # The object that lacked the attribute may be anything, of any size; pickle leaves it behind too.
        if isinstance(field, (types.MemberDescriptorType, types.GetSetDescriptorType)) and name not in (
            "__dict__",
            "__weakref__",
        ):
            yield name, field


def _blank(kind: type[BaseException], fields: Mapping[str, Any]) -> BaseException:
    """An instance of the class on which no Python code of the class has run."""
    content = (fields["message"], list(fields["exceptions"])) if _Group and issubclass(kind, _Group) else ()
    for base in kind.__mro__:
        new = vars(base).get("__new__")
        if isinstance(new, types.BuiltinMethodType):  # The nearest class that is written in C: it lays out the memory.
            try:
                return cast(BaseException, new(kind, *content))
            except TypeError:  # MemoryError's is not for its subclasses
                continue
    raise TypeError(f"{kind} is not an exception class")  # Not reached: BaseException is one.


def _set_state(error: BaseException, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
    attributes, fields = state
    object.__getattribute__(error, "__dict__").update(attributes)
    for name, value in fields.items():
        try:
            # Not setattr: a frozen dataclass, for one, has a __setattr__ that refuses.
            object.__setattr__(error, name, value)
        except (AttributeError, TypeError):  # Read-only, as the members of a group are: set when it was made.
            continue


def _reduce(error: BaseException) -> tuple[Any, ...]:
    attributes, fields = _state_of(error)
    needed_first = (
        {"message": fields["message"], "exceptions": fields["exceptions"]} if isinstance(error, _Group) else {}
    )
    return _blank, (type(error), needed_first), (attributes, fields), None, None, _set_state


# --- tracebacks as text ----------------------------------------------------------------------------------------------

# Where frames of the runtime come from: modules of this package that users do not import. The libraries on top of it
# (skate/rl/…) are user code here.
_PRIVATE = __file__.rpartition("_serialize")[0] + "_"


def _is_ours(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith(_PRIVATE)


def _traceback_text(error: BaseException) -> str:
    """The traceback as Python prints it, with causes and members of groups, and without our frames above the user's."""
    top = traceback.TracebackException.from_exception(printable(error))
    # Whoever prints the arriving error prints its notes, too.
    top.__notes__ = None  # type: ignore[attr-defined]  # Python 3.11 and later
    waiting, seen = [top], set()
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        each.stack[:] = _without_ours_above(each.stack)
        members = getattr(each, "exceptions", None) or ()
        waiting += [other for other in (each.__cause__, each.__context__, *members) if other is not None]
    return "".join(top.format()).rstrip("\n")


def _without_ours_above(frames: list[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    first = next((index for index, frame in enumerate(frames) if not _is_ours(frame)), 0)
    return frames[first:]


def _frames_of_user(error: BaseException) -> str:
    """The frames by which an error from elsewhere came through this task, without ours above and below (as of get)."""
    frames = _without_ours_above(list(traceback.extract_tb(error.__traceback__)))
    last = next((index for index in reversed(range(len(frames))) if not _is_ours(frames[index])), -1)
    return "".join(traceback.StackSummary.from_list(frames[: last + 1]).format()).rstrip("\n")


def _with_hop(record: _Record, hop: _Hop) -> _Record:
    hops, dropped = [*record.hops, hop], record.hops_dropped
    if len(hops) > HOPS_MAX:
        del hops[HOPS_MAX // 2]
        dropped += 1
    return record._replace(hops=tuple(hops), hops_dropped=dropped)


def _place(hop: _Hop) -> str:
    process = f" in worker pid {hop.pid}" if hop.pid else ""
    return (
        (f"task {hop.function_name}" if hop.function_name else "a task")
        + process
        + (hop.node and f" on node {hop.node}")
    )


def _full_text(record: _Record) -> str:
    """The tracebacks of all hops, innermost first. Ends with the message."""
    if not record.hops:
        return record.text
    first, *others = record.hops
    missing = f" (sent without {', '.join(record.missing)}, which cannot be pickled)" if record.missing else ""
    if record.left_behind:
        missing += f" (sent without {'; '.join(record.left_behind)}: an error may have {size_text(limits.error)})"
    lines = [f"raised by {_place(first)}{missing}:", "", first.traceback or f"{record.name}: {record.text}"]
    summary = f"{record.name}: {record.text}".partition("\n")[0]
    for position, hop in enumerate(others, start=1):
        if record.hops_dropped and position == HOPS_MAX // 2:
            lines += ["", f"… {record.hops_dropped:,} more tasks …"]
        lines += ["", f"which reached {_place(hop)}:", "", TRACEBACK, hop.traceback, summary]
    return "\n".join(lines)


# --- and back --------------------------------------------------------------------------------------------------------


def unpack_error(data: bytes) -> BaseException:
    """Make the exception to raise where the value was asked for; a new one for each call."""
    record = _decode(data)
    cause = _revive(record)
    if isinstance(cause, SkateError) and not isinstance(cause, TaskError) and not record.hops[0].traceback:
        return cause  # The runtime made it: code of the task that raised it would have left frames.
    return _received(cause, record)


def _load(data: bytes) -> BaseException:
    """An exception that was described on its own."""
    return _revive(_decode(data))


def _revive(record: _Record) -> BaseException:
    if record.whole is not None:
        error = _attempt(pickle.loads, record.whole)
        if isinstance(error, BaseException):
            return error
    return _make_stand_in(record)


def _received(cause: BaseException, record: _Record) -> TaskError:
    attributes, fields = _state_of(cause)
    made: BaseException | None = None
    for kind in (_class_for(type(cause)), _plain_class_for(type(cause))):
        made = _attempt(_blank, kind, fields)
        if made is not None:
            break
    assert isinstance(made, _Received)  # The plain class can always be made.
    _set_state(made, (attributes, fields))
    text = _full_text(record)
    own = object.__getattribute__(made, "__dict__")
    first = record.hops[0]
    for name, value in (("function_name", first.function_name), ("pid", first.pid), ("node", first.node)):
        own.setdefault(name, value)
    own.setdefault("remote_traceback", text)
    own.update(_skate_cause=cause, _skate_text=text, _skate_record=record)
    if record.notes is not None:
        own["__notes__"] = list(record.notes)
    if isinstance(made, SyntaxError):
        # Python prints a SyntaxError from its fields and never asks for its str().
        own["__notes__"] = [*own.get("__notes__", ()), text]
    return made


class _Received(TaskError):
    """A TaskError made from a record. Pickled and copied as that record, whatever the user's class says about it."""

    _skate_record: _Record

    def __reduce_ex__(self, protocol: Any) -> tuple[Callable[..., BaseException], tuple[bytes]]:
        return unpack_error, (_encode(_current_record(self), _long_arguments(self)),)


def _current_record(error: _Received) -> _Record:
    """Its record, with the notes that were added since it came."""
    notes = error.__dict__.get("__notes__") or ()
    if isinstance(error, SyntaxError):
        notes = [note for note in notes if note != str(error)]
    record: _Record = error.__dict__["_skate_record"]
    return record._replace(notes=tuple(map(str, notes)) or None)


#: These act on who receives them and not only on who looks for them: SystemExit ends the program, StopIteration
#: silently ends the loop or the map() around a get(). They arrive as TaskError only, as does what is no Exception.
_ACT_ON_THE_RECEIVER = (SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration, StopAsyncIteration)

# Two threads may make the class at once; then there are two, and isinstance sees no difference between them. A lock
# would be worse: a process forked while it is held could never receive an error again.
_classes: weakref.WeakValueDictionary[type[BaseException], type[_Received]] = weakref.WeakValueDictionary()


def _class_for(kind: type[BaseException]) -> type[_Received]:
    """The class that is both TaskError and `kind`, made once; a TaskError only where that cannot or should not be."""
    made = _attempt(_classes.get, kind)
    if made is None:
        if issubclass(kind, Exception) and not issubclass(kind, _ACT_ON_THE_RECEIVER):
            made = _attempt(_make_class, f"TaskError({kind.__name__})", (_Received, kind))
        made = made or _plain_class_for(kind)
        _attempt(_classes.__setitem__, kind, made)
    return cast(type[_Received], made)


def _plain_class_for(kind: type[BaseException]) -> type[_Received]:
    return _make_class(f"TaskError({kind.__name__})", (_Received,))


def _make_class(name: str, bases: tuple[type, ...]) -> type[_Received]:
    # new_class finds the metaclass of the bases; type() would not call its __init__.
    names = {"__module__": exceptions.__name__, "__qualname__": name, "__doc__": TaskError.__doc__}
    return cast(type[_Received], types.new_class(name, bases, exec_body=lambda body: body.update(names)))


# --- stand-ins -------------------------------------------------------------------------------------------------------


class _StandIn:
    """What arrives for an exception that could not be sent. Its class bears the name of the original's.

    `stand_in_for` is the full name of the original's class, `stand_in_ancestry` the names of that class and its bases.
    """

    stand_in_for: str
    stand_in_ancestry: tuple[str, ...]
    _skate_stand_in: _Record

    def __str__(self) -> str:
        return self._skate_stand_in.text

    def __repr__(self) -> str:
        return self._skate_stand_in.representation

    def __reduce_ex__(self, protocol: Any) -> tuple[Callable[..., BaseException], tuple[bytes]]:
        return _load, (_encode(self._skate_stand_in),)


class _Unsendable:
    """In the place of an argument of an exception that cannot be sent: looks the same when it is printed."""

    def __init__(self, representation: str) -> None:
        self._representation = representation

    def __repr__(self) -> str:
        return self._representation


def _make_stand_in(record: _Record) -> BaseException:
    parts = {name: _attempt(pickle.loads, data) for name, data in record.parts.items()}
    parts["args"] = tuple(
        _Unsendable(each) if isinstance(each, str) else _attempt(pickle.loads, each) for each in record.arguments
    )
    bases = [_attempt(pickle.loads, data) for data in record.bases]
    for base in (*bases, Exception):
        if base is not None:
            made: BaseException | None = _attempt(_stand_in_below, base, record, parts)
            if made is not None:
                return made
    raise AssertionError("a stand-in below Exception can always be made")


def _stand_in_below(base: type[BaseException], record: _Record, parts: dict[str, Any]) -> BaseException:
    names = {"__module__": record.module, "__qualname__": record.qualname}
    kind = types.new_class(record.name, (_StandIn, base), exec_body=lambda body: body.update(names))
    error = _blank(kind, parts)
    _set_state(error, ({}, parts))
    object.__getattribute__(error, "__dict__").update(
        stand_in_for=f"{record.module}.{record.qualname}",
        stand_in_ancestry=record.ancestry,
        _skate_stand_in=record,
    )
    return error


def _attempt(function: Callable[..., Any], /, *args: Any) -> Any:
    """What the function returns, or None if it raises: code of the user's class may run in it and do anything."""
    try:
        return function(*args)
    except Exception:  # noqa: BLE001 - see above
        return None
