"""The functions of a cluster, and the actors that are made of them."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import given

from skate._control.state.actors import ActorService
from skate._control.state.functions import Functions
from skate._core import actors as core
from skate._core.ids import new_process_id, node_of
from skate._core.task import ActorInfo, ActorSettings, Job, Task
from skate._wire.messages import CreateActor, Define, RegisterActor, StartActor, Undefine

FUNCTIONS = [b"f", b"g"]
PROCESSES = [new_process_id(number) for number in (1, 1, 2)]
ACTORS = [b"a", b"b"]

EVENTS = st.one_of(
    st.tuples(st.sampled_from(["define", "undefine"]), st.sampled_from(PROCESSES), st.sampled_from(FUNCTIONS)),
    st.tuples(st.sampled_from(["hold", "let go"]), st.sampled_from(ACTORS), st.sampled_from(FUNCTIONS)),
    st.tuples(st.just("died"), st.sampled_from(PROCESSES), st.just(b"")),
    st.tuples(st.just("node died"), st.just(b""), st.sampled_from([b"1", b"2"])),
)


@given(st.lists(EVENTS, max_size=40))
def test_a_function_is_there_while_somebody_needs_it(events: list[tuple[str, bytes, bytes]]) -> None:
    stored: set[bytes] = set()

    def mark(table: str, fn: bytes) -> None:
        (stored.discard if functions.row(fn) is None else stored.add)(fn)

    functions = Functions(mark)
    needed: dict[bytes, set[bytes]] = {fn: set() for fn in FUNCTIONS}
    for what, who, fn in events:
        match what:
            case "define":
                functions.handle(who, Define(fn, fn.decode(), b"definition of " + fn))
                needed[fn].add(who)
            case "undefine":
                functions.handle(who, Undefine([fn]))
                needed[fn].discard(who)
            case "hold":
                functions.hold(fn, who)
                if needed[fn]:
                    needed[fn].add(who)
            case "let go":
                functions.let_go(fn, who)
                needed[fn].discard(who)
            case "died":
                functions.process_died(who)
                for users in needed.values():
                    users.discard(who)
            case "node died":
                functions.node_died(int(fn))
                for users in needed.values():
                    users -= {each for each in PROCESSES if node_of(each) == int(fn)}
        there = [fn for fn in FUNCTIONS if needed[fn]]
        assert sorted(stored) == there
        assert {row["function_id"]: row["processes"] + row["actors"] for row in functions.describe()} == {
            fn: len(needed[fn]) for fn in there
        }
        for fn in FUNCTIONS:
            found = functions.get(fn)
            assert (found is not None) == bool(needed[fn])
            assert found is None or (found.fn, found.definition) == (fn, b"definition of " + fn)


class Recorder:
    """As much of a control state as the actors need."""

    def __init__(self) -> None:
        self.functions = Functions(self.mark)
        self.sent: list[tuple[bytes, Any]] = []

    def send(self, process_id: bytes, message: Any) -> None:
        self.sent.append((process_id, message))

    def place(self, actor: bytes, info: ActorInfo, job: Job) -> None: ...

    def job_of(self, process_id: bytes) -> Job:
        return Job()

    def unplace(self, actor: bytes) -> None: ...

    def actor_died(self, actor: bytes) -> None: ...

    def kill(self, process_id: bytes, reason: str) -> None:
        self.sent.append((process_id, reason))

    def after(self, seconds: float, event: Any) -> None: ...

    def mark(self, table: str, key: bytes) -> None: ...


def starting(define: bool = True) -> tuple[ActorService, Recorder, Functions]:
    outside: Any = Recorder()
    functions = outside.functions
    service = ActorService(outside)
    owner = PROCESSES[0]
    if define:
        functions.handle(owner, Define(b"f", "Class", b"definition"))
    service.handle(owner, RegisterActor(0, b"a", ActorInfo("Class", max_restarts=1)))
    service.handle(owner, CreateActor(b"a", Task(b"a", b"f", b""), ActorSettings()))
    functions.handle(owner, Undefine([b"f"]))
    service.granted(b"a", b"worker", 1)
    return service, outside, functions


def test_an_actor_is_made_of_what_the_table_has_and_keeps_it_there() -> None:
    service, outside, functions = starting()
    ((worker, start),) = [each for each in outside.sent if isinstance(each[1], StartActor)]
    assert (worker, start.define.definition) == (b"worker", b"definition")
    assert [row["actors"] for row in functions.describe()] == [1]
    service._do(service.table.kill(b"a", core.Death("kill", ""), no_restart=True))
    assert functions.describe() == []


def test_an_actor_whose_class_is_not_known_dies_and_says_so() -> None:
    service, _, _ = starting(define=False)
    actor = service.table.actors[b"a"]
    assert actor.state == core.DEAD
    assert actor.death is not None
    assert "definition of its class" in actor.death.reason
