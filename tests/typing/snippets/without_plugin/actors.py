"""Without the plugin mypy does not know that a decorated class has `.remote`; all else takes and returns anything."""

from __future__ import annotations

import skate


class Counter:
    def __init__(self, start: int = 0) -> None:
        self.value = start

    def add(self, amount: int) -> int:
        self.value += amount
        return self.value

    @skate.method(num_returns=2)
    def split(self, amount: int) -> tuple[int, int]:
        return amount, self.value


RemoteCounter = skate.remote(Counter)
SmallCounter = skate.remote(num_cpus=0.5)(Counter)

counter = RemoteCounter.remote(1)
reveal_type(counter)  # reveals: Actor[Counter]
reveal_type(RemoteCounter.options(name="c").remote(start=skate.put(1)))  # reveals: Actor[Counter]
reveal_type(SmallCounter.remote("a"))  # reveals: Actor[Counter]
reveal_type(counter.add)  # reveals: ActorMethod[..., Any]
reveal_type(counter.add.remote("a"))  # reveals: Any
reveal_type(counter.add.options(num_returns=2).remote(1))  # reveals: Any
reveal_type(Counter(1).split(2))  # reveals: tuple[int, int]
first, second = counter.split.remote(1)


def use(handle: skate.Actor[Counter], cls: skate.ActorClass[Counter]) -> int:
    value: int = skate.get(handle.add.remote(1))
    use(cls.remote(), cls.options(name="c"))
    return value


use(counter, RemoteCounter)


@skate.remote
class Decorated:
    def add(self, amount: int) -> int:
        return amount


def annotated(handle: skate.Actor[Decorated]) -> None:
    reveal_type(handle.add.remote(1))  # reveals: Any


Decorated.remote()  # error: "type[Decorated]" has no attribute "remote"
