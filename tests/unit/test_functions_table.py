"""The functions of a cluster, and the actors that are made of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
from hypothesis import given

from skate._control.actors import ActorService
from skate._control.backend import Memory, Pairs, Sharded
from skate._control.functions import TABLE, Functions
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


def stored(backend: Memory | Sharded) -> list[bytes]:
    found: list[bytes] = []
    backend.scan(TABLE, b"", lambda pairs: found.extend(key for key, _ in pairs))
    return found


@given(st.lists(EVENTS, max_size=40))
def test_a_function_is_there_while_somebody_needs_it(events: list[tuple[str, bytes, bytes]]) -> None:
    backend = Sharded([Memory(), Memory()])
    functions = Functions(backend)
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
        assert stored(backend) == there
        assert {row["function_id"]: row["processes"] + row["actors"] for row in functions.describe()} == {
            fn: len(needed[fn]) for fn in there
        }
        for fn in FUNCTIONS:
            functions.get(fn, lambda found, fn=fn: _check(found, fn, needed))  # type: ignore[misc]


def _check(found: Define | None, fn: bytes, needed: dict[bytes, set[bytes]]) -> None:
    assert (found is not None) == bool(needed[fn])
    assert found is None or (found.fn, found.definition) == (fn, b"definition of " + fn)


class Slow:
    """A backend that answers when it is told to."""

    def __init__(self) -> None:
        self._memory = Memory()
        self.answers: list[Callable[[], None]] = []

    def get(self, table: str, key: bytes, then: Callable[[bytes | None], None]) -> None:
        self.answers.append(lambda: self._memory.get(table, key, then))

    def put(self, table: str, key: bytes, value: bytes, then: Callable[[], None]) -> None:
        self._memory.put(table, key, value, then)

    def delete(self, table: str, key: bytes, then: Callable[[bool], None]) -> None:
        self._memory.delete(table, key, then)

    def scan(self, table: str, prefix: bytes, then: Callable[[Pairs], None]) -> None:
        self._memory.scan(table, prefix, then)


class Recorder:
    """The outside of the actors."""

    def __init__(self) -> None:
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

    def call_later(self, seconds: float, action: Any) -> None: ...


def starting(backend: Any, define: bool = True) -> tuple[ActorService, Recorder, Functions]:
    outside: Any = Recorder()
    functions = Functions(backend)
    service = ActorService(outside, functions)
    owner = PROCESSES[0]
    if define:
        functions.handle(owner, Define(b"f", "Class", b"definition"))
    service.handle(owner, RegisterActor(0, b"a", ActorInfo("Class", max_restarts=1)))
    service.handle(owner, CreateActor(b"a", Task(b"a", b"f", b""), ActorSettings()))
    functions.handle(owner, Undefine([b"f"]))
    service.granted(b"a", b"worker", 1)
    return service, outside, functions


def test_an_actor_is_made_of_what_the_table_has_and_keeps_it_there() -> None:
    backend = Slow()
    service, outside, functions = starting(backend)
    assert not [each for each in outside.sent if isinstance(each[1], StartActor)]
    backend.answers.pop()()
    ((worker, start),) = [each for each in outside.sent if isinstance(each[1], StartActor)]
    assert (worker, start.define.definition) == (b"worker", b"definition")
    assert [row["actors"] for row in functions.describe()] == [1]
    service._do(service.table.kill(b"a", core.Death("kill", ""), no_restart=True))
    assert functions.describe() == []


def test_a_definition_that_comes_when_the_actor_is_dead_is_not_sent() -> None:
    backend = Slow()
    service, outside, _ = starting(backend)
    service._do(service.table.kill(b"a", core.Death("kill", ""), no_restart=True))
    backend.answers.pop()()
    assert not [each for each in outside.sent if isinstance(each[1], StartActor)]


def test_an_actor_whose_class_nobody_knows_dies_and_says_so() -> None:
    service, _, _ = starting(Memory(), define=False)
    actor = service.table.actors[b"a"]
    assert actor.state == core.DEAD
    assert actor.death is not None
    assert "definition of its class" in actor.death.reason
