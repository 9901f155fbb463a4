"""Handles have the methods of the class behind them, and those return references."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

import skate

T = TypeVar("T")


def hide(function: Callable[..., T]) -> Callable[..., T]:
    return function


@skate.remote
class Counter:
    limit = 10

    def __init__(self, start: int = 0, *, name: str = "") -> None:
        self.value = start
        self.options = {"name": name}  # the same name as Counter.options, and no matter

    def add(self, amount: int, *, times: int = 1) -> int:
        self.value += amount * times
        return self.value

    def reset(self) -> None:
        self.value = 0

    async def later(self, amount: int) -> int:
        return self.add(amount)

    def up_to(self, limit: int) -> Iterator[int]:
        yield from range(self.value, limit)

    def letters(self) -> Generator[str, None, None]:
        yield "a"

    def halves(self) -> Iterable[float]:
        yield self.value / 2

    async def ticks(self) -> AsyncIterator[float]:
        yield 0.5

    def history(self) -> Iterator[int]:
        return iter([self.value])  # it yields nothing, so it is returned as it is

    def values(self) -> Iterable[int]:
        return [self.value]

    def echo(self, value: T) -> list[T]:
        return [value]

    def sum(self, *numbers: float, **named: float) -> float:
        return sum(numbers) + sum(named.values())

    def whatever(self, value):  # type: ignore[no-untyped-def]
        return value

    @property
    def double(self) -> int:
        return self.value * 2

    @staticmethod
    def parse(text: str) -> int:
        return int(text)

    @classmethod
    def describe(cls, prefix: str) -> str:
        return prefix + str(cls().value)  # in here `cls` is the class itself, and can be called

    @overload
    def twice(self, value: int) -> int: ...
    @overload
    def twice(self, value: str) -> str: ...
    def twice(self, value: Any) -> Any:
        return value * 2

    @hide
    def hidden(self, value: int) -> str:
        return str(value)

    increase = add

    def merge(self, other: skate.Actor[Counter]) -> int:
        return skate.get(other.add.remote(0)) + self.value


def before(handle: skate.Actor[Splitter]) -> None:
    reveal_type(handle.split.remote((1, "a")))  # reveals: list[ObjectRef[Any]]


# --- classes

text_ref = skate.put("a")
reveal_type(Counter.remote())  # reveals: Actor[Counter]
reveal_type(Counter.remote(1, name="c"))  # reveals: Actor[Counter]
reveal_type(Counter.remote(start=skate.put(1)))  # reveals: Actor[Counter]
reveal_type(Counter.options(name="c", num_cpus=2).remote(1))  # reveals: Actor[Counter]
reveal_type(Counter.options(name="c").options(num_cpus=2).remote(1))  # reveals: Actor[Counter]

Counter.remote("a")  # error: incompatible type "str"; expected "int | ObjectRef[int]"
Counter.remote(1, 2)  # error: Too many positional arguments for "remote" of "Counter"
Counter.remote(first=1)  # error: Unexpected keyword argument "first" for "remote" of "Counter"
Counter.remote(text_ref)  # error: incompatible type "ObjectRef[str]"
Counter.options(name="c").remote("a")  # error: incompatible type "str"
Counter(1)  # error: "Counter" is a remote class and cannot be called directly
Counter.start()  # error: "type[Counter]" has no attribute "start"
reveal_type(Counter.limit)  # reveals: int
reveal_type(Counter.parse("1"))  # reveals: int
reveal_type(Counter.options(name="c").parse("1"))  # reveals: int

# --- methods

counter = Counter.remote()
reveal_type(counter.add.remote(1))  # reveals: ObjectRef[int]
reveal_type(counter.add.remote(amount=1, times=2))  # reveals: ObjectRef[int]
reveal_type(counter.reset.remote())  # reveals: ObjectRef[None]
reveal_type(counter.later.remote(1))  # reveals: ObjectRef[int]
reveal_type(counter.up_to.remote(3))  # reveals: ObjectRefGenerator[int]
reveal_type(counter.letters.remote())  # reveals: ObjectRefGenerator[str]
reveal_type(counter.halves.remote())  # reveals: ObjectRefGenerator[float]
reveal_type(counter.ticks.remote())  # reveals: ObjectRefGenerator[float]
reveal_type(counter.history.remote())  # reveals: ObjectRef[Iterator[int]]
reveal_type(counter.values.remote())  # reveals: ObjectRef[Iterable[int]]
reveal_type(counter.echo.remote("a"))  # reveals: ObjectRef[list[str]]
reveal_type(counter.echo.remote(skate.put(1)))  # reveals: ObjectRef[list[int]]
reveal_type(counter.sum.remote(1, 2.5, third=3))  # reveals: ObjectRef[float]
reveal_type(counter.whatever.remote(1))  # reveals: ObjectRef[Any]
reveal_type(counter.parse.remote("1"))  # reveals: ObjectRef[int]
reveal_type(counter.describe.remote("a "))  # reveals: ObjectRef[str]
reveal_type(counter.twice.remote(1))  # reveals: Any
reveal_type(counter.hidden.remote(1, anything=2))  # reveals: ObjectRef[str]
reveal_type(counter.increase.remote(1))  # reveals: ObjectRef[int]
reveal_type(counter.merge.remote(counter))  # reveals: ObjectRef[int]
reveal_type(counter.add.options(name="more").remote(1))  # reveals: ObjectRef[int]
reveal_type(counter.__ray_ready__.remote())  # reveals: Any
reveal_type(skate.get(counter.add.remote(1)))  # reveals: int
reveal_type(skate.get([counter.add.remote(1), counter.later.remote(2)]))  # reveals: list[int]

# References stand for their values, by position and by name.
reveal_type(counter.add.remote(skate.put(1)))  # reveals: ObjectRef[int]
reveal_type(counter.add.remote(counter.add.remote(1), times=counter.later.remote(2)))  # reveals: ObjectRef[int]
reveal_type(counter.sum.remote(1, skate.put(2.5), third=skate.put(3)))  # reveals: ObjectRef[float]

counter.add.remote("a")  # error: incompatible type "str"; expected "int | ObjectRef[int]"
counter.add.remote()  # error: Missing positional argument "amount" in call to "remote" of "ActorMethod"
counter.add.remote(1, 2)  # error: Too many positional arguments for "remote" of "ActorMethod"
counter.add.remote(1, twice=2)  # error: Unexpected keyword argument "twice" for "remote" of "ActorMethod"
counter.add.remote(text_ref)  # error: incompatible type "ObjectRef[str]"; expected "int | ObjectRef[int]"
counter.add.options(name="more").remote("a")  # error: incompatible type "str"
counter.parse.remote(1)  # error: incompatible type "int"; expected "str | ObjectRef[str]"
counter.describe.remote()  # error: Missing positional argument "prefix"
counter.ad.remote(1)  # error: "Counter" has no attribute "ad"; maybe "add"?
counter.value.remote()  # error: "value" of "Counter" is no method
counter.limit.remote()  # error: "limit" of "Counter" is no method
counter.double.remote()  # error: "double" of "Counter" is no method
counter.value = 3  # error: has no attribute "value"
counter.add = 3  # error: has no attribute "add"


async def wait() -> None:
    reveal_type(await counter.add.remote(1))  # reveals: int
    async for ref in counter.ticks.remote():
        reveal_type(await ref)  # reveals: float


# --- handles in annotations


def use(handle: skate.Actor[Counter], others: list[skate.Actor[Counter]]) -> list[skate.ObjectRef[int]]:
    reveal_type(handle.add.remote(1))  # reveals: ObjectRef[int]
    handle.add.remote("a")  # error: incompatible type "str"
    return [other.add.remote(1) for other in others]


use(counter, [counter, Counter.options(name="c").remote()])
use(Counter, [])  # error: incompatible type "type[Counter]"; expected "Actor[Counter]"


class Owner:
    counter: skate.Actor[Counter]
    spare: skate.Actor[Counter] | None

    def __init__(self, counter: skate.Actor[Counter]) -> None:
        self.counter = counter
        self.spare = None

    def go(self) -> int:
        self.spare.reset.remote()  # error: Item "None" of "Actor[Counter] | None" has no attribute "reset"
        if self.spare is not None:
            self.spare.reset.remote()
        return skate.get(self.counter.add.remote(1))


def make(cls: skate.ActorClass[Counter]) -> skate.Actor[Counter]:
    return cls.options(name="c").remote(1)


make(Counter)
make(Counter.options(num_cpus=1))

found: skate.Actor[Counter] = skate.get_actor("counter")
reveal_type(found.add.remote(1))  # reveals: ObjectRef[int]
reveal_type(skate.get_actor("counter").anything.remote(1))  # reveals: Any
skate.kill(counter)


@skate.remote
def task(handle: skate.Actor[Counter]) -> int:
    return skate.get(handle.add.remote(1))


reveal_type(task.remote(counter))  # reveals: ObjectRef[int]

# --- inheritance


@skate.remote(num_cpus=1, name="better")
class Better(Counter):
    def __init__(self, text: str) -> None:
        super().__init__(len(text))
        self.text = text

    def add(self, amount: int, *, times: int = 1) -> int:
        return super().add(amount, times=times + self.value)

    def shout(self) -> str:
        return self.text.upper()


class Best(Better):  # not remote itself: a class as any other
    pass


Best("a").shout()
Best.remote("a")  # error: "type[Best]" has no attribute "remote"

better = Better.remote("a")
reveal_type(better)  # reveals: Actor[Better]
reveal_type(better.later.remote(1))  # reveals: ObjectRef[int]
reveal_type(better.shout.remote())  # reveals: ObjectRef[str]
use(better, [])
Better.remote(1)  # error: incompatible type "int"; expected "str | ObjectRef[str]"
counter.shout.remote()  # error: "Counter" has no attribute "shout"


class Source(ABC):
    @abstractmethod
    def read(self, size: int) -> bytes: ...

    @abstractmethod
    def lines(self) -> Iterator[str]: ...


@skate.remote
class File(Source):
    def read(self, size: int) -> bytes:
        return b""

    def lines(self) -> Iterator[str]:
        yield ""


def read_all(source: skate.Actor[Source]) -> None:
    reveal_type(source.read.remote(1))  # reveals: ObjectRef[bytes]
    reveal_type(source.lines.remote())  # reveals: ObjectRefGenerator[str]


read_all(File.remote())
read_all(counter)  # error: incompatible type "Actor[Counter]"; expected "Actor[Source]"


def either(handle: skate.Actor[Source] | skate.Actor[File]) -> None:
    reveal_type(handle.read.remote(1))  # reveals: ObjectRef[bytes]
    handle.write.remote(b"")  # error: "Source" has no attribute "write"


S = TypeVar("S", bound=Source)


def first_byte(source: skate.Actor[S], fallback: skate.Actor[T]) -> skate.Actor[S]:
    reveal_type(source.read.remote(1))  # reveals: ObjectRef[bytes]
    fallback.anything.remote(1)
    return source


reveal_type(first_byte(File.remote(), counter))  # reveals: Actor[File]

# --- other kinds of classes


class Plain:
    def __init__(self, size: int) -> None:
        self.size = size

    def get(self) -> int:
        return self.size


RemotePlain = skate.remote(Plain)
SmallPlain = skate.remote(num_cpus=0.5)(Plain)
reveal_type(RemotePlain)  # reveals: ActorClass[Plain]
reveal_type(RemotePlain.remote(1).get.remote())  # reveals: ObjectRef[int]
reveal_type(SmallPlain.options(name="p").remote(skate.put(1)).get.remote())  # reveals: ObjectRef[int]
Plain(1).get()
RemotePlain.remote("a")  # error: incompatible type "str"


@skate.remote
@dataclass
class Point:
    x: float
    y: float = 0.0

    def norm(self) -> float:
        return abs(complex(self.x, self.y))


reveal_type(Point.remote(1.5, y=skate.put(2.5)).norm.remote())  # reveals: ObjectRef[float]
Point.remote()  # error: Missing positional argument "x"


@skate.remote
class Box(Generic[T]):
    def __init__(self, item: T) -> None:
        self.item = item

    def get(self) -> T:
        return self.item

    def put(self, item: T) -> None:
        self.item = item


box = Box.remote([1])
reveal_type(box)  # reveals: Actor[Box[list[int]]]
reveal_type(box.get.remote())  # reveals: ObjectRef[list[int]]
reveal_type(Box.remote(skate.put(1)))  # reveals: Actor[Box[int]]
reveal_type(Box.options(name="b").remote(1).get.remote())  # reveals: ObjectRef[Any]
box.put.remote([2])
box.put.remote(2)  # error: incompatible type "int"


def open_box(box: skate.Actor[Box[int]]) -> None:  # pyright errs
    reveal_type(box.get.remote())  # reveals: ObjectRef[int]


@skate.remote
class Empty:
    pass


reveal_type(Empty.remote())  # reveals: Actor[Empty]
Empty.remote(1)  # error: Too many arguments for "remote" of "Empty"


class Tracing(type):
    traced = True


@skate.remote
class Forgiving:
    @overload
    def __init__(self, value: int) -> None: ...
    @overload
    def __init__(self, value: str, base: int) -> None: ...
    def __init__(self, value: Any, base: int = 10) -> None:
        self.value = int(value, base)

    def __getattr__(self, name: str) -> Any:
        return name


reveal_type(Forgiving.remote(1))  # reveals: Actor[Forgiving]
reveal_type(Forgiving.remote("1", 2))  # reveals: Actor[Forgiving]
Forgiving.remote("1")  # error: No overload variant


@skate.remote
class Traced(metaclass=Tracing):  # a metaclass of its own: its arguments are not checked, and nothing is in the way
    def get(self) -> int:
        return 1


traced: skate.Actor[Traced] = Traced.options(name="t").remote(1)
reveal_type(traced.get.remote())  # reveals: ObjectRef[int]
reveal_type(Traced.traced)  # reveals: Any


def local() -> skate.ObjectRef[int]:
    @skate.remote
    class Inner:
        def get(self) -> int:
            return 1

    inner = Inner.remote()
    inner.set.remote()  # error: "Inner" has no attribute "set"
    return inner.get.remote()


# --- several results


@skate.remote
class Splitter:
    @skate.method(num_returns=2)
    def split(self, pair: tuple[int, str]) -> tuple[int, str]:
        return pair

    @skate.method(num_returns=0)
    def forget(self) -> int:
        return 1

    @skate.method(num_returns="streaming")
    def stream(self) -> list[int]:
        return [1]

    @skate.method(num_returns="dynamic")
    def dynamic(self) -> Iterator[int]:
        yield 1

    @skate.method(concurrency_group="io", max_task_retries=2)
    def grouped(self, size: int) -> int:
        return size

    def here(self) -> tuple[int, str]:
        reveal_type(self.split((1, "a")))  # reveals: tuple[int, str]
        return self.split((1, "a"))


splitter = Splitter.remote()
reveal_type(splitter.split.remote((1, "a")))  # reveals: list[ObjectRef[Any]]
reveal_type(splitter.forget.remote())  # reveals: None
reveal_type(splitter.stream.remote())  # reveals: ObjectRefGenerator[Any]
reveal_type(splitter.dynamic.remote())  # reveals: ObjectRef[Any]
reveal_type(splitter.grouped.remote(1))  # reveals: ObjectRef[int]
reveal_type(splitter.here.options(num_returns=2).remote())  # reveals: Any
left, right = splitter.split.remote((1, "a"))
left, right = splitter.here.options(num_returns=2).remote()
splitter.split.remote(1)  # error: incompatible type "int"
