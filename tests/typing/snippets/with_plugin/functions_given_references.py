"""With the plugin a reference has to be one to the right type, and it may be given by name."""

from __future__ import annotations

from typing import TypeVar

import skate

T = TypeVar("T")


@skate.remote
def repeat(text: str, times: int = 1, *more: int, end: str = "") -> str:
    return text * times + end


@skate.remote
def pair(first: T, second: T) -> list[T]:
    return [first, second]


@skate.remote
def anything(value: object) -> None: ...


number = skate.put(1)
text = skate.put("a")

reveal_type(repeat.remote(text, number))  # reveals: ObjectRef[str]
reveal_type(repeat.remote("a", times=number))  # pyright errs  # reveals: ObjectRef[str]
reveal_type(repeat.remote(text=text, times=2, end=text))  # pyright errs  # reveals: ObjectRef[str]
reveal_type(repeat.remote("a", 1, 2, 3, number))  # pyright errs  # reveals: ObjectRef[str]
reveal_type(pair.remote(1, 2))  # reveals: ObjectRef[list[int]]
reveal_type(pair.remote(number, number))  # reveals: ObjectRef[list[int]]
reveal_type(pair.remote(number, 2))  # reveals: ObjectRef[list[int]]
reveal_type(pair.remote(second=number, first=2))  # reveals: ObjectRef[list[int]]
reveal_type(anything.remote(number))  # reveals: ObjectRef[None]

repeat.remote(number)  # error: incompatible type "ObjectRef[int]"; expected "str | ObjectRef[str]"
repeat.remote("a", times=text)  # error: incompatible type "ObjectRef[str]"; expected "int | ObjectRef[int]"
repeat.remote(1)  # error: No overload variant of "remote" of "RemoteFunction" matches argument type "int"
repeat.remote()  # error: "remote" of "RemoteFunction"
