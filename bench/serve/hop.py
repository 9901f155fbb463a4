"""What it takes that a process asks another one for its answer: the floor of `composed`.

Run it as `python bench/serve/hop.py`, where Skate with its serving extra is installed. It prints the median time of a
call of a bare async actor, and of one that awaits a call of another actor; then the same of two deployments. Rounds of
the four take turns, and each figure is that of its fastest round, in microseconds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import skate
from skate import serve

ROUNDS, CALLS = 12, 400


@skate.remote
class Actor:
    def __init__(self, other: Any = None) -> None:
        self.other = other

    async def answer(self) -> None:
        if self.other is not None:
            await self.other.answer.remote()


@serve.deployment
class Deployed:
    def __init__(self, other: Any = None) -> None:
        self.other = other

    async def __call__(self) -> None:
        if self.other is not None:
            await self.other.remote()


def p50_us(call: Callable[[], object]) -> float:
    times = []
    for _ in range(CALLS):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return 1e6 * statistics.median(times)


def main() -> None:
    with skate.init(num_cpus=2):
        below = Actor.remote()
        above = Actor.remote(below)
        asking = serve.run(Deployed.options(name="Asking").bind(Deployed.bind()), route_prefix=None)
        asked = serve.get_deployment_handle("Deployed")
        calls: dict[str, Callable[[], object]] = {
            "an actor": lambda: skate.get(below.answer.remote()),
            "an actor that asks another one": lambda: skate.get(above.answer.remote()),
            "a deployment": lambda: asked.remote().result(),
            "a deployment that asks another one": lambda: asking.remote().result(),
        }
        rounds = [{what: p50_us(call) for what, call in calls.items()} for _ in range(ROUNDS)]
        for what in calls:
            print(f"{what:<36} {min(each[what] for each in rounds):5.0f} µs")
        serve.shutdown()


if __name__ == "__main__":
    main()
