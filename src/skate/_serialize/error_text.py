"""The text of an exception whose arguments are large, without printing all of them.

Problem:   `raise ValueError([bytes(300_000_000)])` has a text of 1.2 GB, and Python makes it again for `str`, `repr`
           and the traceback, which takes most of a minute.
Idea:      built-in classes make their text of the arguments, which say how large they are (`_bounded_text.py`). If they
           are large, and not simply one text that can be sent, they are shown in part. In a traceback a twin of the
           same name, which has that text, is in the place of such an exception.
Owns:      nothing. A class with a `__str__` of its own is asked, and prints what it likes.
"""

from __future__ import annotations

import builtins
import types
from collections.abc import Callable
from typing import Any, cast

from skate._bounded_text import bounded_repr, cut, is_large
from skate._message_limits import limits

#: Arguments that are larger, in characters, are shown in part: so much of them.
LARGE = 1 << 20
SHOWN = 16 << 10

#: Python 3.10 has no such class.
_Group: Any = getattr(builtins, "BaseExceptionGroup", ())
#: The text of these is not made of all of their arguments.
_OF_FIELDS = (UnicodeError, SyntaxError, *([_Group] if _Group else []))
#: Methods of values whose `str` is their `repr`.
_SAME: tuple[Any, ...] = (object.__str__, bytes.__str__, BaseException.__str__)


def text_of(error: BaseException) -> str:
    """`str(error)`, or what stands for it."""
    if not is_shown_in_part(error):
        return str(error)
    args = error.args
    if len(args) == 1 and isinstance(args[0], str):
        return cut(args[0], SHOWN)
    return bounded_repr(args[0] if len(args) == 1 else args, SHOWN)


def repr_of(error: BaseException) -> str:
    kind, args = type(error), error.args
    if kind.__repr__ is not BaseException.__repr__ or _is_text(args) or not is_large(args, LARGE):
        return repr(error)
    shown = bounded_repr(args, SHOWN)
    return f"{kind.__name__}{shown[:-2] + ')' if len(args) == 1 else shown}"


def is_shown_in_part(error: BaseException) -> bool:
    """Its text is made of arguments that are large, and are not the text themselves."""
    args = error.args
    if type(args) is not tuple or not args or isinstance(error, _OF_FIELDS):
        return False
    if not _is_built_in(type(error).__str__) or not is_large(args, LARGE):
        return False
    if len(args) > 1:
        return True
    return not _is_text(args) and (isinstance(args[0], str) or type(args[0]).__str__ in _SAME)


def _is_text(args: tuple[Any, ...]) -> bool:
    """There is nothing but a text, and that can be sent."""
    return len(args) == 1 and isinstance(args[0], str) and len(args[0]) <= limits.error


def _is_built_in(method: Callable[..., Any]) -> bool:
    return getattr(getattr(method, "__objclass__", None), "__module__", "") == "builtins"


def printable(error: BaseException) -> BaseException:
    """The exception, or a twin to print in its place if its text, or that of one of its causes, is shown in part."""
    return _twin(error, {})


def _twin(error: BaseException, twins: dict[int, BaseException]) -> BaseException:
    if id(error) in twins:
        return twins[id(error)]
    if not any(map(is_shown_in_part, _all_of(error))):
        return error
    kind, text = type(error), text_of(error)
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__str__": lambda self: text}
    members = [_twin(each, twins) for each in error.exceptions] if isinstance(error, _Group) else []
    twin = types.new_class(
        kind.__name__, (_Group if members else Exception,), exec_body=lambda body: body.update(names)
    )
    made = twins[id(error)] = cast(BaseException, twin(text, members) if members else twin())
    made.__traceback__ = error.__traceback__
    made.__context__ = None if error.__context__ is None else _twin(error.__context__, twins)
    made.__cause__ = None if error.__cause__ is None else _twin(error.__cause__, twins)
    made.__suppress_context__ = error.__suppress_context__
    if hasattr(error, "__notes__"):
        made.__dict__["__notes__"] = error.__notes__
    return made


def _all_of(error: BaseException) -> list[BaseException]:
    """It, its causes, and the members of groups."""
    found: dict[int, BaseException] = {}
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is not None and id(each) not in found:
            found[id(each)] = each
            waiting += [each.__cause__, each.__context__]
            if isinstance(each, _Group):
                waiting += each.exceptions
    return list(found.values())
