"""References stand in for values as arguments, and `get`, `put`, `wait` and `await` see through them."""

from __future__ import annotations

from concurrent.futures import Future

import skate


@skate.remote
def one() -> int:
    return 1


@skate.remote
def spell(number: int) -> str:
    return str(number)


@skate.remote
def repeat(text: str, times: int) -> str:
    return text * times


reveal_type(skate.put(1))  # reveals: ObjectRef[int]
reveal_type(skate.put([1.5]))  # reveals: ObjectRef[list[float]]

reveal_type(spell.remote(one.remote()))  # reveals: ObjectRef[str]
reveal_type(spell.remote(skate.put(1)))  # reveals: ObjectRef[str]
reveal_type(repeat.remote(spell.remote(1), 2))  # reveals: ObjectRef[str]
reveal_type(repeat.remote("a", one.remote()))  # reveals: ObjectRef[str]
reveal_type(repeat.remote(spell.remote(one.remote()), one.remote()))  # reveals: ObjectRef[str]

reveal_type(skate.get(spell.remote(1)))  # reveals: str
reveal_type(skate.get(spell.remote(1), timeout=1.5))  # reveals: str
reveal_type(skate.get([spell.remote(1), spell.remote(2)]))  # reveals: list[str]
reveal_type(skate.get(skate.put(1)))  # reveals: int
reveal_type(spell.remote(1).future())  # reveals: Future[str]

refs = [spell.remote(number) for number in range(3)]
reveal_type(skate.wait(refs))  # reveals: tuple[list[ObjectRef[str]], list[ObjectRef[str]]]
reveal_type(next(iter(skate.as_completed(refs))))  # reveals: ObjectRef[str]


async def wait_for_it(ref: skate.ObjectRef[str]) -> None:
    reveal_type(await ref)  # reveals: str
    reveal_type(await spell.remote(1))  # reveals: str


def takes_future(future: Future[str]) -> None: ...


def takes_text(ref: skate.ObjectRef[str]) -> None: ...


takes_future(spell.remote(1).future())
takes_text(spell.remote(1))
takes_text(one.remote())  # error: incompatible type "ObjectRef[int]"
takes_text(skate.get(spell.remote(1)))  # error: incompatible type
number: int = skate.get(spell.remote(1))  # error: Incompatible types in assignment
skate.get(1)  # error: No overload variant
