"""A remote generator gives references to what it yields."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import skate


@skate.remote
def count(limit: int) -> Iterator[int]:
    yield from range(limit)


@skate.remote
def letters() -> Generator[str, None, None]:
    yield "a"


@skate.remote(max_retries=0)
def halves(limit: int) -> Iterator[float]:
    for number in range(limit):
        yield number / 2


reveal_type(count.remote(3))  # reveals: ObjectRefGenerator[int]
reveal_type(letters.remote())  # reveals: ObjectRefGenerator[str]
reveal_type(halves.remote(3))  # reveals: ObjectRefGenerator[float]
reveal_type(halves.options(num_cpus=0.5).remote(3))  # reveals: ObjectRefGenerator[float]
count.remote("a")  # error: "remote" of "RemoteFunction"

for ref in count.remote(3):
    reveal_type(ref)  # reveals: ObjectRef[int]
    reveal_type(skate.get(ref))  # reveals: int


async def read() -> None:
    async for ref in letters.remote():
        reveal_type(await ref)  # reveals: str
