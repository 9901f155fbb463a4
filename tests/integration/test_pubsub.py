"""Topics that a cluster shares."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading

import pytest

import skate
from skate._core.mailbox import BYTES_MAX
from skate._worker import current
from waiting import wait_for


@skate.remote(resources={"second": 1})
def publish_there(topic: str, count: int) -> int:
    return [skate.pubsub.publish(topic, str(number).encode()) for number in range(count)][-1]


@skate.remote(resources={"second": 1})
class Listener:
    def __init__(self, topic: str) -> None:
        self.subscription = skate.pubsub.subscribe(topic)

    async def take(self, count: int) -> list[bytes]:
        heard: list[bytes] = []
        async for message in self.subscription:
            heard.append(message)
            if len(heard) == count:
                break
        return heard


def test_what_is_published_is_heard_everywhere_in_one_order(anywhere: None) -> None:
    listener = Listener.remote("news")
    skate.get(listener.__ray_ready__.remote())
    with skate.pubsub.subscribe("news") as here:
        assert skate.get([publish_there.remote("news", 50) for _ in range(2)]) == [2, 2]
        heard = [here.get(timeout=30) for _ in range(100)]
    assert sorted(heard) == sorted(str(number).encode() for number in range(50) for _ in range(2))
    assert skate.get(listener.take.remote(100)) == heard


def test_who_subscribes_later_hears_nothing_of_before(anywhere: None) -> None:
    assert skate.pubsub.publish("news", b"early") == 0
    with skate.pubsub.subscribe("news") as first, skate.pubsub.subscribe("news") as second:
        assert skate.pubsub.publish("news", b"late") == 1, "processes are counted"
        assert (first.get(timeout=30), second.get(timeout=30)) == (b"late", b"late")
        assert skate.pubsub.publish("news", b"elsewhere", namespace="other") == 0
        with pytest.raises(TimeoutError, match=r"'news' within 0\.01 s"):
            first.get(timeout=0.01)
        for wrong in ("1", -1):
            with pytest.raises(ValueError, match="0 or more"):
                first.get(timeout=wrong)  # type: ignore[arg-type]
    assert skate.pubsub.publish("news", b"too late") == 0


def test_a_loop_over_a_subscription_ends_when_it_is_closed(anywhere: None) -> None:
    heard: list[bytes] = []
    subscription = skate.pubsub.subscribe("news")
    thread = threading.Thread(target=lambda: heard.extend(subscription))
    thread.start()
    skate.get(publish_there.remote("news", 3))

    async def close_when_all_is_heard() -> None:
        while len(heard) < 3:
            await asyncio.sleep(0.001)
        subscription.close()

    asyncio.run(close_when_all_is_heard())
    thread.join(30)
    assert heard == [b"0", b"1", b"2"]
    with pytest.raises(ValueError, match="closed"):
        subscription.get()


def test_what_nobody_refers_to_and_who_is_dead_hears_no_more(anywhere: None) -> None:
    listener = Listener.remote("news")
    skate.get(listener.__ray_ready__.remote())
    dropped = skate.pubsub.subscribe("news")
    assert skate.pubsub.publish("news", b"1") == 2
    del dropped
    gc.collect()
    skate.kill(listener)
    while skate.pubsub.publish("news", b"2"):
        pass


def test_a_slow_subscriber_keeps_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skate._worker.subscriptions.MESSAGES_MAX", 3)
    with skate.init(num_cpus=1), skate.pubsub.subscribe("news") as subscription:
        for number in range(5):
            skate.pubsub.publish("news", str(number).encode())
        skate.pubsub.publish("last", b"")  # what comes before it has come
        assert [subscription.get() for _ in range(3)] == [b"2", b"3", b"4"]
        assert subscription.missed == 2


def test_shutdown_wakes_who_waits() -> None:
    skate.init(num_cpus=1)
    subscription = skate.pubsub.subscribe("news")
    outcome: list[BaseException] = []

    def wait() -> None:
        try:
            subscription.get()
        except (ValueError, skate.exceptions.NodeDiedError) as error:
            outcome.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    skate.shutdown()
    thread.join(30)
    assert len(outcome) == 1


@pytest.mark.parametrize(
    ("topic", "message", "error"), [(1, b"", TypeError), ("t", "text", TypeError), ("t", bytes(2 << 20), ValueError)]
)
def test_what_cannot_be_published_is_refused(topic: object, message: object, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"pubsub\.publish"):
        skate.pubsub.publish(topic, message)  # type: ignore[arg-type]


def resident_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@skate.remote(resources={"second": 1})
class Sleeper:
    """A subscriber that can be stopped."""

    def __init__(self) -> None:
        self.subscription = skate.pubsub.subscribe("news")

    def pids(self) -> tuple[int, int]:
        """Its own, and that of its daemon."""
        return os.getpid(), current.get_runtime().welcome.daemon_pid

    def heard(self) -> tuple[int, int, bytes]:
        """Messages that it has, messages that it missed, and the last of the first."""
        messages = [self.subscription.get() for _ in range(len(self.subscription._messages))]
        return len(messages), self.subscription.missed, messages[-1] if messages else b""


def test_what_waits_for_a_stopped_subscriber_is_bounded_and_what_was_dropped_is_counted(anywhere: None) -> None:
    count, size = 300, 1 << 20
    sleeper = Sleeper.remote()
    pid, daemon = skate.get(sleeper.pids.remote())
    os.kill(pid, signal.SIGSTOP)
    try:
        before = resident_bytes(daemon)
        for number in range(count):
            assert skate.pubsub.publish("news", number.to_bytes(4, "big") + bytes(size - 4)) == 1
        grown = resident_bytes(daemon) - before
    finally:
        os.kill(pid, signal.SIGCONT)
    assert grown < 2 * BYTES_MAX, f"the daemon has grown by {grown >> 20} MiB"
    heard = 0

    def all_is_told() -> bool:
        nonlocal heard
        have, missed, last = skate.get(sleeper.heard.remote())
        heard += have
        return heard + missed == count and (not last or last[:4] == (count - 1).to_bytes(4, "big"))

    wait_for(all_is_told, 30, "every message to be heard or counted as missed")
    assert count - heard >= (count * size - 2 * BYTES_MAX) // size


def test_what_a_subscriber_does_not_take_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skate._worker.subscriptions.BYTES_MAX", 1000)
    with skate.init(num_cpus=1), skate.pubsub.subscribe("news") as subscription:
        for size in (400, 400, 400, 5000, 10):
            skate.pubsub.publish("news", bytes(size))
        skate.pubsub.publish("last", b"")  # what comes before it has come
        assert [len(subscription.get())] == [10]
        assert subscription.missed == 4
        skate.pubsub.publish("news", bytes(5000))  # one is kept, whatever its size
        assert len(subscription.get()) == 5000
        assert subscription.missed == 4
