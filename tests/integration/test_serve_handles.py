"""Handles of skate.serve: calls of deployments from Python, and what their responses can do."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import skate
from skate import serve
from skate.exceptions import NotInitializedError, SerializationError
from skate.serve.records import CONTROLLER, NAMESPACE
from waiting import wait_for


@pytest.fixture(scope="module", autouse=True)
def one_controller() -> Iterator[None]:
    """What tests have served is deleted after each; the controller ends after the last."""
    yield
    serve.shutdown()


@pytest.fixture(autouse=True)
def serving(runtime: ModuleType) -> Iterator[None]:
    yield
    for name in serve.status().applications:
        serve.delete(name)


def run(app: Any, name: str = "default") -> Any:
    return serve.run(app, name=name, route_prefix=None)


@serve.deployment(graceful_shutdown_timeout_s=1)
class Worker:
    """What most tests call."""

    def __init__(self, factor: int = 1) -> None:
        self.factor = factor
        self.ended: list[str] = []

    async def __call__(self, value: Any = 1) -> Any:
        return value * self.factor

    def plain(self, value: int = 1, *, more: int = 0) -> int:
        return value * self.factor + more

    async def count(self, until: int) -> AsyncIterator[int]:
        for number in range(until):
            yield number

    def count_plainly(self, until: int) -> Iterator[int]:
        yield from range(until)

    async def count_for_ever(self) -> AsyncIterator[int]:
        try:
            number = 0
            while True:
                yield number
                number += 1
                await asyncio.sleep(0.001)
        finally:
            self.ended.append("count")

    async def wait_for_ever(self, note: str = "wait") -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.append(note)

    def wait_for_file(self, path: str) -> str:
        Path(f"{path}-begun").touch()
        wait_for(lambda: Path(path).exists(), 20, "the file of the test")
        return path

    async def what_ended(self) -> list[str]:
        return self.ended

    async def fail(self) -> None:
        raise KeyError("no such thing")

    async def exit(self, how: str) -> Any:
        if how == "here":
            sys.exit(3)
        return await (self.batched(1) if how == "in a batch" else self.load("a"))

    @serve.batch
    async def batched(self, numbers: list[int]) -> list[int]:
        sys.exit(3)

    @serve.multiplexed
    async def load(self, name: str) -> None:
        sys.exit(3)

    async def pid(self) -> int:
        return os.getpid()

    async def lock(self) -> Any:
        return threading.Lock()

    async def context(self) -> tuple[str, str]:
        found = serve.get_replica_context()
        return found.app_name, found.deployment


@serve.deployment(graceful_shutdown_timeout_s=1)
class Top:
    """Calls another deployment."""

    def __init__(self, below: Any) -> None:
        self.below = below

    async def __call__(self, value: int) -> Any:
        return 1 + await self.below.remote(value)

    async def both(self, value: int) -> list[int]:
        return list(await asyncio.gather(self.below.remote(value), self.below.plain.remote(value)))

    async def count(self, until: int) -> AsyncIterator[int]:
        async for number in self.below.options(stream=True).count.remote(until):
            yield number

    async def wait_for_ever(self) -> None:
        await self.below.wait_for_ever.remote("below")

    async def fail(self) -> Any:
        return await self.below.fail.remote()

    async def ask_named(self) -> Any:
        return await serve.get_deployment_handle("Worker").remote(7)

    async def wait_in_the_loop(self) -> Any:
        return self.below.remote(1).result()

    def plain(self, value: int) -> Any:
        return self.below.remote(value).result()


def test_methods_functions_and_keyword_arguments_are_called() -> None:
    @serve.deployment(graceful_shutdown_timeout_s=1)
    def double(value: int) -> int:
        return 2 * value

    handle = run(Worker.bind(3))
    assert handle.remote(2).result() == 6
    assert handle.plain.remote(2, more=1).result() == 7
    assert handle.options(method_name="plain").remote(2).result() == 6
    assert handle.context.remote().result() == ("default", "Worker")
    assert run(double.bind(), "functions").remote(4).result() == 8


def test_deployments_call_others_and_their_responses_are_arguments() -> None:
    top = run(Top.bind(Worker.bind(3)))
    worker = serve.get_deployment_handle("Worker")
    assert top.remote(2).result() == 7
    assert top.both.remote(2).result() == [6, 6]
    assert top.plain.remote(2).result() == 7 - 1
    assert top.ask_named.remote().result() == 21
    assert top.remote(worker.remote(worker.remote(1))).result() == 28
    assert worker.plain.remote(value=worker.remote(2), more=worker.remote(1)).result() == 21
    with pytest.raises(KeyError, match="no such thing"):
        top.remote(worker.fail.remote()).result()
    with pytest.raises(RuntimeError, match="await"):
        top.wait_in_the_loop.remote().result()


def test_a_response_that_was_not_sent_yet_can_be_an_argument(tmp_path: Path) -> None:
    worker = run(Worker.options(max_ongoing_requests=1).bind(3))
    gate = tmp_path / "gate"
    held = worker.wait_for_file.remote(str(gate))
    first = worker.remote(2)
    second = worker.remote(first)
    cancelled = worker.remote(first)
    cancelled.cancel()
    with pytest.raises(serve.RequestCancelledError):
        cancelled.result(timeout_s=20)
    with pytest.raises(TimeoutError):
        second.result(timeout_s=0.01)
    gate.touch()
    assert held.result() == str(gate)
    assert second.result(timeout_s=20) == 18


def test_streams_come_item_by_item_also_over_two_hops() -> None:
    top = run(Top.bind(Worker.bind()))
    worker = serve.get_deployment_handle("Worker").options(stream=True)
    assert list(worker.count.remote(4)) == [0, 1, 2, 3]
    assert list(worker.count_plainly.remote(4)) == [0, 1, 2, 3]
    assert list(top.options(stream=True).count.remote(4)) == [0, 1, 2, 3]

    async def read() -> list[int]:
        return [item async for item in top.options(stream=True).count.remote(3)]

    assert asyncio.run(read()) == [0, 1, 2]
    with pytest.raises(TypeError, match="stream=True"):
        top.count.remote(3).result()
    with pytest.raises(TypeError, match="request is for a stream"):
        list(worker.remote(1))


def test_a_stream_that_is_dropped_ends_in_the_replica_and_gives_back_its_place() -> None:
    worker = run(Worker.options(max_ongoing_requests=1).bind())
    stream = worker.options(stream=True).count_for_ever.remote()
    assert next(stream) == 0
    del stream
    assert worker.what_ended.remote().result(timeout_s=20) == ["count"]


def test_a_response_can_be_awaited_where_others_run() -> None:
    worker = run(Worker.bind(2))

    async def ask() -> list[int]:
        return list(await asyncio.gather(*(worker.remote(value) for value in range(300))))

    assert asyncio.run(ask()) == [2 * value for value in range(300)]

    async def fail() -> None:
        await worker.fail.remote()

    with pytest.raises(KeyError):
        asyncio.run(fail())
    assert worker._dispatcher.router.seats
    assert all(seat.in_flight == 0 for seat in worker._dispatcher.router.seats.values())


def test_handles_work_in_tasks_and_actors_and_survive_pickling() -> None:
    worker = run(Worker.bind(5))

    @skate.remote(num_cpus=0)
    def task(handle: Any) -> Any:
        return handle.remote(2).result(), serve.get_app_handle().plain.remote(1).result()

    @skate.remote(num_cpus=0)
    class Actor:
        async def ask(self, handle: Any) -> Any:
            return await handle.remote(3)

    assert skate.get(task.remote(worker)) == (10, 5)
    assert skate.get(Actor.remote().ask.remote(worker)) == 15
    copied = pickle.loads(pickle.dumps(worker.plain.options(idempotent=True)))
    assert copied == worker.plain.options(idempotent=True)
    assert copied.remote(2).result() == 10


def test_a_response_is_sent_to_a_task_inside_a_value_or_as_a_reference() -> None:
    worker = run(Worker.bind(5))

    @skate.remote(num_cpus=0)
    def read(values: list[Any]) -> Any:
        return values[0].result()

    @skate.remote(num_cpus=0)
    def plus(value: int) -> int:
        return value + 1

    assert skate.get(read.remote([worker.remote(2)])) == 10
    assert skate.get(plus.remote(worker.remote(2)._to_object_ref_sync())) == 11


def test_exceptions_keep_their_class_and_show_where_they_were_raised() -> None:
    top = run(Top.bind(Worker.bind()))
    for handle in (serve.get_deployment_handle("Worker"), top):
        with pytest.raises(KeyError, match="no such thing") as caught:
            handle.fail.remote().result()
        assert 'raise KeyError("no such thing")' in str(caught.value)
    with pytest.raises(AttributeError, match=r"no method 'nothing'; it has .*plain"):
        top.below_is_not_public.options(method_name="nothing").remote().result()
    assert top.remote(1).result() == 2
    worker = serve.get_deployment_handle("Worker")
    lock = threading.Lock()
    for call, says in (
        (lambda: worker.remote(lock), r"the argument at position 1 of __call__ of default#Worker cannot be sent"),
        (lambda: worker.plain.remote(more=lock), r"the argument 'more' of plain of default#Worker cannot be sent"),
        (
            lambda: worker.lock.remote(),
            r"the value returned by lock of default#Worker .*\n.*an object of type _thread.lock",
        ),
    ):
        with pytest.raises(SerializationError, match=says):
            call().result()
    pid = worker.pid.remote().result()
    for how in ("here", "in a batch", "in a load"):
        with pytest.raises(RuntimeError, match=r"SystemExit\(3\), and a request cannot end its replica"):
            worker.exit.remote(how).result()
    assert worker.pid.remote().result() == pid


def test_a_queued_request_that_is_cancelled_never_runs(tmp_path: Path) -> None:
    worker = run(Worker.options(max_ongoing_requests=1).bind())
    gate = tmp_path / "gate"
    held = worker.wait_for_file.remote(str(gate))
    queued = worker.wait_for_ever.remote("queued")
    queued.cancel()
    with pytest.raises(serve.RequestCancelledError):
        queued.result(timeout_s=20)
    assert queued.cancelled()
    gate.touch()
    assert held.result(timeout_s=20) == str(gate)
    assert worker.what_ended.remote().result(timeout_s=20) == []


def test_a_running_request_that_is_cancelled_is_interrupted_also_below() -> None:
    top = run(Top.bind(Worker.options(max_ongoing_requests=2).bind()))
    worker = serve.get_deployment_handle("Worker")
    direct = worker.wait_for_ever.remote("direct")
    wait_for(lambda: working("Worker") == 1, 20, "the request to run")
    direct.cancel()
    with pytest.raises(serve.RequestCancelledError):
        direct.result(timeout_s=20)
    above = top.wait_for_ever.remote()
    wait_for(lambda: working("Worker") == 1, 20, "the request below to run")
    above.cancel()
    with pytest.raises(serve.RequestCancelledError):
        above.result(timeout_s=20)
    wait_for(lambda: worker.what_ended.remote().result() == ["direct", "below"], 20, "both to be interrupted")


def test_a_task_that_is_cancelled_while_it_awaits_takes_its_request_along() -> None:
    worker = run(Worker.bind())

    async def ask() -> None:
        await asyncio.wait_for(worker.wait_for_ever.remote("awaited"), 0.05)

    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(ask())
    wait_for(lambda: worker.what_ended.remote().result() == ["awaited"], 20, "the request to be interrupted")


def test_plain_code_that_runs_keeps_its_place_until_it_returns_though_cancelled(tmp_path: Path) -> None:
    worker = run(Worker.options(max_ongoing_requests=1).bind())
    gate = tmp_path / "gate"
    held = worker.wait_for_file.remote(str(gate))
    wait_for(Path(f"{gate}-begun").exists, 20, "the request to run")
    held.cancel()
    next_one = worker.remote(4)
    with pytest.raises(TimeoutError):
        next_one.result(timeout_s=0.1)
    gate.touch()
    assert next_one.result(timeout_s=20) == 4
    with pytest.raises(serve.RequestCancelledError):
        held.result(timeout_s=20)


def test_a_result_that_takes_too_long_is_a_timeout_and_can_be_asked_for_again(tmp_path: Path) -> None:
    worker = run(Worker.bind())
    gate = tmp_path / "gate"
    response = worker.wait_for_file.remote(str(gate))
    with pytest.raises(TimeoutError, match=r"wait_for_file of default#Worker has no result after 0.02 s\.\n  why:  "):
        response.result(timeout_s=0.02)
    gate.touch()
    assert response.result(timeout_s=20) == response.result() == str(gate)


def test_no_more_requests_run_at_a_time_than_may_whoever_sends_them() -> None:
    @serve.deployment(max_ongoing_requests=3, graceful_shutdown_timeout_s=1)
    class Counting:
        def __init__(self) -> None:
            self.now = self.most = 0

        async def __call__(self) -> int:
            self.now += 1
            self.most = max(self.most, self.now)
            await asyncio.sleep(0.002)
            self.now -= 1
            return self.most

    @skate.remote(num_cpus=0)
    def ask(handle: Any) -> int:
        return max(response.result() for response in [handle.remote() for _ in range(40)])

    handle = run(Counting.bind())
    elsewhere = [ask.remote(handle) for _ in range(2)]
    assert max(response.result() for response in [handle.remote() for _ in range(60)]) <= 3
    assert max(skate.get(elsewhere)) == 3


def test_requests_beyond_the_queue_are_refused_and_the_others_are_answered(tmp_path: Path) -> None:
    worker = run(Worker.options(max_ongoing_requests=1, max_queued_requests=2).bind())
    gate = tmp_path / "gate"
    taken = [worker.wait_for_file.remote(str(gate)) for _ in range(3)]
    for _ in range(3):
        with pytest.raises(serve.BackPressureError, match="max_queued_requests"):
            worker.remote().result()
    gate.touch()
    assert [response.result(timeout_s=20) for response in taken] == [str(gate)] * 3
    assert worker.remote(3).result() == 3

    def counted() -> list[int]:
        metrics = serve.status().applications["default"].deployments["Worker"].metrics
        return [metrics["rejected"], metrics["requests"]]

    wait_for(lambda: counted() == [3, 4], 20, "the controller to hear of the refusals")


def test_refusals_are_counted_once_also_if_the_controller_dies(tmp_path: Path) -> None:
    worker = run(Worker.options(max_ongoing_requests=1, max_queued_requests=0).bind())
    gate = tmp_path / "gate"
    taken = worker.wait_for_file.remote(str(gate))
    controller = skate.get_actor(CONTROLLER, NAMESPACE)
    process = skate.get(controller.__ray_call__.remote(lambda _: os.getpid()))
    os.kill(process, signal.SIGSTOP)
    with pytest.raises(serve.BackPressureError):
        worker.remote().result()
    os.kill(process, signal.SIGKILL)

    def rejected() -> int:
        return int(serve.status().applications["default"].deployments["Worker"].metrics["rejected"])

    wait_for(lambda: rejected() == 1, 20, "the next controller to hear of the refusal")
    gate.touch()
    assert taken.result(timeout_s=20) == str(gate)


def test_responses_that_are_dropped_hold_no_places() -> None:
    worker = run(Worker.options(max_ongoing_requests=2).bind())
    for _ in range(50):
        worker.remote()
    assert worker.remote(3).result(timeout_s=20) == 3
    router = worker._dispatcher.router
    worker.remote().result()
    wait_for(lambda: all(seat.in_flight == 0 for seat in router.seats.values()), 20, "all places to be free")


def test_many_threads_share_a_handle() -> None:
    worker = run(Worker.options(max_ongoing_requests=4, num_replicas=2).bind(2))
    wrong: list[Any] = []

    def ask(start: int) -> None:
        for value in range(start, start + 50):
            found = worker.remote(value).result()
            if found != 2 * value:
                wrong.append((value, found))

    threads = [threading.Thread(target=ask, args=(1000 * number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not wrong


def test_a_handle_of_what_was_deleted_or_never_was_says_so(tmp_path: Path) -> None:
    worker = run(Worker.options(max_ongoing_requests=1).bind(), "gone")
    worker.remote().result()
    gate = tmp_path / "gate"
    held, queued = worker.wait_for_file.remote(str(gate)), worker.remote()
    threading.Timer(0.1, gate.touch).start()
    serve.delete("gone")
    assert held.result() == str(gate)
    with pytest.raises(serve.DeploymentUnavailableError, match="was deleted"):
        queued.result(timeout_s=20)
    with pytest.raises(serve.DeploymentUnavailableError, match="no deployment Worker in the application gone"):
        worker.remote()
    for ask in (lambda: serve.delete("gone"), lambda: serve.get_app_handle("gone")):
        with pytest.raises(serve.DeploymentUnavailableError, match="no application 'gone'; there are: none"):
            ask()
    with pytest.raises(serve.DeploymentUnavailableError, match="no deployment Nothing in the application default"):
        serve.get_deployment_handle("Nothing").remote()
    with pytest.raises(TypeError):
        serve.get_deployment_handle("")


def test_a_handle_works_again_after_its_application_was_deployed_again() -> None:
    worker = run(Worker.bind(2))
    assert worker.remote(1).result() == 2
    serve.delete("default")
    run(Worker.bind(3))
    assert worker.remote(1).result() == 3


def test_calls_after_shutdown_say_so_and_work_after_the_next_init(tmp_path: Path) -> None:
    worker = run(Worker.options(max_ongoing_requests=1).bind(2))
    assert worker.remote(1).result() == 2
    gate = tmp_path / "gate"
    held, queued = worker.wait_for_file.remote(str(gate)), worker.remote()
    skate.shutdown()
    for response in (held, queued):
        with pytest.raises(skate.exceptions.SkateError):
            response.result(timeout_s=20)
    with pytest.raises(NotInitializedError):
        worker.remote(1)
    assert not skate.is_initialized()
    skate.init(num_cpus=2)
    assert run(Worker.bind(3)).remote(1).result() == 3
    assert worker.remote(1).result() == 3


def working(deployment: str) -> int:
    """The requests that it works on; the controller asks its replicas about once a second."""
    time.sleep(0.01)
    text = skate.get(skate.get_actor("SERVE_CONTROLLER_ACTOR", "_skate.serve").metrics.remote())
    line = next(line for line in text.splitlines() if line.startswith("skate_serve_working") and deployment in line)
    return int(line.rpartition(" ")[2])
