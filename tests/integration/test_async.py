"""References in asyncio: awaited in the driver's loop, in threads' loops, and inside tasks."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import skate
from programs import run_program
from waiting import wait_for

pytestmark = pytest.mark.usefixtures("runtime")


@skate.remote(num_cpus=0)
def when(gate: Path, value: Any = None) -> Any:
    wait_for(gate.exists, 40, f"{gate.name} to open")
    return value


@skate.remote
def add(a: int, b: int) -> int:
    return a + b


@skate.remote
def fail() -> None:
    raise ValueError("failed")


def test_await_gives_the_value() -> None:
    async def main() -> tuple[int, str]:
        return await add.remote(1, 2), await skate.put("stored")

    assert asyncio.run(main()) == (3, "stored")


def test_await_a_large_value() -> None:
    async def main() -> int:
        return len(await skate.remote(lambda: b"x" * 2_000_000).remote())

    assert asyncio.run(main()) == 2_000_000


def test_gather_keeps_the_order() -> None:
    async def main() -> list[int]:
        return await asyncio.gather(*[add.remote(i, i) for i in range(300)])

    assert asyncio.run(main()) == [2 * i for i in range(300)]


def test_await_raises_the_error_of_the_task() -> None:
    async def main() -> None:
        with pytest.raises(ValueError, match="failed") as caught:
            await fail.remote()
        assert isinstance(caught.value, skate.exceptions.TaskError)

    asyncio.run(main())


def test_gather_with_errors_as_results() -> None:
    async def main() -> list[Any]:
        return await asyncio.gather(add.remote(1, 1), fail.remote(), return_exceptions=True)

    value, error = asyncio.run(main())
    assert value == 2
    assert isinstance(error, ValueError)


def test_the_loop_runs_while_a_task_is_awaited(tmp_path: Path) -> None:
    """The task ends only because another coroutine, in the same loop, opens its gate."""
    gate = tmp_path / "gate"

    async def main() -> str:
        async def open_gate() -> None:
            await asyncio.sleep(0)
            gate.touch()

        value, _ = await asyncio.gather(when.remote(gate, "opened"), open_gate())
        return str(value)

    assert asyncio.run(main()) == "opened"


def test_values_are_handled_as_they_come(tmp_path: Path) -> None:
    gates = [tmp_path / f"gate-{i}" for i in range(3)]

    async def main() -> list[int]:
        futures = [asyncio.ensure_future(when.remote(gate, i)) for i, gate in enumerate(gates)]
        seen: list[int] = []
        for i in (2, 0, 1):
            gates[i].touch()
            done, _ = await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
            (finished,) = done
            seen.append(finished.result())
            futures.remove(finished)
        return seen

    assert asyncio.run(main()) == [2, 0, 1]


def test_a_timeout_ends_the_waiting_and_not_the_task(tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    async def main() -> str:
        ref = when.remote(gate, "late")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(ref, timeout=0.01)
        gate.touch()
        return str(await ref)

    assert asyncio.run(main()) == "late"


def test_a_reference_may_be_awaited_many_times() -> None:
    async def main() -> list[int]:
        ref = add.remote(1, 1)
        once = await ref
        return [once, *await asyncio.gather(*[ref] * 3), *await asyncio.gather(*[_wait(ref) for _ in range(3)])]

    async def _wait(ref: Any) -> int:
        return int(await ref)

    assert asyncio.run(main()) == [2] * 7


def test_a_loop_in_every_thread() -> None:
    results: list[int] = []

    def run() -> None:
        async def main() -> int:
            return sum(await asyncio.gather(*[add.remote(i, 1) for i in range(10)]))

        results.append(asyncio.run(main()))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [55] * 4


def test_two_loops_await_one_reference(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    ref = when.remote(gate, 5)
    results: list[int] = []

    async def main() -> int:
        return int(await ref)

    threads = [threading.Thread(target=lambda: results.append(asyncio.run(main()))) for _ in range(2)]
    for thread in threads:
        thread.start()
    gate.touch()
    for thread in threads:
        thread.join()
    assert results == [5, 5]


def test_a_loop_that_ended_before_the_task_is_no_harm(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    ref = when.remote(gate, 5)

    async def main() -> None:
        waiting = asyncio.ensure_future(ref)
        await asyncio.sleep(0)
        waiting.cancel()

    asyncio.run(main())
    gate.touch()
    assert skate.get(ref) == 5


def test_blocking_calls_work_in_a_running_loop() -> None:
    """Blocking the loop is rarely wise, but a notebook does it in every cell."""

    async def main() -> list[int]:
        refs = [add.remote(i, 0) for i in range(5)]
        ready, _ = skate.wait(refs, num_returns=5)
        return skate.get(ready)

    assert asyncio.run(main()) == [0, 1, 2, 3, 4]


def test_await_inside_a_task() -> None:
    @skate.remote
    def parent() -> int:
        async def main() -> int:
            return sum(await asyncio.gather(*[add.remote(i, i) for i in range(5)]))

        return asyncio.run(main())

    assert skate.get(parent.remote()) == 20


def test_a_future_of_a_reference_in_a_loop() -> None:
    async def main() -> int:
        return await asyncio.wrap_future(add.remote(20, 1).future())

    assert asyncio.run(main()) == 21


def test_awaiting_from_a_task_group() -> None:
    if not hasattr(asyncio, "TaskGroup"):
        pytest.skip("asyncio.TaskGroup is of Python 3.11")

    async def one(i: int) -> int:
        return int(await add.remote(i, 0))

    async def main() -> list[int]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(i)) for i in range(10)]
        return [task.result() for task in tasks]

    assert asyncio.run(main()) == list(range(10))


def test_a_thousand_awaits_one_after_another() -> None:
    async def main() -> int:
        total = 0
        for i in range(1000):
            total = await add.remote(total, i)
        return total

    assert asyncio.run(main()) == sum(range(1000))


def test_a_program_may_end_with_a_future_that_waits() -> None:
    output, errors = run_program(
        "import time, skate\n"
        "future = skate.remote(lambda: time.sleep(1000)).remote().future()\n"
        "future.add_done_callback(lambda done: print(type(done.exception()).__name__))\n"
    )
    assert (output, errors) == ("NodeDiedError\n", "")
