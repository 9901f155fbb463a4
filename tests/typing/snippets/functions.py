"""Remote functions keep their parameters, and wrap what they return."""

from __future__ import annotations

import skate


@skate.remote
def spell(number: int) -> str:
    return str(number)


@skate.remote
def nothing() -> None:
    return None


@skate.remote
def join(first: str, second: str = "", *, separator: str = " ") -> str:
    return first + separator + second


@skate.remote
def total(*numbers: float) -> float:
    return sum(numbers)


@skate.remote(num_cpus=2, max_retries=0)
def measure(text: str) -> int:
    return len(text)


reveal_type(spell.remote(1))  # reveals: ObjectRef[str]
reveal_type(spell.remote(number=1))  # reveals: ObjectRef[str]
reveal_type(nothing.remote())  # reveals: ObjectRef[None]
reveal_type(join.remote("a"))  # reveals: ObjectRef[str]
reveal_type(join.remote("a", "b", separator="-"))  # reveals: ObjectRef[str]
reveal_type(total.remote(1, 2.5))  # reveals: ObjectRef[float]
reveal_type(measure.remote("abc"))  # reveals: ObjectRef[int]
reveal_type(spell.options(num_cpus=2).remote(1))  # reveals: ObjectRef[str]
reveal_type(measure.options(name="length").remote("abc"))  # reveals: ObjectRef[int]

spell.remote("a")  # error: "remote" of "RemoteFunction"
spell.remote()  # error: "remote" of "RemoteFunction"
spell.remote(1, 2)  # error: "remote" of "RemoteFunction"
spell.remote(digits=1)  # error: "remote" of "RemoteFunction"
spell.options(num_cpus=2).remote("a")  # error: "remote" of "RemoteFunction"
nothing.remote(1)  # error: "remote" of "RemoteFunction"
join.remote("a", separator=1)  # error: "remote" of "RemoteFunction"
join.remote("a", "b", "-")  # error: "remote" of "RemoteFunction"
total.remote("a")  # error: "remote" of "RemoteFunction"
measure.remote(1)  # error: "remote" of "RemoteFunction"
