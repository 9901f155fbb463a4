"""A caller's view of an actor: order, retries, and one answer for each call, whatever comes in whatever order."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from skate._core import actor_link
from skate._core.actor_link import BATCH_MAX, DEPTH_MAX, ActorLink
from skate._core.actors import ALIVE, DEAD, PENDING, STARTING, WAITING
from skate._core.task import Task

P1, P2, P3 = b"process-1", b"process-2", b"process-3"


def call(number: int) -> Task:
    return Task(b"call-%06d" % number, b"method", b"")


A, B, C, D = (call(number) for number in range(4))


def link_to(state: str = ALIVE, life: int = 1, process: bytes = P1, *, eager: bool = False) -> ActorLink:
    link = ActorLink(b"actor", eager=eager)
    link.told(state, life, process)
    return link


def submit(link: ActorLink, *tasks: Task, ready: bool = True) -> None:
    for task in tasks:
        link.queue.append(task)
        if not ready:
            link.unready.add(task.id)
    link.validate()


def take(link: ActorLink) -> list[Task]:
    taken = link.take()
    link.validate()
    return taken


def judge(link: ActorLink, again: Iterable[Task] = ()) -> list[Task]:
    """Those in `again` may run again."""
    allowed = {task.id for task in again}
    failed = link.judge(lambda task: task.id in allowed)
    link.validate()
    return failed


def answer(link: ActorLink, *tasks: Task) -> None:
    for task in tasks:
        del link.inflight[task.id]
    link.validate()


# --- Sending ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [WAITING, PENDING, STARTING, DEAD])
def test_nothing_is_sent_to_an_actor_that_is_not_alive(state: str) -> None:
    link = link_to(state, 0, b"")
    submit(link, A)
    assert take(link) == []
    assert link.pending == 1


def test_calls_are_sent_in_order_once_it_lives() -> None:
    link = ActorLink(b"actor", eager=False)
    submit(link, A, B)
    link.told(ALIVE, 1, P1)
    submit(link, C)
    assert take(link) == [A, B, C]
    assert take(link) == []
    assert list(link.inflight.values()) == [A, B, C]
    assert (link.process, link.sent_life) == (P1, 1)


def test_calls_do_not_wait_for_the_results_of_those_before_them() -> None:
    link = link_to()
    submit(link, A)
    take(link)
    submit(link, B)
    assert take(link) == [B]
    assert link.pending == 2


@pytest.mark.parametrize("state", [str(b"alive", "ascii"), "".join(["dea", "d"])])
def test_a_state_that_came_over_the_wire_is_the_same_state(state: str) -> None:
    """It is compared by identity where calls are made."""
    link = link_to(state)
    assert link.state is (ALIVE if state == "alive" else DEAD)


def test_a_message_has_a_bound_and_so_has_what_is_on_the_way() -> None:
    link = link_to()
    tasks = [call(number) for number in range(DEPTH_MAX + 10)]
    submit(link, *tasks)
    sent: list[Task] = []
    while batch := take(link):
        assert len(batch) <= BATCH_MAX
        sent += batch
    assert sent == tasks[:DEPTH_MAX]
    answer(link, tasks[0])
    assert take(link) == tasks[DEPTH_MAX : DEPTH_MAX + 1]


def test_a_call_whose_arguments_are_late_holds_up_those_behind_it() -> None:
    link = link_to()
    submit(link, A)
    submit(link, B, ready=False)
    submit(link, C)
    assert take(link) == [A]
    assert take(link) == []
    link.unready.discard(B.id)
    assert take(link) == [B, C]


def test_an_eager_actor_gets_what_is_ready_and_the_rest_keeps_its_order() -> None:
    link = link_to(eager=True)
    submit(link, A, C, ready=False)
    submit(link, B, D)
    assert take(link) == [B, D]
    assert list(link.queue) == [A, C]
    link.unready.clear()
    assert take(link) == [A, C]


@pytest.mark.parametrize("eager", [False, True])
def test_order_and_concurrency_can_be_chosen_apart(eager: bool) -> None:
    """Whether a call waits for the arguments of those before it does not hang on how many run at a time."""
    for ordered, sent in ((True, [A]), (False, [A, C])):
        link = ActorLink(b"actor", eager=eager, ordered=ordered)
        link.told(ALIVE, 1, P1)
        submit(link, A)
        submit(link, B, ready=False)
        submit(link, C)
        assert take(link) == sent


def test_an_eager_actor_gets_one_message_after_another_but_does_not_have_to_answer() -> None:
    link = link_to(eager=True)
    submit(link, *[call(number) for number in range(BATCH_MAX + 5)])
    assert len(take(link)) == BATCH_MAX
    link.acknowledged = False
    assert take(link) == []
    link.acknowledged = True
    assert len(take(link)) == 5
    assert len(link.inflight) == BATCH_MAX + 5


@pytest.mark.parametrize("eager", [False, True])
def test_an_eager_message_has_a_bound_though_some_calls_are_not_ready(eager: bool) -> None:
    link = link_to(eager=eager)
    submit(link, *[call(number) for number in range(BATCH_MAX + 5)])
    submit(link, call(999_999), ready=False)
    assert len(take(link)) == BATCH_MAX


# --- The end of a life ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("told_first", [False, True])
def test_what_was_sent_and_may_not_run_again_fails_and_the_rest_waits_for_the_next_life(told_first: bool) -> None:
    link = link_to()
    submit(link, A, B)
    take(link)
    submit(link, C)
    if told_first:
        link.told(PENDING, 1, b"")
        assert judge(link, [B]) == []
        assert take(link) == []
        link.gone(1)
        assert judge(link, [B]) == [A]
    else:
        link.gone(1)
        assert judge(link, [B]) == [], "nobody knows whether there is another life"
        assert take(link) == []
        link.told(PENDING, 1, b"")
        assert judge(link, [B]) == [A]
    link.told(ALIVE, 2, P2)
    assert take(link) == [B, C]
    assert link.sent_life == 2


@pytest.mark.parametrize("told_first", [False, True])
def test_when_the_actor_is_dead_nothing_runs_again(told_first: bool) -> None:
    link = link_to()
    submit(link, A, B)
    take(link)
    submit(link, C)
    submit(link, D, ready=False)
    if told_first:
        link.told(DEAD, 1, b"")
        assert judge(link, [A, B, C, D]) == [C, D], "what was sent may still be answered"
        link.gone(1)
        assert judge(link, [A, B]) == [A, B]
    else:
        link.gone(1)
        assert judge(link, [A, B]) == []
        link.told(DEAD, 1, b"")
        assert judge(link, [A, B, C, D]) == [A, B, C, D]
    assert link.pending == 0
    assert not link.unready


def test_results_that_were_on_the_way_count() -> None:
    link = link_to()
    submit(link, A, B)
    take(link)
    link.told(PENDING, 1, b"")
    answer(link, A)
    link.gone(1)
    assert judge(link) == [B]


def test_nothing_is_sent_to_the_next_life_before_the_last_one_is_over() -> None:
    """Otherwise a newer call could overtake one that is sent again."""
    link = link_to()
    submit(link, A)
    take(link)
    link.told(PENDING, 1, b"")
    link.told(ALIVE, 2, P2)
    submit(link, B)
    assert take(link) == []
    assert judge(link) == []
    link.gone(1)
    assert take(link) == []
    assert judge(link, [A]) == []
    assert take(link) == [A, B]


def test_lives_that_were_over_before_anything_was_sent_to_them_do_not_matter() -> None:
    link = link_to()
    submit(link, A, B)
    take(link)
    link.gone(1)
    for life in (1, 2, 3):
        link.told(PENDING, life, b"")
        assert judge(link, [B]) == ([A] if life == 1 else [])
    link.told(ALIVE, 4, P3)
    link.gone(2)
    link.gone(3)
    assert take(link) == [B]
    link.gone(3)
    assert judge(link) == []
    assert list(link.inflight.values()) == [B]


def test_several_lives_in_a_row_use_up_the_retries() -> None:
    link = link_to()
    submit(link, A)
    left = 2

    def may_run_again(task: Task) -> bool:
        nonlocal left
        left -= 1
        return left >= 0

    for life in (1, 2):
        assert take(link) == [A]
        link.gone(life)
        link.told(PENDING, life, b"")
        assert link.judge(may_run_again) == []
        link.told(ALIVE, life + 1, P2)
        assert link.judge(may_run_again) == [], "asked once for each life"
    assert take(link) == [A]
    link.gone(3)
    link.told(PENDING, 3, b"")
    assert link.judge(may_run_again) == [A]


def test_a_life_may_be_said_to_be_over_twice() -> None:
    """It says that it leaves, and then its process ends; meanwhile another call was sent there."""
    link = link_to()
    submit(link, A)
    take(link)
    answer(link, A)
    link.gone(1)
    submit(link, B)
    assert take(link) == [B]
    link.gone(1)
    link.told(PENDING, 1, b"")
    assert judge(link, [B]) == []
    link.told(ALIVE, 2, P2)
    assert take(link) == [B]


def test_retries_keep_the_order_around_calls_that_fail() -> None:
    link = link_to()
    submit(link, A, B, C)
    take(link)
    submit(link, D)
    link.gone(1)
    link.told(PENDING, 1, b"")
    assert judge(link, [A, C]) == [B]
    assert list(link.queue) == [A, C, D]


def test_an_end_lets_an_eager_actor_be_sent_to_again() -> None:
    link = link_to(eager=True)
    submit(link, A)
    take(link)
    link.acknowledged = False
    link.gone(1)
    link.told(ALIVE, 2, P2)
    assert judge(link, [A]) == []
    assert take(link) == [A]


def test_the_end_of_an_old_life_says_nothing_of_what_the_new_one_has_read() -> None:
    link = link_to(eager=True)
    submit(link, A)
    take(link)
    answer(link, A)
    link.told(PENDING, 1, b"")
    link.told(ALIVE, 2, P2)
    submit(link, B)
    assert take(link) == [B]
    link.acknowledged = False
    link.gone(1)
    submit(link, C)
    assert take(link) == [], "B has not been read"


def test_when_it_could_not_be_reached_for_too_long_calls_with_retries_wait_on_and_are_not_sent_again() -> None:
    link = link_to()
    calls = [call(number) for number in range(4)]
    submit(link, *calls[:3])
    assert take(link) == calls[:3]
    submit(link, calls[3])
    assert link.cut_off(lambda task: task in calls[1:3]) == [(calls[0], True), (calls[3], False)]
    assert list(link.inflight.values()) == calls[1:3]
    assert take(link) == []
    link.validate()


def test_the_dead_stay_dead() -> None:
    """Who kills an actor takes it to be dead at once; that it had just come to life may be heard after that."""
    link = link_to(PENDING, 1, b"")
    link.told(DEAD, 1, b"")
    link.told(ALIVE, 2, P2)
    submit(link, A)
    assert take(link) == []
    assert judge(link) == [A]


def test_nothing_is_sent_to_a_life_that_this_process_has_ended() -> None:
    link = link_to()
    submit(link, A)
    take(link)
    link.dying()
    submit(link, B)
    assert take(link) == []
    link.gone(1)
    assert judge(link, [A]) == [], "the node will say whether there is another life"
    link.told(PENDING, 1, b"")
    assert judge(link, [A]) == []
    link.told(ALIVE, 2, P2)
    assert take(link) == [A, B]


@pytest.mark.parametrize("state", [WAITING, PENDING, STARTING, DEAD])
def test_what_does_not_live_does_not_die(state: str) -> None:
    link = link_to(state, 0, b"")
    link.dying()
    assert link.state == state


# --- Giving up --------------------------------------------------------------------------------------------------------


def test_a_call_that_waits_can_be_withdrawn() -> None:
    link = link_to(PENDING)
    submit(link, A)
    submit(link, B, ready=False)
    submit(link, C)
    assert link.withdraw(B)
    link.validate()
    assert not link.withdraw(B)
    link.told(ALIVE, 1, P1)
    assert take(link) == [A, C]


def test_a_call_that_was_sent_cannot_be_withdrawn() -> None:
    link = link_to()
    submit(link, A)
    take(link)
    assert not link.withdraw(A)
    assert link.pending == 1


def test_a_call_that_was_lost_can_be_withdrawn() -> None:
    link = link_to()
    submit(link, A, B)
    take(link)
    link.gone(1)
    assert link.withdraw(A)
    link.told(PENDING, 1, b"")
    assert judge(link) == [B]
    assert link.pending == 0


def test_what_was_held_up_goes_on_when_the_call_before_it_is_withdrawn() -> None:
    link = link_to()
    submit(link, A, ready=False)
    submit(link, B)
    assert take(link) == []
    assert link.withdraw(A)
    assert take(link) == [B]


def test_validate_finds_calls_in_two_places_and_arguments_of_nobody() -> None:
    link = link_to()
    submit(link, A)
    link.inflight[A.id] = A
    with pytest.raises(AssertionError, match="two places"):
        link.validate()
    link = link_to()
    link.unready.add(A.id)
    with pytest.raises(AssertionError, match="no call"):
        link.validate()
    link = link_to()
    link.inflight[A.id] = A
    link.lost.append(B)
    with pytest.raises(AssertionError, match="not decided"):
        link.validate()


# --- At random, against a simulated actor -----------------------------------------------------------------------------


class Sent(msgspec.Struct):
    """A call, as an onlooker knows it."""

    task: Task
    #: -1: no end.
    retries: int
    used: int = 0
    cancelled: bool = False
    #: It was given up because the process could not be reached for too long.
    cut_off: bool = False
    #: How often it was sent, and how often it ran.
    sent: int = 0
    ran: int = 0
    #: "value", "failed" or "cancelled".
    answers: list[str] = msgspec.field(default_factory=list)


class Life(msgspec.Struct):
    """A process of the actor, and both directions of the channel to it."""

    number: int
    over: bool = False
    #: Messages that it has not read, and calls that it has read and not run.
    inbox: deque[list[Task]] = msgspec.field(default_factory=deque)
    waiting: list[Task] = msgspec.field(default_factory=list)
    #: "taken", "gone", or the id of a call with its value, on the way to the caller.
    outbox: deque[str | bytes] = msgspec.field(default_factory=deque)
    #: Every call that was sent to it.
    arrived: list[bytes] = msgspec.field(default_factory=list)

    @property
    def process(self) -> bytes:
        return b"process-%d" % self.number


class Schedules(RuleBasedStateMachine):
    """One caller, one actor, and every order of events between them that channels allow.

    The caller does what `_worker/actors.py` does: it pushes and judges after everything that it hears.
    """

    @initialize(
        eager=st.booleans(),
        ordered=st.sampled_from([None, True, False]),
        restarts=st.sampled_from([0, 2, 9]),
        alive=st.booleans(),
    )
    def begin(self, eager: bool, ordered: bool | None, restarts: int, alive: bool) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(actor_link, "BATCH_MAX", 3)
        self.patch.setattr(actor_link, "DEPTH_MAX", 5)
        self.link = ActorLink(b"actor", eager=eager, ordered=ordered)
        self.calls: dict[bytes, Sent] = {}
        self.restarts = restarts
        self.lives: list[Life] = []
        #: What the node has said, on its way to the caller; and how the actor is in truth.
        self.news: deque[tuple[str, int, bytes]] = deque()
        self.state = WAITING
        #: On their way from the caller to the node: wishes that the present life should end.
        self.kills = 0
        if alive:
            self.a_life_begins(False, 1)
            self.hear_from_the_node(1)

    def teardown(self) -> None:
        if hasattr(self, "patch"):
            try:
                self.everything_comes_to_its_end()
            finally:
                self.patch.undo()

    # -- the caller

    @rule(
        count=st.integers(1, 4), retries=st.sampled_from([0, 0, 1, 2, -1]), ready=st.sampled_from([True, True, False])
    )
    def submit(self, count: int, retries: int, ready: bool) -> None:
        for _ in range(count):
            task = call(len(self.calls))
            self.calls[task.id] = Sent(task, retries)
            self.link.queue.append(task)
            if not ready:
                self.link.unready.add(task.id)
        self.push()

    def push(self) -> None:
        link = self.link
        if link.state is DEAD:
            self.judge()
            return
        while taken := link.take():
            life = self.lives[link.life - 1]
            assert link.process == life.process
            for task in taken:
                self.calls[task.id].sent += 1
            life.arrived += [task.id for task in taken]
            if not life.over:
                life.inbox.append(taken)
            elif "gone" not in life.outbox:
                life.outbox.append("gone")  # the caller is told so when it asks for a channel
            if link.eager:
                link.acknowledged = False
                break

    def judge(self) -> None:
        for task in self.link.judge(self.may_run_again):
            sent = self.calls[task.id]
            sent.answers.append("cancelled" if sent.cancelled else "failed")
        if self.link.state is not DEAD and self.link.queue:
            self.push()

    def may_run_again(self, task: Task) -> bool:
        sent = self.calls[task.id]
        if sent.cancelled or 0 <= sent.retries <= sent.used:
            return False
        sent.used += 1
        return True

    def unanswered(self) -> list[Sent]:
        return [sent for sent in self.calls.values() if not sent.answers]

    @precondition(lambda self: len(self.unanswered()) > 2)
    @rule(which=st.integers(0, 99))
    def cancel(self, which: int) -> None:
        unanswered = self.unanswered()
        sent = unanswered[which % len(unanswered)]
        sent.cancelled = True
        if self.link.withdraw(sent.task):
            sent.answers.append("cancelled")
            self.push()

    @precondition(lambda self: self.link.unready)
    @rule(which=st.integers(0, 99))
    def an_argument_arrives(self, which: int) -> None:
        unready = sorted(self.link.unready)
        self.link.unready.discard(unready[which % len(unready)])
        self.push()

    @precondition(lambda self: self.link.state is ALIVE and self.link.life == self.link.sent_life)
    @rule()
    def the_grace_of_a_cut_is_over(self) -> None:
        inflight = list(self.link.inflight)
        for task, was_sent in self.link.cut_off(self.may_run_again):
            sent = self.calls[task.id]
            assert was_sent == (task.id in inflight)
            assert sent.cancelled or sent.used == sent.retries
            sent.answers.append("cancelled" if sent.cancelled else "failed")
            sent.cut_off = was_sent
        assert [id for id in inflight if id in self.link.inflight] == list(self.link.inflight), "the order stays"

    @rule()
    def end_the_present_life(self) -> None:
        self.link.dying()
        self.kills += 1

    # -- what the caller hears

    @precondition(lambda self: self.news)
    @rule(count=st.integers(1, 3))
    def hear_from_the_node(self, count: int) -> None:
        for _ in range(min(count, len(self.news))):
            self.link.told(*self.news.popleft())
            self.judge()

    @precondition(lambda self: any(life.outbox for life in self.lives))
    @rule(which=st.integers(0, 9), count=st.integers(1, 5))
    def hear_from_a_life(self, which: int, count: int) -> None:
        speaking = [life for life in self.lives if life.outbox]
        self.hear(speaking[which % len(speaking)], count)

    def hear(self, life: Life, count: int) -> None:
        link = self.link
        for _ in range(min(count, len(life.outbox))):
            message = life.outbox.popleft()
            if message == "gone":
                link.gone(life.number)
                self.judge()
            elif message == "taken":
                link.acknowledged = True
                self.push()
            else:
                assert isinstance(message, bytes)
                if self.calls[message].cut_off:
                    assert message not in link.inflight
                    continue  # its late result is ignored
                assert link.inflight.pop(message).id == message, "a result that nobody waits for"
                self.calls[message].answers.append("value")
                self.push()

    # -- the actor and its node

    def tell(self, state: str, *, process: bytes = b"") -> None:
        self.state = state
        self.news.append((state, len(self.lives), process))

    @precondition(lambda self: self.state in (WAITING, PENDING))
    @rule(watched_late=st.booleans(), succeeds=st.integers(0, 3))
    def a_life_begins(self, watched_late: bool, succeeds: int) -> None:
        life = Life(len(self.lives) + 1)
        self.lives.append(life)
        if watched_late:
            self.tell(STARTING, process=life.process)
        if not succeeds:
            life.over = True
            self.end_or_restart()
        else:
            self.tell(ALIVE, process=life.process)

    @precondition(lambda self: self.state == ALIVE)
    @rule()
    def the_actor_reads(self) -> None:
        life = self.lives[-1]
        if life.inbox:
            life.waiting += life.inbox.popleft()
            if self.link.eager:
                life.outbox.append("taken")

    @precondition(lambda self: self.state == ALIVE)
    @rule(count=st.integers(1, 5), which=st.integers(0, 9))
    def the_actor_runs(self, count: int, which: int) -> None:
        life = self.lives[-1]
        for _ in range(min(count, len(life.waiting))):
            task = life.waiting.pop(which % len(life.waiting) if self.link.eager else 0)
            self.calls[task.id].ran += 1
            life.outbox.append(task.id)

    @precondition(lambda self: self.state == ALIVE)
    @rule(lost=st.integers(0, 4), leaves=st.booleans(), next_begins=st.booleans())
    def the_life_ends(self, lost: int, leaves: bool, next_begins: bool) -> None:
        """What it had not sent off is lost. One that leaves by itself says so, before its process ends."""
        life = self.lives[-1]
        life.over = True
        life.inbox.clear()
        life.waiting.clear()
        if leaves:
            life.outbox.append("gone")
        else:
            for _ in range(min(lost, len(life.outbox))):
                life.outbox.pop()
        life.outbox.append("gone")
        self.end_or_restart()
        if next_begins and self.state == PENDING:
            self.a_life_begins(False, 1)

    @precondition(lambda self: self.kills)
    @rule(lost=st.integers(0, 4))
    def the_node_kills(self, lost: int) -> None:
        """Whatever lives there by then."""
        self.kills -= 1
        if self.state == ALIVE:
            self.the_life_ends(lost, False, False)

    def end_or_restart(self) -> None:
        self.restarts -= 1
        self.tell(PENDING if self.restarts >= 0 else DEAD)

    # -- what holds at any time

    @invariant()
    def books_balance(self) -> None:
        if not hasattr(self, "link"):
            return
        link = self.link
        link.validate()
        open_calls = {id for id, sent in self.calls.items() if not sent.answers}
        assert open_calls == {task.id for task in (*link.queue, *link.inflight.values(), *link.lost)}
        assert link.pending == len(open_calls)
        assert link.eager or len(link.inflight) <= actor_link.DEPTH_MAX
        for sent in self.calls.values():
            assert len(sent.answers) <= 1, f"answered twice: {sent}"
            assert sent.ran <= sent.sent
            assert sent.retries < 0 or sent.sent <= 1 + sent.retries, f"sent too often: {sent}"
            assert sent.answers != ["value"] or sent.ran >= 1
            assert sent.answers != ["cancelled"] or sent.cancelled

    @invariant()
    def each_life_gets_calls_in_order(self) -> None:
        for life in getattr(self, "lives", ()):
            assert max(Counter(life.arrived).values(), default=1) == 1, "sent twice to one life"
            if self.link.ordered:
                assert life.arrived == sorted(life.arrived)

    @invariant()
    def what_may_always_run_again_fails_only_with_the_actor(self) -> None:
        if hasattr(self, "link") and self.link.state is not DEAD:
            for sent in self.calls.values():
                assert sent.retries >= 0 or sent.answers != ["failed"]

    def everything_comes_to_its_end(self) -> None:
        """All arguments come, all is heard, and the actor gets to live or is dead: no call is left waiting."""
        while self.kills:
            self.the_node_kills(0)
        if self.state in (WAITING, PENDING):
            self.a_life_begins(False, 1)
        self.link.unready.clear()
        self.push()
        while self.news or any(life.outbox or life.inbox or life.waiting for life in self.lives):
            while self.news:
                self.hear_from_the_node(1)
            for life in self.lives:
                self.hear(life, len(life.outbox))
            if self.state == ALIVE:
                self.the_actor_reads()
                self.the_actor_runs(5, 0)
        self.books_balance()
        self.each_life_gets_calls_in_order()
        assert self.link.pending == 0, "nothing will ever happen to these"
        assert all(len(sent.answers) == 1 for sent in self.calls.values())


Schedules.TestCase.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
TestSchedules = Schedules.TestCase


@pytest.mark.parametrize("seed", range(10))
def test_many_plain_schedules(seed: int) -> None:
    """The same without hypothesis: no shrinking, but a hundred times as many, and none that does little."""
    rng = random.Random(seed)
    for _ in range(150):
        world = Schedules()
        ordered = rng.choice([None, True, False])
        world.begin(eager=rng.random() < 0.3, ordered=ordered, restarts=rng.choice([0, 2, 9]), alive=True)
        for _ in range(rng.randint(5, 60)):
            wander(world, rng)
            world.books_balance()
            world.each_life_gets_calls_in_order()
            world.what_may_always_run_again_fails_only_with_the_actor()
        world.teardown()


def wander(world: Schedules, rng: random.Random) -> None:
    """One step that changes something."""
    step = rng.randrange(20)
    if step <= 3 or not world.calls:
        world.submit(rng.randint(1, 4), rng.choice([0, 1, 2, -1]), rng.random() < 0.9)
    elif step <= 5 and world.state == ALIVE:
        world.the_life_ends(rng.randrange(4), rng.random() < 0.3, rng.random() < 0.5)
    elif step <= 7 and world.state in (WAITING, PENDING):
        world.a_life_begins(rng.random() < 0.3, rng.randrange(4))
    elif step <= 10 and world.news:
        world.hear_from_the_node(rng.randint(1, 3))
    elif step <= 14 and any(life.outbox for life in world.lives):
        world.hear_from_a_life(rng.randrange(9), rng.randint(1, 5))
    elif step == 15 and world.kills:
        world.the_node_kills(rng.randrange(4))
    elif step == 15:
        world.end_the_present_life()
    elif step == 16 and world.link.unready:
        world.an_argument_arrives(rng.randrange(99))
    elif step <= 17 and world.unanswered():
        world.cancel(rng.randrange(99))
    elif world.state == ALIVE:
        world.the_actor_reads()
        world.the_actor_runs(rng.randint(1, 5), rng.randrange(9))
