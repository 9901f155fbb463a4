"""Whoever waits reads, the I/O thread reads when nobody waits, and between the two no message and no timer is lost.

Real socket pairs and real threads. Nothing here sleeps: a thread waits for an event, or `wait_for` looks for a state.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from skate._wire.channel import RECEIVE_BYTES, Channel
from skate._wire.messages import AnyMessage, Borrowed, Define
from skate._worker import loop as loop_module
from skate._worker.loop import ARMED, Loop
from waiting import wait_for

#: A test that waits this long has failed.
PATIENCE_S = 10.0


class Host:
    """A loop that notes what happens in it, and the far ends of its channels."""

    def __init__(self, loop_class: type[Loop] = Loop) -> None:
        self.received: list[Any] = []
        #: The thread that handled each message, by message.
        self.handled_in: dict[Any, int] = {}
        self.closed: list[Channel] = []
        self.ticks = 0
        self.busy = False
        self.on_message: Callable[[Channel, AnyMessage], None] = lambda channel, message: None
        self.loop = loop_class(self._handle, self._on_closed, self._tick)
        self.peers: list[Channel] = []

    def _handle(self, channel: Channel, messages: list[AnyMessage]) -> None:
        assert is_locked(self.loop)
        for message in messages:
            self.handled_in[number_of(message)] = threading.get_ident()
            self.on_message(channel, message)
            self.received.append(number_of(message))

    def _on_closed(self, channel: Channel) -> None:
        assert is_locked(self.loop)
        self.closed.append(channel)

    def _tick(self) -> bool:
        assert is_locked(self.loop)
        self.ticks += 1
        return self.busy

    def connect(
        self, channel_class: type[Channel] = Channel, send_buffer: int | None = None
    ) -> tuple[Channel, Channel]:
        """A new channel of the loop, and its far end."""
        ours, theirs = socket.socketpair()
        if send_buffer is not None:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        near, far = channel_class(ours), Channel(theirs)
        self.loop.add(near)
        self.peers.append(far)
        return near, far

    def wait(self, number: object, timeout_s: float = PATIENCE_S) -> bool:
        return self.loop.wait(lambda: number in self.received, time.monotonic() + timeout_s)


def number_of(message: AnyMessage) -> Any:
    return message.request if isinstance(message, Borrowed) else message


def is_locked(loop: Loop) -> bool:
    """Whether a thread (this one, say) holds the lock, as another thread sees it."""
    free: list[bool] = []

    def look() -> None:
        free.append(loop.lock.acquire(blocking=False))
        if free[0]:
            loop.lock.release()

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return not free[0]


@pytest.fixture(autouse=True)
def long_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Housekeeping comes round only after everybody has lost patience, so it cannot cover up for a lost wake-up."""
    monkeypatch.setattr(loop_module, "TICK_S", 100 * PATIENCE_S)


@pytest.fixture
def short_ticks(long_ticks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "TICK_S", 0.001)


@pytest.fixture
def host() -> Iterator[Host]:
    """With its I/O thread running."""
    made = Host()
    made.loop.start()
    yield made
    made.loop.stop()
    for peer in made.peers:
        peer.close()


@pytest.fixture
def lone_host() -> Iterator[Host]:
    """Without an I/O thread: only a thread that waits reads."""
    made = Host()
    yield made
    made.loop.stop()
    for peer in made.peers:
        peer.close()


class Waiting:
    """A thread that waits in a loop for something."""

    def __init__(self, loop: Loop, ready: Callable[[], object], deadline: float | None = None) -> None:
        self.result: bool | None = None
        self._thread = threading.Thread(target=self._run, args=(loop, ready, deadline), daemon=True)
        self._thread.start()

    def _run(self, loop: Loop, ready: Callable[[], object], deadline: float | None) -> None:
        self.result = loop.wait(ready, deadline)

    def ended(self) -> bool:
        self._thread.join(PATIENCE_S)
        return not self._thread.is_alive()


def wait_until_reading(loop: Loop) -> None:
    wait_for(loop._reading.locked, PATIENCE_S, "a thread to read")


def wait_until_sleeping(loop: Loop, count: int = 1) -> None:
    wait_for(lambda: loop._sleepers == count, PATIENCE_S, f"{count} threads to sleep while another reads")


def wait_until_received(host: Host, number: int) -> None:
    wait_for(
        lambda: number in host.received, PATIENCE_S, f"message {number} to be read, by no thread that waits for it"
    )


def linger(host: Host) -> None:
    with host.loop.lock:
        host.loop.linger()


def read_from(channel: Channel, count: int) -> list[AnyMessage]:
    """That many messages at the far end, read as they come."""
    scratch = bytearray(RECEIVE_BYTES)
    messages: list[AnyMessage] = []
    while len(messages) < count:
        readable, _, _ = select.select([channel.sock], [], [], PATIENCE_S)
        assert readable, f"{len(messages)} of {count} messages came"
        messages += channel.receive(scratch)
    return messages


# --- Who reads --------------------------------------------------------------------------------------------------------


def test_a_thread_that_waits_reads_itself(lone_host: Host) -> None:
    _, far = lone_host.connect()
    far.send(Borrowed(1))
    assert lone_host.wait(1)
    assert lone_host.handled_in[1] == threading.get_ident()


def test_while_nobody_waits_the_io_thread_reads(host: Host) -> None:
    _, far = host.connect()
    arrived = threading.Event()
    host.on_message = lambda channel, message: arrived.set()
    for number in range(20):
        arrived.clear()
        far.send(Borrowed(number))
        assert arrived.wait(PATIENCE_S)
        assert host.handled_in[number] not in (0, threading.get_ident())


def test_a_thread_that_waits_takes_over_from_the_io_thread(host: Host) -> None:
    _, far = host.connect()
    waiting = Waiting(host.loop, lambda: 1 in host.received)
    wait_until_reading(host.loop)
    far.send(Borrowed(1))
    assert waiting.ended()
    assert host.handled_in[1] == waiting._thread.ident


def test_while_a_thread_submits_what_arrives_is_read_all_the_same(host: Host) -> None:
    _, far = host.connect()
    for number in range(20):
        linger(host)
        far.send(Borrowed(number))
        if number % 5 == 0:
            wait_until_received(host, number)
    wait_until_received(host, 19)
    assert host.received == list(range(20))
    assert threading.get_ident() not in host.handled_in.values()


def test_the_io_thread_is_there_again_when_no_more_is_submitted(host: Host) -> None:
    _, far = host.connect()
    linger(host)
    wait_for(lambda: not host.loop._lingering, PATIENCE_S, "the end of lingering")
    far.send(Borrowed(1))
    wait_until_received(host, 1)


def test_what_somebody_wants_to_know_at_once_does_not_linger(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "LINGER_S", 100 * PATIENCE_S)
    _, far = host.connect()
    linger(host)
    far.send(Borrowed(1))
    host.loop.linger_no_more()
    wait_until_received(host, 1)


def test_a_thread_that_waits_does_not_linger(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "LINGER_S", 100 * PATIENCE_S)
    _, far = host.connect()
    linger(host)
    far.send(Borrowed(1))
    assert host.wait(1)
    assert host.handled_in[1] == threading.get_ident()
    for number in (2, 3):  # and now they are the I/O thread's again
        far.send(Borrowed(number))
        wait_until_received(host, number)


def test_who_waits_while_another_thread_begins_to_linger_leaves_somebody_who_reads() -> None:
    class Interrupted(Loop):
        """Something happens just before the I/O thread is told not to read."""

        meanwhile: Callable[[], object] | None = None

        def _watch(self, events: int) -> None:
            action, self.meanwhile = self.meanwhile, None
            if action is not None:
                action()
            super()._watch(events)

    host = Host(Interrupted)
    assert isinstance(host.loop, Interrupted)
    host.loop.start()
    _, far = host.connect()
    host.loop.meanwhile = lambda: Waiting(host.loop, lambda: False, time.monotonic()).ended()
    linger(host)
    far.send(Borrowed(1))
    wait_until_received(host, 1)
    host.loop.stop()
    far.close()


def test_whoever_relies_on_the_io_thread_is_told_when_that_cannot_go_on(host: Host) -> None:
    _, far = host.connect()
    failures: list[Exception] = []

    def fail(channel: Channel, message: AnyMessage) -> None:
        raise ZeroDivisionError

    host.on_message, host.loop.on_failure = fail, failures.append
    far.send(Borrowed(1))
    wait_for(lambda: failures, PATIENCE_S, "the failure to be told")
    assert isinstance(failures[0], ZeroDivisionError)


def test_messages_of_a_channel_are_handled_in_order_whoever_reads(host: Host) -> None:
    _, far = host.connect()
    for number in range(500):
        far.send(Borrowed(number))
        if number % 7 == 0:
            assert host.wait(number)
    assert host.wait(499)
    assert host.received == list(range(500))


def test_several_channels_are_read_by_one_wait(lone_host: Host) -> None:
    channels = [lone_host.connect() for _ in range(10)]
    for number, (_, far) in enumerate(channels):
        far.send(Borrowed(number))
    assert lone_host.loop.wait(lambda: len(lone_host.received) == 10, time.monotonic() + PATIENCE_S)
    assert sorted(lone_host.received) == list(range(10))


def test_what_is_ready_needs_no_message_and_no_time(lone_host: Host) -> None:
    assert lone_host.loop.wait(lambda: True, deadline=0.0)
    assert lone_host.loop.wait(lambda: True)


def test_what_became_ready_just_before_a_thread_reads_is_seen(lone_host: Host) -> None:
    """As when the I/O thread handles the message between a thread's first look and its taking over."""
    looks: list[bool] = []

    def ready() -> bool:
        looks.append(bool(looks))
        return looks[-1]

    assert Waiting(lone_host.loop, ready).ended()
    assert looks == [False, True]


def test_a_deadline_ends_a_wait(lone_host: Host) -> None:
    assert not lone_host.loop.wait(lambda: False, time.monotonic() - 1)
    deadline = time.monotonic() + 0.01
    assert not lone_host.loop.wait(lambda: False, deadline)
    assert time.monotonic() >= deadline


def test_messages_that_are_not_waited_for_do_not_end_a_wait(lone_host: Host) -> None:
    _, far = lone_host.connect()
    for number in range(5):
        far.send(Borrowed(number))
    assert not lone_host.loop.wait(lambda: 9 in lone_host.received, time.monotonic() + 0.01)
    assert lone_host.received == [0, 1, 2, 3, 4]


def test_short_waits_in_a_row_are_as_good_as_long_ones(host: Host) -> None:
    """After some waits that were short a thread looks again for a while before it blocks; nothing else changes."""
    near, far = host.connect()
    scratch = bytearray(RECEIVE_BYTES)
    host.on_message = lambda channel, message: None
    for number in range(300):
        near.send(Borrowed(number))
        far.receive(scratch)
        far.send(Borrowed(number))
        assert host.wait(number)
    assert not host.loop.wait(lambda: False, time.monotonic() + 0.001)


# --- Several threads --------------------------------------------------------------------------------------------------


def test_two_threads_that_wait_both_get_what_they_wait_for(host: Host) -> None:
    _, far = host.connect()
    one = Waiting(host.loop, lambda: 1 in host.received)
    wait_until_reading(host.loop)
    two = Waiting(host.loop, lambda: 2 in host.received)
    wait_until_sleeping(host.loop)
    far.send(Borrowed(2))  # read by the first, for the second
    assert two.ended()
    assert two.result is True
    assert one.result is None
    far.send(Borrowed(1))
    assert one.ended()


def test_when_the_reader_leaves_the_io_thread_reads_for_the_others(host: Host) -> None:
    _, far = host.connect()
    reader = Waiting(host.loop, lambda: 1 in host.received)
    wait_until_reading(host.loop)
    sleepers = [Waiting(host.loop, lambda: 2 in host.received) for _ in range(3)]
    wait_until_sleeping(host.loop, 3)
    far.send(Borrowed(1))
    assert reader.ended()
    far.send(Borrowed(2))
    assert all(sleeper.ended() and sleeper.result for sleeper in sleepers)


def test_a_deadline_ends_a_wait_while_another_thread_reads(host: Host) -> None:
    reader = Waiting(host.loop, lambda: 1 in host.received)
    wait_until_reading(host.loop)
    deadline = time.monotonic() + 0.01
    assert not host.loop.wait(lambda: False, deadline)
    assert time.monotonic() >= deadline
    _, far = host.connect()  # a new channel is read at once by whoever reads
    far.send(Borrowed(1))
    assert reader.ended()


@pytest.mark.parametrize("deadline", [1e9, float("inf")])
def test_a_deadline_may_be_as_late_as_one_likes(host: Host, deadline: float) -> None:
    reader = Waiting(host.loop, lambda: 1 in host.received, deadline)
    wait_until_reading(host.loop)
    sleeper = Waiting(host.loop, lambda: 2 in host.received, deadline)
    wait_until_sleeping(host.loop)
    _, far = host.connect()
    far.send(Borrowed(1))
    far.send(Borrowed(2))
    assert reader.ended()
    assert sleeper.ended()
    assert reader.result
    assert sleeper.result


def test_many_threads_ask_and_wait_at_once(host: Host) -> None:
    """Each asks and waits for its own answer, over and over, while others come and go as readers."""
    near, far = host.connect()
    threads, rounds = 4, 200

    def echo() -> None:
        scratch = bytearray(RECEIVE_BYTES)
        answered = 0
        while answered < threads * rounds:
            readable, _, _ = select.select([far.sock], [], [], PATIENCE_S)
            if not readable:
                return
            for message in far.receive(scratch):
                far.send(message)  # type: ignore[arg-type]
                answered += 1

    failed: list[int] = []

    def ask(thread: int) -> None:
        for turn in range(rounds):
            number = thread * rounds + turn
            near.send(Borrowed(number))
            if not host.wait(number):
                failed.append(number)
                return

    everybody = [threading.Thread(target=echo), *[threading.Thread(target=ask, args=(n,)) for n in range(threads)]]
    for thread in everybody:
        thread.start()
    for thread in everybody:
        thread.join()
    assert failed == []
    assert len(host.received) == threads * rounds


class SlowToLetGo:
    """The outer epoll, between whose arming and whatever comes next the I/O thread has all the time it needs."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._epoll = loop._outer
        self._polls = threading.Event()

    def modify(self, fd: int, events: int) -> None:
        self._polls.clear()
        self._epoll.modify(fd, events)
        if events == ARMED and threading.current_thread() is not self._loop._thread:
            self._polls.wait(0.5)

    def poll(self, timeout: float) -> list[tuple[int, int]]:
        self._polls.set()
        return self._epoll.poll(timeout)

    def close(self) -> None:
        self._epoll.close()


def test_what_arrives_while_the_reader_leaves_is_read() -> None:
    """The second message is there when the reader arms the outer epoll, so the I/O thread wakes while it leaves.

    It must not take the message for the reader's business: the reader has stopped reading, and nobody would look again.
    """
    host = Host()
    host.loop._outer = SlowToLetGo(host.loop)  # type: ignore[assignment]
    _, far = host.connect()
    second = threading.Event()
    host.on_message = lambda channel, message: second.set() if number_of(message) == 2 else None
    host.loop.start()

    def first_has_come() -> bool:
        if host.received == [1]:
            far.send(Borrowed(2))
            return True
        return False

    try:
        waiting = Waiting(host.loop, first_has_come)
        wait_until_reading(host.loop)
        far.send(Borrowed(1))
        assert waiting.ended()
        assert second.wait(1.0)
    finally:
        host.loop.stop()
        far.close()


# --- Full sockets and ends --------------------------------------------------------------------------------------------


def test_what_a_full_socket_did_not_take_is_sent_when_it_can_be(host: Host) -> None:
    near, far = host.connect(send_buffer=1)
    sent = [Define(b"fn", str(number), bytes(100_000)) for number in range(10)]
    for message in sent:
        near.send(message)
    assert near.has_backlog
    assert read_from(far, len(sent)) == sent
    wait_for(lambda: not near.has_backlog, PATIENCE_S, "everything to be sent")


def test_a_thread_that_waits_sends_what_was_kept_back(lone_host: Host) -> None:
    near, far = lone_host.connect(send_buffer=1)
    large = Define(b"fn", "large", bytes(1_000_000))
    near.send(large)
    got: list[AnyMessage] = []

    def peer() -> None:
        got.extend(read_from(far, 1))
        far.send(Borrowed(1))

    thread = threading.Thread(target=peer)
    thread.start()
    assert lone_host.wait(1)
    thread.join()
    assert got == [large]


class FullAgain(Channel):
    """After the first flush that empties the backlog, another thread fills the socket before the loop goes on."""

    __slots__ = ("filled",)

    def flush(self) -> bool:
        done = super().flush()
        if done and not getattr(self, "filled", False):
            self.filled = True
            self.send(Define(b"fn", "second", bytes(1_000_000)))
        return done


def test_a_socket_that_is_full_again_at_once_is_not_forgotten(host: Host) -> None:
    near, far = host.connect(FullAgain, send_buffer=1)
    near.send(Define(b"fn", "first", bytes(1_000_000)))
    assert [message.name for message in read_from(far, 2) if isinstance(message, Define)] == ["first", "second"]


def test_the_end_of_a_channel_is_told_once_and_ends_no_other(host: Host) -> None:
    one, far_one = host.connect()
    _, far_other = host.connect()
    far_one.send(Borrowed(1))
    far_one.close()
    assert host.loop.wait(lambda: host.closed, time.monotonic() + PATIENCE_S)
    assert host.received == [1], "what came before the end was handled before the end"
    far_other.send(Borrowed(2))
    assert host.wait(2)
    assert host.closed == [one]
    assert one.closed


def test_garbage_ends_its_channel_and_no_other(host: Host) -> None:
    one, far_one = host.connect()
    _, far_other = host.connect()
    far_one.sock.send(b"\x01\0\0\0\xc1")
    assert host.loop.wait(lambda: host.closed, time.monotonic() + PATIENCE_S)
    far_other.send(Borrowed(2))
    assert host.wait(2)
    assert host.closed == [one]


def test_a_handler_may_add_and_remove_channels(lone_host: Host) -> None:
    _, far = lone_host.connect()
    doomed, far_doomed = lone_host.connect()
    new: list[Channel] = []

    def on_message(channel: Channel, message: AnyMessage) -> None:
        if number_of(message) == 1:
            lone_host.loop.remove(doomed)
            new.append(lone_host.connect()[1])

    lone_host.on_message = on_message
    far.send(Borrowed(1))
    far_doomed.close()
    assert lone_host.wait(1)
    new[0].send(Borrowed(3))
    assert lone_host.wait(3)
    assert lone_host.closed in ([], [doomed])  # its end was read before the message, or never


# --- Notify -----------------------------------------------------------------------------------------------------------


def test_notify_wakes_the_thread_that_reads_and_those_that_sleep(host: Host) -> None:
    flag = threading.Event()
    threads = [Waiting(host.loop, flag.is_set)]
    wait_until_reading(host.loop)
    threads += [Waiting(host.loop, flag.is_set) for _ in range(2)]
    wait_until_sleeping(host.loop, 2)
    flag.set()
    host.loop.notify()
    assert all(thread.ended() and thread.result for thread in threads)


def test_notify_without_anyone_waiting_does_nothing(host: Host) -> None:
    for _ in range(1000):
        host.loop.notify()
    _, far = host.connect()
    far.send(Borrowed(1))
    assert host.wait(1)


def test_no_notification_is_lost_however_the_threads_meet(host: Host) -> None:
    for _ in range(200):
        flag = threading.Event()
        looked = threading.Event()

        def ready(flag: threading.Event = flag, looked: threading.Event = looked) -> bool:
            found = flag.is_set()
            looked.set()
            return found

        waiting = Waiting(host.loop, ready)
        assert looked.wait(PATIENCE_S)
        flag.set()
        host.loop.notify()
        assert waiting.ended()


def test_a_reader_that_was_notified_too_often_still_reads(lone_host: Host) -> None:
    """More notifications than the socket that carries them can hold."""
    with lone_host.loop._reading:
        for _ in range(5000):
            lone_host.loop.notify()
    _, far = lone_host.connect()
    far.send(Borrowed(1))
    assert lone_host.wait(1)


# --- Timers -----------------------------------------------------------------------------------------------------------


def test_timers_run_in_order_in_the_io_thread_with_the_lock_held(host: Host) -> None:
    ran: list[tuple[int, int, bool]] = []
    last = threading.Event()

    def action(number: int) -> Callable[[], None]:
        def run() -> None:
            ran.append((number, threading.get_ident(), is_locked(host.loop)))
            if number == 4:
                last.set()

        return run

    now = time.monotonic()
    with host.loop.lock:  # so that none runs before all are set
        for number in (3, 1, 4, 0, 2):
            host.loop.call_at(now + number * 0.001, action(number))
    assert last.wait(PATIENCE_S)
    assert [number for number, _, _ in ran] == [0, 1, 2, 3, 4]
    assert {thread for _, thread, _ in ran} == {host.loop._thread.ident}
    assert all(locked for _, _, locked in ran)


def test_timers_of_the_same_moment_run_in_the_order_they_were_set(host: Host) -> None:
    ran: list[int] = []
    last = threading.Event()
    when = time.monotonic()
    with host.loop.lock:
        for number in range(10):
            host.loop.call_at(when, lambda number=number: ran.append(number))  # type: ignore[misc]
        host.loop.call_at(when, last.set)
    assert last.wait(PATIENCE_S)
    assert ran == list(range(10))


def test_no_timer_runs_before_its_time(host: Host) -> None:
    when = time.monotonic() + 0.02
    ran: list[float] = []
    done = threading.Event()
    host.loop.call_at(when, lambda: (ran.append(time.monotonic()), done.set()))  # type: ignore[func-returns-value]
    assert done.wait(PATIENCE_S)
    assert ran[0] >= when


def test_a_near_timer_does_not_wait_for_a_far_one(host: Host) -> None:
    host.loop.call_at(time.monotonic() + 3600, lambda: pytest.fail("too early"))
    done = threading.Event()
    host.loop.call_at(time.monotonic(), done.set)
    assert done.wait(PATIENCE_S)


def test_a_timer_may_set_the_next(host: Host) -> None:
    done = threading.Event()
    left = 5

    def again() -> None:
        nonlocal left
        left -= 1
        if left:
            host.loop.call_at(time.monotonic(), again)
        else:
            done.set()

    host.loop.call_at(time.monotonic(), again)
    assert done.wait(PATIENCE_S)


def test_timers_run_while_another_thread_reads_and_wake_it_by_notify(host: Host) -> None:
    flag = threading.Event()
    waiting = Waiting(host.loop, flag.is_set)
    wait_until_reading(host.loop)

    def act() -> None:
        flag.set()
        host.loop.notify()

    host.loop.call_at(time.monotonic(), act)
    assert waiting.ended()


# --- Housekeeping and sleep -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("short_ticks")
def test_with_nothing_to_do_the_io_thread_goes_to_sleep(host: Host) -> None:
    wait_for(lambda: host.loop.dormant, PATIENCE_S, "the I/O thread to sleep")


@pytest.mark.usefixtures("short_ticks")
def test_while_there_is_something_to_do_it_does_not_sleep(host: Host) -> None:
    host.busy = True
    host.loop.stir()
    ticks = host.ticks
    wait_for(lambda: host.ticks > ticks + 20, PATIENCE_S, "many ticks")
    assert not host.loop.dormant
    host.busy = False
    wait_for(lambda: host.loop.dormant, PATIENCE_S, "the I/O thread to sleep")


def test_messages_without_a_pause_do_not_put_housekeeping_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "TICK_S", 0.05)
    host = Host()
    host.busy = True
    _, far = host.connect()
    host.on_message = lambda channel, message: far.send(Borrowed(0))
    host.loop.start()
    try:
        far.send(Borrowed(0))
        wait_for(lambda: host.ticks >= 3, PATIENCE_S, "three ticks between messages")
        assert len(host.received) > 3
    finally:
        host.loop.stop()
        far.close()


@pytest.mark.usefixtures("short_ticks")
def test_stir_wakes_it(host: Host) -> None:
    wait_for(lambda: host.loop.dormant, PATIENCE_S, "the I/O thread to sleep")
    ticks = host.ticks
    host.busy = True
    host.loop.stir()
    wait_for(lambda: host.ticks > ticks + 20, PATIENCE_S, "many ticks")
    # Not at once: before it stays awake it looks, as one that falls asleep, whether there is anything to do.
    wait_for(lambda: not host.loop.dormant, PATIENCE_S, "it to stay awake")


@pytest.mark.usefixtures("short_ticks")
def test_asleep_it_still_reads_and_keeps_time(host: Host) -> None:
    _, far = host.connect()
    for number in range(3):
        wait_for(lambda: host.loop.dormant, PATIENCE_S, "the I/O thread to sleep")
        far.send(Borrowed(number))
        wait_for(lambda number=number: number in host.received, PATIENCE_S, "the message")  # type: ignore[misc]
        wait_for(lambda: host.loop.dormant, PATIENCE_S, "the I/O thread to sleep")
        done = threading.Event()
        host.loop.call_at(time.monotonic(), done.set)
        assert done.wait(PATIENCE_S)


class Drowsy(Loop):
    """Something happens just before the I/O thread declares itself asleep, when it has found nothing to do."""

    _dormant = False
    just_before: Callable[[], None] | None = None

    @property
    def dormant(self) -> bool:
        return self._dormant

    @dormant.setter
    def dormant(self, value: bool) -> None:
        if value and self.just_before is not None:
            act, self.just_before = self.just_before, None
            act()
        self._dormant = value


@pytest.mark.usefixtures("short_ticks")
@pytest.mark.parametrize("what", ["a timer", "work"])
def test_what_is_set_up_while_it_falls_asleep_is_not_forgotten(what: str) -> None:
    host = Host(Drowsy)
    assert isinstance(host.loop, Drowsy)
    done = threading.Event()

    def happen() -> None:
        if what == "a timer":
            host.loop.call_at(time.monotonic() + 0.001, done.set)
        else:
            host.busy = True  # as whoever creates work does: it looks at `dormant`, and sees that it is awake
            assert not host.loop.dormant
            done.set()

    host.loop.just_before = happen
    host.loop.start()
    try:
        assert done.wait(1.0)
        if what == "work":
            ticks = host.ticks
            wait_for(lambda: host.ticks > ticks + 5, PATIENCE_S, "ticks that look after the work")
    finally:
        host.loop.stop()


# --- The end ----------------------------------------------------------------------------------------------------------


def open_descriptors() -> set[str]:
    return {entry.name for entry in Path("/proc/self/fd").iterdir()}


@pytest.mark.parametrize("started", [True, False])
def test_stop_leaves_no_thread_and_no_descriptor(started: bool) -> None:
    descriptors, threads = open_descriptors(), threading.active_count()
    host = Host()
    if started:
        host.loop.start()
    near, far = host.connect()
    far.send(Borrowed(1))
    assert host.wait(1)
    host.loop.notify()
    host.loop.stop()
    assert near.closed
    far.close()
    assert open_descriptors() == descriptors
    assert threading.active_count() == threads


def test_stop_is_seen_at_the_other_end() -> None:
    host = Host()
    host.loop.start()
    _, far = host.connect()
    host.loop.stop()
    far.sock.settimeout(PATIENCE_S)
    assert far.sock.recv(1) == b""
    far.close()


def test_stop_sends_waiting_threads_away() -> None:
    host = Host()
    host.loop.start()
    reader = Waiting(host.loop, lambda: False)
    wait_until_reading(host.loop)
    sleeper = Waiting(host.loop, lambda: False)
    wait_until_sleeping(host.loop)
    host.loop.stop()
    assert reader.ended()
    assert sleeper.ended()
    assert reader.result is sleeper.result is False


def test_after_stop_nobody_waits() -> None:
    host = Host()
    host.loop.start()
    host.loop.stop()
    assert not host.loop.wait(lambda: False)
    assert host.loop.wait(lambda: True)
