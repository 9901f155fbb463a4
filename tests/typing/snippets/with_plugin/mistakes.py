"""Forgotten `.remote`, and options that there are not: errors of the program, and of mypy."""

from __future__ import annotations

from typing import Any

import skate


@skate.remote
class Counter:
    def add(self, amount: int) -> int:
        return amount

    @skate.method(num_returns=2)
    def split(self, amount: int) -> tuple[int, int]:
        return self.add(amount), 0  # a plain call, within the class

    @skate.method(concurrency_grup="io")  # error: There is no option "concurrency_grup" here; maybe "concurrency_group"
    def read(self) -> None: ...


@skate.remote(max_restart=3)  # error: There is no option "max_restart" here; maybe "max_restarts"?
class Fragile: ...


@skate.remote(max_restarts=3, num_cpus=0.5, lifetime="detached")
class Sturdy: ...


@skate.remote(num_cpu=1)  # error: There is no option "num_cpu" here; maybe "num_cpus"?
def misspelt(x: int) -> int:
    return x


@skate.remote(num_cpus=1, max_retries=0)
def double(x: int) -> int:
    return 2 * x


counter = Counter.remote()
counter.add(1)  # error: "add" is a method of an actor and cannot be called directly: .remote(...) calls it
counter.add("wrong")  # error: cannot be called directly
counter.add()  # error: cannot be called directly
counter.split.options(name="s")(1)  # error: This is a method of an actor and cannot be called directly
double(1)  # error: "double" is a remote function and cannot be called directly
[double][0](1)  # error: This is a remote function

Counter.options(nme="x")  # error: There is no option "nme" here; maybe "name"?
Counter.options(name="x").options(nme="y")  # error: There is no option "nme" here
skate.remote(Counter.options(name="x")._cls).options(qqqqqq=1)  # error: There is no option "qqqqqq" here
double.options(num_return=2)  # error: There is no option "num_return" here; maybe "num_returns"?
double.options(num_returns=2, nme="x")  # error: There is no option "nme" here
counter.add.options(nme="x")  # error: There is no option "nme" here

settings: dict[str, Any] = {}
Counter.options(**settings)
double.options(num_returns=2, **settings)
counter.add.options(name="x", concurrency_group="io")
