"""What the signature of a method says about its routes: which arguments come from where in a request.

    where an argument comes from        which parameters
    the path                            those that the path names in braces
    the body, JSON or MessagePack       one struct, dataclass, TypedDict, NamedTuple, attrs class, list or dict
    the raw body                        bytes
    the request, the socket             starlette's Request and WebSocket, our WebSocket, or an unannotated `request`
    the query                           every other one: str, int, float, bool, enums, dates, and these or None;
                                        in GET requests and websockets also lists, sets and tuples of such: ?x=1&x=2

Annotations may be text (`from __future__ import annotations`). Their meaning is looked up as early as possible and kept
on the function, because a function that travels to another process by value leaves the names around it behind.
"""

from __future__ import annotations

import copyreg
import enum
import inspect
import re
import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

import msgspec
import msgspec.inspect as types

from skate.serve.sockets import WebSocket

#: Where the decorators keep the routes of a function, each with its number, and what its annotations mean.
NOTES = "__skate_routes__"
HINTS = "__skate_hints__"

WEBSOCKET = "WEBSOCKET"
REQUIRED = inspect.Parameter.empty


def _reduce_meta(meta: msgspec.Meta) -> tuple[Any, ...]:
    fields = ((name, getattr(meta, name)) for name in _META_FIELDS)
    return partial(msgspec.Meta, **{name: value for name, value in fields if value is not None}), ()


_META_FIELDS = [name for name in dir(msgspec.Meta) if not name.startswith("_")]
# msgspec gives the constraints of `Annotated[int, Meta(ge=1)]` no way to be pickled, and routes travel with them.
copyreg.pickle(msgspec.Meta, _reduce_meta)

#: Types whose values are too large for a query: they come as the body.
_BODY_TYPES = (
    types.StructType,
    types.DataclassType,
    types.TypedDictType,
    types.NamedTupleType,
    types.ListType,
    types.SetType,
    types.FrozenSetType,
    types.TupleType,
    types.VarTupleType,
    types.CollectionType,
    types.DictType,
    types.RawType,
)

#: Of these, what may be a parameter of the query that is repeated.
_COLLECTIONS = (types.ListType, types.SetType, types.FrozenSetType, types.VarTupleType, types.CollectionType)
#: Their requests have no body as a rule.
_WITHOUT_BODY = ("GET", WEBSOCKET)

_BRACES = re.compile(r"\{(?P<name>[^{}:]*)(?P<rest>:path)?\}")


class Source(enum.Enum):
    """Where an argument of a handler comes from."""

    PATH = "path"
    QUERY = "query"
    BODY = "body"
    RAW_BODY = "raw body"
    REQUEST = "request"
    SOCKET = "socket"
    STARLETTE_SOCKET = "starlette socket"


_SOCKETS = (Source.SOCKET, Source.STARLETTE_SOCKET)
_BODIES = (Source.BODY, Source.RAW_BODY)


@dataclass(frozen=True)
class Parameter:
    """A parameter of a handler, and where its argument comes from."""

    name: str
    source: Source
    annotation: Any
    default: Any = REQUIRED
    keyword_only: bool = False


@dataclass(frozen=True)
class Route:
    """One way to call a method from outside. Routes can be pickled."""

    method: str
    path: str
    #: The name of the method, and how errors name it: `Api.act`.
    name: str
    handler: str
    parameters: tuple[Parameter, ...]
    returns: Any
    description: str
    #: Whether the method is a generator.
    yields: bool = False


def pattern_of(path: str) -> re.Pattern[str]:
    """The regular expression of a path. Braces name a part without slashes, `{name:path}` all the rest."""
    if not path.startswith("/"):
        raise ValueError(f'the path of a route begins with "/": write "/{path}" instead of "{path}".')
    pattern, end, seen = "", 0, set()
    for part in _BRACES.finditer(path):
        name = part["name"]
        if not name.isidentifier() or name in seen:
            break
        seen.add(name)
        pattern += re.escape(path[end : part.start()]) + f"(?P<{name}>{'.*' if part['rest'] else '[^/]+'})"
        end = part.end()
    if "{" in path[end:] or "}" in path[end:]:
        raise ValueError(
            f'the braces in the path "{path}" cannot be read.\n'
            "  why:  each pair of braces holds the name of a parameter of the method, once: {name}, or {name:path} for "
            "all the rest of the path. Types stand in the annotations of the method."
        )
    # A decoded path may hold line breaks.
    return re.compile(pattern + re.escape(path[end:]), re.DOTALL)


def routes_of(cls: type) -> list[Route]:
    """The routes of a class, in the order of its definition. A method that overrides one with routes keeps them.

    Call this before the class is pickled: the types that annotations name are then kept on the functions, and go along.
    """
    notes: dict[str, tuple[tuple[str, str, int], ...]] = {}
    for each in reversed(cls.__mro__):
        here: dict[str, tuple[tuple[str, str, int], ...]] = {}
        for name, value in vars(each).items():
            found = getattr(value, "__dict__", {}).get(NOTES)
            if found:
                here[name] = found
            elif hasattr(getattr(value, "__func__", None), NOTES):
                raise TypeError(f"{each.__name__}.{name} has a route, and is no method.\n  next: remove {type(value)}.")
        # The numbers of another class may be those of another process.
        notes |= sorted(here.items(), key=lambda item: item[1][0][2])
    routes = []
    taken: dict[tuple[str, str], str] = {}
    for name, pairs in notes.items():
        function = getattr(cls, name)
        if not callable(function):
            continue
        for method, path, _ in pairs:
            handler = f"{cls.__name__}.{name}"
            shape = (method, _BRACES.sub(r"{\g<rest>}", path))
            if shape in taken:
                raise ValueError(
                    f"two methods answer {method} {path}: {taken[shape]} and {handler}.\n"
                    "  next: give one of them another path."
                )
            taken[shape] = handler
            routes.append(_read(cls, name, function, method, path))
    return routes


def _read(cls: type, name: str, function: Callable[..., Any], method: str, path: str) -> Route:
    handler = f"{cls.__name__}.{name}"
    if method == WEBSOCKET and not inspect.iscoroutinefunction(function):
        raise TypeError(f"{handler} serves a websocket: write `async def {name}(self, socket)`.")
    hints = hints_of(function, {**vars(sys.modules.get(cls.__module__, typing)), **vars(cls), cls.__name__: cls})
    try:
        setattr(function, HINTS, hints)
    except AttributeError:
        # What a decorator made of the method takes no attributes. Only its travels need them.
        pass
    in_path = pattern_of(path).groupindex
    parameters: list[Parameter] = []
    for each in list(inspect.signature(function).parameters.values())[1:]:
        where = f"parameter {each.name} of {handler}"
        if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
            raise TypeError(f"{where} takes any arguments.\n  next: name each parameter that a request may give.")
        annotation = hints.get(each.name, each.annotation)
        source = _source(each.name, annotation, where, in_path, method, parameters)
        if annotation is REQUIRED or isinstance(annotation, str):
            annotation = str
        if source in _BODIES and any(other.source in _BODIES for other in parameters):
            raise TypeError(f"{where} would be the second body.\n  next: put both into one msgspec.Struct.")
        parameters.append(Parameter(each.name, source, annotation, each.default, each.kind is each.KEYWORD_ONLY))
    missing = sorted(set(in_path) - {each.name for each in parameters})
    if missing:
        raise TypeError(
            f'the path "{path}" names {missing[0]}, and {handler} has no such parameter.\n'
            f"  next: write `def {name}(self, {missing[0]}: str)`, or take it out of the path."
        )
    if method == WEBSOCKET and not any(each.source in _SOCKETS for each in parameters):
        raise TypeError(f"{handler} takes no socket: write `async def {name}(self, socket)`.")
    returns = hints.get("return", Any)
    description = inspect.cleandoc(function.__doc__ or "")
    yields = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
    return Route(method, path, name, handler, tuple(parameters), returns, description, yields)


def _source(
    name: str, annotation: Any, where: str, in_path: Mapping[str, int], method: str, before: list[Parameter]
) -> Source:
    """Where the argument for a parameter comes from."""
    if name in in_path:
        return Source.PATH
    source = _from_connection(name, annotation)
    if source is None and method == WEBSOCKET and annotation in (REQUIRED, Any):
        source = None if any(each.source in _SOCKETS for each in before) else Source.SOCKET
    if source is None:
        source = _from_data(annotation, where)
        if source is Source.BODY and method in _WITHOUT_BODY and is_repeated(annotation):
            source = Source.QUERY
    if (source in _SOCKETS) != (method == WEBSOCKET) and source not in (Source.PATH, Source.QUERY):
        kind = "a websocket" if method == WEBSOCKET else f"{method} requests"
        raise TypeError(f"{where} would be the {source.value}, and a handler of {kind} has none.")
    return source


def _from_connection(name: str, annotation: Any) -> Source | None:
    """The source of a parameter that is the request or the socket itself; None for any other parameter."""
    if annotation is REQUIRED:
        return Source.REQUEST if name == "request" else None
    if isinstance(annotation, str):
        # A type that is imported for type checkers only.
        last = annotation.strip("'\"").rpartition(".")[2]
        starlette = "starlette" in annotation or "fastapi" in annotation
        socket = Source.STARLETTE_SOCKET if starlette else Source.SOCKET
        by_name = Source.REQUEST if name == "request" else None
        return {"Request": Source.REQUEST, "WebSocket": socket}.get(last, by_name)
    if not isinstance(annotation, type):
        return None
    if issubclass(annotation, WebSocket):
        return Source.SOCKET
    for module, kind, source in (
        ("starlette.requests", "Request", Source.REQUEST),
        ("starlette.websockets", "WebSocket", Source.STARLETTE_SOCKET),
    ):
        if module in sys.modules and issubclass(annotation, getattr(sys.modules[module], kind)):
            return source
    return None


def _from_data(annotation: Any, where: str) -> Source:
    """The source of a parameter that is data: the body or the query, by its type."""
    if annotation is REQUIRED:
        return Source.QUERY
    if annotation is bytes:
        return Source.RAW_BODY
    if isinstance(annotation, str):
        raise TypeError(
            f"{where}: the annotation {annotation!r} cannot be resolved.\n"
            "  why:  annotations are text in a module with `from __future__ import annotations`, and no type of this "
            "name is known where the class is defined.\n"
            "  next: define or import the type at the top of the module, or remove that import."
        )
    try:
        kind = types.type_info(annotation)
    except TypeError as error:
        raise TypeError(f"{where}: {annotation!r} cannot be read from a request.\n  why:  {error}.") from None
    members = _members(kind)
    if any(isinstance(each, types.CustomType) for each in members):
        raise TypeError(
            f"{where}: {annotation!r} cannot be read from a request.\n"
            "  next: use a msgspec.Struct or a dataclass for the body, str, int, float or bool for the query, bytes "
            "for the raw body, or starlette.requests.Request for everything."
        )
    return Source.BODY if any(isinstance(each, _BODY_TYPES) for each in members) else Source.QUERY


def is_repeated(annotation: Any) -> bool:
    """Whether values of a type are written in a query one by one: a list of numbers is, a list of lists is not."""
    if annotation is REQUIRED:
        return False
    members = _members(types.type_info(annotation))
    found = [each for each in members if isinstance(each, _BODY_TYPES)]
    return bool(found) and all(
        isinstance(each, _COLLECTIONS) and not any(isinstance(item, _BODY_TYPES) for item in _members(each.item_type))
        for each in found
    )


def _members(kind: types.Type) -> tuple[types.Type, ...]:
    """The types of a union; any other type alone."""
    return kind.types if isinstance(kind, types.UnionType) else (kind,)


def hints_of(function: Callable[..., Any], names: Mapping[str, Any]) -> dict[str, Any]:
    """What the annotations of a function mean. Those that cannot be resolved stay text."""
    known: Mapping[str, Any] = getattr(function, HINTS, {})
    try:
        annotations = dict(inspect.unwrap(function).__annotations__)
    except (AttributeError, NameError):
        # A callable object, or a forward reference where Python itself evaluates annotations late.
        return dict(known)
    scope = {**getattr(inspect.unwrap(function), "__globals__", {}), **names}
    hints: dict[str, Any] = {}
    for name, annotation in annotations.items():
        hints[name] = annotation
        if not isinstance(known.get(name, ""), str):
            hints[name] = known[name]
            continue

        def carrier() -> None: ...

        carrier.__annotations__ = {name: annotation}
        try:
            # One by one: a name that is unknown must not hide the others.
            hints[name] = typing.get_type_hints(carrier, scope, include_extras=True)[name]
        except (NameError, AttributeError, SyntaxError, TypeError):
            pass
    return hints


def names_around(function: Callable[..., Any]) -> dict[str, Any]:
    """The local names where a decorated function is defined: those of the class body, and of functions around it."""
    inner = inspect.unwrap(function)
    if not any(isinstance(each, str) for each in getattr(inner, "__annotations__", {}).values()):
        return {}
    around = getattr(inner, "__qualname__", "").split(".")
    names: dict[str, Any] = {}
    # Frames: this function, the decorator, the class body.
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_name in around:
        names = {**frame.f_locals, **names}
        frame = frame.f_back
    return names
