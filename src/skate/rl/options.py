"""Options of algorithms: dataclasses with one line per setting, read from keywords, from JSON and from the shell.

    @dataclass(frozen=True)
    class PPOOptions:
        learning_rate: float = setting(3e-4, "step size of Adam", above=0)
        hidden: tuple[int, ...] = setting((64, 64), "sizes of the hidden layers", least=1)

A setting is a bool, int, float, str, Literal, a tuple of one of these, or one of these or None. Numbers have limits.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import json
import math
import operator
import os
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

_HOLDS: dict[str, Callable[[float, float], bool]] = {
    "above": operator.gt,
    "at least": operator.ge,
    "at most": operator.le,
}


def setting(
    default: T,
    text: str,
    *,
    above: float | None = None,
    least: float | str | None = None,
    most: float | None = None,
    infinite: bool = False,
) -> T:
    """A field of an options dataclass: its default, what it does in a few words for `--help`, and its limits.

    A limit can be the name of another setting.
    """
    limits = {"above": above, "at least": least, "at most": most}
    about = {"help": text, "limits": limits, "infinite": infinite}
    found: T = dataclasses.field(default=default, metadata=about)
    return found


def fields(kind: type) -> list[tuple[str, Any, Any, str]]:
    """Each setting of an options class: its name, type, default and text."""
    hints = get_type_hints(kind)
    return [(f.name, hints[f.name], f.default, f.metadata.get("help", "")) for f in dataclasses.fields(kind)]


def choose(kind: type[T], options: T | None, settings: Mapping[str, Any], resume: Any = None) -> T:
    """The options of a run: `options`, or those of the run that is resumed, or the defaults, changed by `settings`."""
    known = {name: hint for name, hint, _, _ in fields(kind)}
    for name in settings:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise TypeError(
                f"{kind.__name__} has no setting {name!r}{f'; did you mean {near[0]!r}?' if near else '.'}\n"
                f"  next: its settings are {', '.join(known)}."
            )
    if options is None and resume is not None:
        about = stored(resume)
        if kind.__name__.lower() not in ("options", f"{about['algorithm']}options"):
            raise ValueError(
                f"{resume} is a run of {about['algorithm']}, and its options are no {kind.__name__}.\n"
                f"  next: go on with {about['algorithm']}, or leave resume= out."
            )
        options = from_json(kind, about["options"])
    elif options is None:
        options = kind()
    elif not isinstance(options, kind):
        raise TypeError(f"options is a {type(options).__name__}, and it must be a {kind.__name__}.")
    values = {**{name: getattr(options, name) for name in known}, **settings}
    chosen = kind(**{name: check(f"{kind.__name__}.{name}", known[name], value) for name, value in values.items()})
    check_limits(chosen)
    return chosen


def whole(name: str, value: Any, least: int) -> int:
    """An argument as an int; 1e5 is one, and so is a number of numpy."""
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        if not isinstance(value, (str, bool)) and value == int(value) and value >= least:
            return int(value)
    raise ValueError(f"{name} is {value!r}, and it must be a whole number, at least {least}.")


def folder(name: str, value: Any) -> Path:
    """An argument that names a folder, as a path."""
    if not isinstance(value, (str, os.PathLike)) or isinstance(path := os.fspath(value), bytes):
        raise TypeError(f"{name} is {value!r}, and it must be a str or a Path: the folder of a run.")
    return Path(path)


def check_limits(options: Any) -> None:
    """Raise ValueError if a number is outside the limits of its setting, or is NaN or infinite."""
    kind = type(options).__name__
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        limits = {words: limit for words, limit in field.metadata.get("limits", {}).items() if limit is not None}
        others = {words: limit for words, limit in limits.items() if isinstance(limit, str)}
        limits |= {words: getattr(options, other) for words, other in others.items()}
        for number in value if isinstance(value, tuple) else (value,):
            if not isinstance(number, (int, float)) or isinstance(number, bool):
                continue
            finite = math.isfinite(number) or (field.metadata.get("infinite") and not math.isnan(number))
            if not finite or not all(_HOLDS[words](number, limit) for words, limit in limits.items()):
                words = [*([] if finite else ["finite"]), *(f"{words} {limit}" for words, limit in limits.items())]
                wanted = " and ".join(words) + "".join(f", which is {kind}.{other}" for other in others.values())
                raise ValueError(f"{kind}.{field.name} is {value!r}, and it must be {wanted}.")


def stored(path: Any) -> dict[str, Any]:
    """What the folder of a run says about it (`options.json`)."""
    file = folder("the run", path) / "options.json"
    try:
        about: Any = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(
            f"{path} is not the folder of a run: it has no options.json.\n"
            "  next: name a folder that train() made, such as runs/ppo-CartPole-v1-1."
        ) from None
    except ValueError as error:
        raise ValueError(f"{file} cannot be read: {error}. Something other than Skate has changed it.") from None
    if not isinstance(about, dict):
        raise ValueError(f"{file} does not describe a run: its text is no object.")
    kinds = {"algorithm": str, "env": str, "options": dict, "seed": int, "steps": int}
    if odd := [name for name, kind in kinds.items() if not isinstance(about.get(name), kind)]:
        raise ValueError(f"{file} does not describe a run: it lacks {', '.join(odd)}, or has something else there.")
    return about


def from_json(kind: type[T], values: Mapping[str, Any]) -> T:
    """Options as they were stored. A setting that did not exist then has its default."""
    hints = get_type_hints(kind)
    if unknown := sorted(values.keys() - hints.keys()):
        raise ValueError(
            f"the stored options have settings that {kind.__name__} has not: {', '.join(unknown)}.\n"
            "  why:  another version of the algorithm wrote them; options.json names the versions."
        )
    return kind(**{name: check(f"{kind.__name__}.{name}", hints[name], value) for name, value in values.items()})


def check(name: str, hint: Any, value: Any) -> Any:
    """The value as its type says: 1e5 is an int where one is wanted, a list of JSON is a tuple."""
    value = value.item() if type(value).__module__ == "numpy" and getattr(value, "shape", None) == () else value
    for kind in alternatives(hint):
        origin = get_origin(kind)
        if kind in (None, type(None)) and value is None:
            return None
        if origin is Literal and value in get_args(kind):
            return value
        if origin is tuple and isinstance(value, (list, tuple)):
            return tuple(check(name, get_args(kind)[0], element) for element in value)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if kind is int and number and float(value).is_integer():
            return int(value)
        if kind is float and number:
            return float(value)
        if kind in (bool, str) and isinstance(value, kind):
            return value
    wanted = describe(hint)
    for kind in alternatives(hint):
        if get_origin(kind) is tuple:
            wanted = f"a tuple of {describe(get_args(kind)[0])}, such as ({value!r},)"
    raise TypeError(f"{name} is {value!r}, and it must be {wanted}.")


def parse(name: str, hint: Any, text: str) -> Any:
    """The value that a word of the shell stands for: `1e5`, `64,64`, `none`, `true`."""
    for kind in alternatives(hint):
        value: Any = text
        if kind in (None, type(None)):
            value = None if text.lower() == "none" else text
        elif kind is bool:
            value = {"true": True, "false": False}.get(text.lower(), text)
        elif get_origin(kind) is tuple:
            value = [parse(name, get_args(kind)[0], word) for word in text.split(",") if word.strip()]
        elif kind in (int, float):
            try:
                value = float(text)
            except ValueError:
                continue
        try:
            return check(name, kind, value)
        except TypeError:
            continue
    raise TypeError(f"{name} is {text!r}, and it must be {describe(hint)}.")


def describe(hint: Any) -> str:
    """A type in words, for errors and `--help`."""
    words = []
    for kind in alternatives(hint):
        if kind in (None, type(None)):
            words.append("none")
        elif get_origin(kind) is Literal:
            words += [str(choice) for choice in get_args(kind)]
        elif get_origin(kind) is tuple:
            words.append(f"{describe(get_args(kind)[0])},…")
        else:
            words.append(getattr(kind, "__name__", str(kind)))
    return " or ".join(words)


def alternatives(hint: Any) -> tuple[Any, ...]:
    """The members of a union, or the type itself."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
