"""Actors that are killed at random moments while many callers call them: what was promised to each call still holds.

The promises: every call is answered exactly once, by a value or by an error; within one life of an actor the calls of
one caller run in the order in which they were sent; a call runs again only if its retries allow it.

Each call that runs appends a line to a file, in one short write: the life of the actor, the caller, the number of the
call and its retries. So the promises can be checked even for callers that are dead.

A failure prints its seed. `SKATE_CHAOS_SEED` repeats what was drawn from it (not the moments at which the machine does
things), and `SKATE_CHAOS_S` prolongs the tests: 60 and more is for the night.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import functools
import gc
import os
import random
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import skate
from leaks import RUN_MARK, RUN_MARK_NAME
from programs import append, lines
from skate.exceptions import ActorDiedError, ActorError, TaskCancelledError
from waiting import wait_for

#: How long the killer is about in the longest of the tests; the others have half of that.
CHAOS_S = float(os.environ.get("SKATE_CHAOS_S", "4"))
#: How long an answer may take when nobody kills any more; and a restart, on a machine that is busy.
WITHIN_S = 30.0
#: Calls in a burst, and the retries that they may have. -1: no end.
BURST_MAX = 120
RETRIES = (0, 0, 1, 3, -1)
#: Kills in a row without any pause before them. An actor that is killed five times before it is made stays dead.
HASTY_MAX = 3

pytestmark = pytest.mark.timeout(60 + 4 * CHAOS_S)


@pytest.fixture(autouse=True)
def two_cpus() -> Iterator[None]:
    skate.init(num_cpus=2)
    yield
    skate.shutdown()


@pytest.fixture
def rng() -> random.Random:
    seed = int(os.environ.get("SKATE_CHAOS_SEED") or int.from_bytes(os.urandom(4), "big"))
    print(f"again: SKATE_CHAOS_SEED={seed} SKATE_CHAOS_S={CHAOS_S:g}")
    return random.Random(seed)


# --- Who is called ----------------------------------------------------------------------------------------------------


@skate.remote
class Target:
    """Logs each call that it runs, and its own pid, for the killer."""

    def __init__(self, log: Path, pids: Path) -> None:
        self.life = uuid.uuid4().hex
        self.log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        append(pids, os.getpid())

    def note(self, caller: str, number: int, retries: int, late: object = None) -> tuple[str, int]:
        os.write(self.log, f"{self.life} {caller} {number} {retries}\n".encode())
        return caller, number

    def leave(self) -> None:
        skate.exit_actor()


@skate.remote
class AsyncTarget:
    def __init__(self, log: Path, pids: Path) -> None:
        self.life = uuid.uuid4().hex
        self.log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        append(pids, os.getpid())

    async def note(self, caller: str, number: int, retries: int, late: object = None) -> tuple[str, int]:
        os.write(self.log, f"{self.life} {caller} {number} {retries}\n".encode())
        await asyncio.sleep(0.001 * (number % 4))
        return caller, number

    async def leave(self) -> None:
        skate.exit_actor()


@skate.remote(num_cpus=0)
def late_argument(pause_s: float) -> str:
    time.sleep(pause_s)
    return "late"


# --- Who calls --------------------------------------------------------------------------------------------------------


class Answer(NamedTuple):
    caller: str
    number: int
    retries: int
    #: It was cancelled, or took the result of another call: it may fail for reasons of its own.
    disturbed: bool
    #: "value", or the name of the error.
    what: str


class Calls:
    """What one caller sends, to all the targets and with mixed retries; numbered in the order sent."""

    def __init__(self, targets: list[Any], name: str, seed: int) -> None:
        self.name = name
        self.rng = random.Random(seed)
        self.notes = [
            {retries: target.note.options(max_task_retries=retries) for retries in set(RETRIES)} for target in targets
        ]
        self.sent = 0
        #: (number, retries, disturbed, reference) of those that are not answered yet.
        self.open: list[tuple[int, int, bool, Any]] = []

    def burst(self) -> None:
        rng = self.rng
        note = rng.choice(self.notes)
        for _ in range(rng.randint(1, BURST_MAX)):
            retries = rng.choice(RETRIES)
            arguments = [self.name, self.sent, retries]
            chance = rng.random()
            takes_another = chance < 0.02 and bool(self.open)
            if takes_another:
                arguments.append(self.open[-1][3])
            elif chance < 0.03:
                arguments.append(late_argument.remote(rng.random() / 50))
            ref = note[retries].remote(*arguments)
            cancelled = rng.random() < 0.02
            if cancelled:
                skate.cancel(ref)
            self.open.append((self.sent, retries, cancelled or takes_another, ref))
            self.sent += 1

    def answers(self) -> list[Answer]:
        answers = []
        for number, retries, disturbed, ref in self.open:
            what = self.answer(ref, number)
            assert self.answer(ref, number) == what, "answered twice"
            answers.append(Answer(self.name, number, retries, disturbed, what))
        self.open.clear()
        return answers

    def answer(self, ref: Any, number: int) -> str:
        try:
            value = skate.get(ref, timeout=WITHIN_S)
        except (ActorError, TaskCancelledError) as error:
            return type(error).__name__
        assert tuple(value) == (self.name, number), "the answer to another call"
        return "value"

    def send_until(self, deadline: float) -> list[Answer]:
        """Burst after burst; sometimes the next before the answers of the last."""
        answers = []
        while time.time() < deadline:
            self.burst()
            if self.rng.random() < 0.6:
                answers += self.answers()
        return answers + self.answers()


@skate.remote(num_cpus=0, max_retries=0)
def call_from_task(targets: list[Any], name: str, seed: int, deadline: float) -> list[Answer]:
    return Calls(targets, name, seed).send_until(deadline)


@skate.remote(num_cpus=0)
class Caller:
    def __init__(self, targets: list[Any], name: str, seed: int, pids: Path) -> None:
        # Each life has its own numbers.
        self.calls = Calls(targets, f"{name}-{uuid.uuid4().hex[:8]}", seed)
        append(pids, os.getpid())

    def send_until(self, deadline: float) -> list[Answer]:
        return self.calls.send_until(deadline)


class Thread(threading.Thread):
    """A thread of the driver that calls, or kills. What it raised is raised by `result`."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        super().__init__()
        self._run = functools.partial(function, *arguments)
        self._result: Any = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._result = self._run()
        except BaseException as error:
            self._error = error
        finally:
            del self._run  # and with it all handles

    def result(self) -> Any:
        self.join()
        if self._error is not None:
            raise self._error
        return self._result


# --- Who kills --------------------------------------------------------------------------------------------------------


def kill_if_ours(pid: int) -> bool:
    """Kill that process, if this test run started it: pids come round again."""
    with contextlib.suppress(OSError):
        handle = os.pidfd_open(pid)
        try:
            if f"{RUN_MARK_NAME}={RUN_MARK}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                return True
        finally:
            os.close(handle)
    return False


def kill_until(deadline: float, rng: random.Random, victims: list[Path]) -> int:
    """Kill the newest process of some victim, again and again; how often that was done.

    A victim is the file to which the lives of an actor append their pids.
    """
    killed = hasty = 0
    known = [0] * len(victims)
    while time.time() < deadline:
        which = rng.randrange(len(victims))
        pause_s = rng.choice([0.0, rng.random() / 100, rng.random() / 2])
        hasty = 0 if pause_s > 0.1 else hasty + 1
        time.sleep(0.2 if hasty > HASTY_MAX else pause_s)
        pids = lines(victims[which])
        # Otherwise its next life is on the way.
        if len(pids) > known[which] and kill_if_ours(int(pids[-1])):
            known[which] = len(pids)
            killed += 1
    return killed


# --- What must hold then ----------------------------------------------------------------------------------------------


def check_answers(answers: list[Answer], *, mortal: bool = False) -> None:
    """Each call has one answer, and those that must not fail did not. `mortal`: the actors may be dead for good."""
    numbers = collections.Counter((answer.caller, answer.number) for answer in answers)
    assert not [key for key, count in numbers.items() if count > 1]
    for answer in answers:
        assert answer.disturbed or answer.what != "TaskCancelledError", f"{answer}: nobody had cancelled it"
        assert mortal or answer.what != "ActorDiedError", f"{answer}: it has restarts without end"
        if answer.retries == -1 and not answer.disturbed:
            assert answer.what in ("value", "ActorDiedError"), f"{answer}: it may always be sent again"
    for caller, count in collections.Counter(answer.caller for answer in answers).items():
        assert {number for name, number in numbers if name == caller} == set(range(count)), caller


def check_log(log: Path, answers: list[Answer], *, ordered: bool) -> None:
    ran: collections.Counter[tuple[str, int]] = collections.Counter()
    in_life: dict[tuple[str, str], list[int]] = collections.defaultdict(list)
    retries_of: dict[tuple[str, int], int] = {}
    for line in lines(log):
        life, caller, number, retries = line.split()
        ran[caller, int(number)] += 1
        in_life[life, caller].append(int(number))
        retries_of[caller, int(number)] = int(retries)
    for (caller, number), times in ran.items():
        retries = retries_of[caller, number]
        assert retries == -1 or times <= 1 + retries, f"call {number} of {caller} ran {times} times, retries: {retries}"
    for (life, caller), numbers in in_life.items():
        assert len(numbers) == len(set(numbers)), f"life {life} ran a call of {caller} twice: {numbers}"
        if ordered:
            assert numbers == sorted(numbers), f"life {life} ran the calls of {caller} out of order: {numbers}"
    for answer in answers:
        if answer.what == "value":
            assert ran[answer.caller, answer.number] >= 1, f"{answer}, but it never ran"


def check_killed(killed: int, victims: list[Path]) -> None:
    """Otherwise nothing was tested."""
    print(f"{killed} kills in {[len(lines(pids)) for pids in victims]} lives")
    assert killed > 0, f"none of {[len(lines(pids)) for pids in victims]} lives was killed"


def check_alive(targets: list[Any]) -> None:
    for target in targets:
        name = f"check-{uuid.uuid4().hex}"
        ref = target.note.options(max_task_retries=-1).remote(name, 0, -1)
        assert tuple(skate.get(ref, timeout=WITHIN_S)) == (name, 0)


def make_targets(cls: Any, count: int, tmp_path: Path, **options: Any) -> tuple[list[Any], list[Path]]:
    pids = [tmp_path / f"pids-{number}" for number in range(count)]
    made = [cls.options(max_restarts=-1, num_cpus=0, **options).remote(tmp_path / "log", path) for path in pids]
    return made, pids


# --- The tests --------------------------------------------------------------------------------------------------------


def run_chaos(cls: Any, rng: random.Random, tmp_path: Path, seconds: float, *, ordered: bool, **options: Any) -> None:
    """Threads, tasks and actors call two actors that are killed again and again."""
    targets, pids = make_targets(cls, 2, tmp_path, **options)
    check_alive(targets)
    deadline = time.time() + seconds
    seeds = [rng.randrange(2**32) for _ in range(6)]
    threads = [Thread(Calls(targets, f"thread-{n}", seeds.pop()).send_until, deadline) for n in range(2)]
    refs = [call_from_task.remote(targets, f"task-{n}", seeds.pop(), deadline) for n in range(2)]
    caller = Caller.remote(targets, "actor", seeds.pop(), tmp_path / "pids-of-caller")
    refs.append(caller.send_until.remote(deadline))
    killer = Thread(kill_until, deadline, random.Random(seeds.pop()), pids)
    answers = [answer for thread in threads for answer in thread.result()]
    for ref in refs:
        answers += skate.get(ref, timeout=WITHIN_S)
    check_killed(killer.result(), pids)
    check_alive(targets)
    check_answers(answers)
    check_log(tmp_path / "log", answers, ordered=ordered)


def test_kills_at_random_moments_break_no_promise(rng: random.Random, tmp_path: Path) -> None:
    run_chaos(Target, rng, tmp_path, CHAOS_S, ordered=True)


def test_async_actors_break_no_promise_but_that_of_order(rng: random.Random, tmp_path: Path) -> None:
    run_chaos(AsyncTarget, rng, tmp_path, CHAOS_S / 2, ordered=False)


def test_threaded_actors_break_no_promise_but_that_of_order(rng: random.Random, tmp_path: Path) -> None:
    run_chaos(Target, rng, tmp_path, CHAOS_S / 2, ordered=False, max_concurrency=4)


@pytest.mark.parametrize("cls", [Target, AsyncTarget], ids=["plain", "async"])
def test_callers_that_are_killed_harm_nobody(cls: Any, rng: random.Random, tmp_path: Path) -> None:
    """Some of the callers are killed too, and made again; in the end nothing of theirs keeps the targets alive."""
    targets, target_pids = make_targets(cls, 2, tmp_path)
    seeds = [rng.randrange(2**32) for _ in range(5)]
    caller_pids = [tmp_path / f"pids-of-caller-{n}" for n in range(2)]
    callers = [
        Caller.options(max_restarts=-1).remote(targets, f"actor-{n}", seeds.pop(), path)
        for n, path in enumerate(caller_pids)
    ]
    check_alive(targets)
    wait_for(lambda: all(path.exists() for path in caller_pids), WITHIN_S, "the callers to be made")
    deadline = time.time() + CHAOS_S / 2
    survivor = Thread(Calls(targets, "driver", seeds.pop()).send_until, deadline)

    def call_through(caller: Any) -> list[Answer]:
        """What it answers in those of its lives that last long enough."""
        answers = []
        while time.time() < deadline:
            try:
                answers += skate.get(caller.send_until.remote(time.time() + 0.2), timeout=WITHIN_S)
            except ActorDiedError:
                raise
            except ActorError:
                continue
        return answers

    threads = [Thread(call_through, caller) for caller in callers]
    killers = [
        Thread(kill_until, deadline, random.Random(seeds.pop()), caller_pids),
        Thread(kill_until, deadline, random.Random(seeds.pop()), target_pids),
    ]
    answers = survivor.result()
    check_answers(answers)
    for thread in threads:
        answers += thread.result()
    for killer, pids in zip(killers, (caller_pids, target_pids)):
        check_killed(killer.result(), pids)
    check_alive(targets)
    check_log(tmp_path / "log", answers, ordered=cls is Target)
    last = [int(lines(path)[-1]) for path in (*target_pids, *caller_pids)]
    del targets, callers
    gc.collect()
    wait_for(lambda: not any(Path("/proc", str(pid)).exists() for pid in last), WITHIN_S, "all actors to be gone")


@pytest.mark.parametrize("cls", [Target, AsyncTarget], ids=["plain", "async"])
def test_actors_that_die_for_good_leave_no_call_without_an_answer(cls: Any, rng: random.Random, tmp_path: Path) -> None:
    """Actor after actor is killed from outside, killed by its driver, or leaves, while calls are on their way."""

    def end(target: Any, pids: Path, until: float) -> None:
        while time.time() < until:
            time.sleep(rng.random() / 10)
            how = rng.randrange(8)
            if how == 0:
                skate.kill(target)
            elif how == 1:
                skate.kill(target, no_restart=False)
            elif how == 2:
                target.leave.remote()
            elif lines(pids):
                kill_if_ours(int(lines(pids)[-1]))

    def call_it(calls: Calls, until: float) -> list[Answer]:
        try:
            return calls.send_until(until)
        finally:
            del calls.notes

    deadline = time.time() + CHAOS_S / 2
    number = 0
    while time.time() < deadline:
        number += 1
        log, pids = tmp_path / f"log-{number}", tmp_path / f"pids-{number}"
        target = cls.options(max_restarts=rng.choice([0, 1, 2]), num_cpus=0).remote(log, pids)
        seeds = [rng.randrange(2**32) for _ in range(3)]
        until = time.time() + rng.random()
        threads = [Thread(call_it, Calls([target], f"thread-{n}", seeds.pop()), until) for n in range(2)]
        ref = call_from_task.remote([target], "task", seeds.pop(), until)
        end(target, pids, until)
        skate.kill(target)
        answers = [answer for thread in threads for answer in thread.result()]
        answers += skate.get(ref, timeout=WITHIN_S)
        check_answers(answers, mortal=True)
        check_log(log, answers, ordered=cls is Target)
        del target


# --- What was found by such runs and by reading -----------------------------------------------------------------------


@skate.remote
class Chain:
    def crash(self, go: Path) -> None:
        while not go.exists():
            time.sleep(0.002)
        os._exit(3)

    def same(self, value: object) -> object:
        return value


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "dropped"])
def test_calls_that_take_each_others_results_all_fail_when_the_actor_dies(tmp_path: Path, keep: bool) -> None:
    """The first of them fails, and with it those that wait for its result: those must not be failed a second time."""
    chain = Chain.remote()
    first = chain.crash.remote(tmp_path / "go")
    second = chain.same.remote(first)
    third = chain.same.remote(second)
    fourth = chain.same.remote(4)
    refs = [first, second, third, fourth] if keep else [first, third, fourth]
    del second
    (tmp_path / "go").touch()
    for ref in refs:
        with pytest.raises(ActorDiedError):
            skate.get(ref, timeout=WITHIN_S)


def test_many_actors_that_can_never_be_placed_are_refused_at_the_same_time() -> None:
    """One grace period for all of them, not one after another for every few."""
    grace_s = 2.0
    skate.shutdown()
    skate.init(num_cpus=1, infeasible_grace_s=grace_s)
    chains = [Chain.options(resources={"wheels": 1}).remote() for _ in range(40)]
    refs = [chain.same.remote(0) for chain in chains]
    ready, _ = skate.wait(refs, num_returns=1, timeout=WITHIN_S)
    assert ready
    _, left = skate.wait(refs, num_returns=len(refs), timeout=grace_s * 0.8)
    assert not left, f"{len(left)} of {len(refs)} wait for another grace period"
