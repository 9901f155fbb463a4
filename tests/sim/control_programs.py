"""The programs of the simulated cluster: what they ask of the control state, and what they were told.

A program is a driver, or a worker that becomes an actor when it is told to. It keeps what a real process keeps: its
requests, the actors that it watches, its functions and topics, and says those again when it hears Renewed.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any

from linearizable import Operation

from skate._core.actors import ALIVE, DEAD
from skate._core.task import ActorInfo, ActorSettings, Death, Job, Task
from skate._wire import messages as wire

if TYPE_CHECKING:
    from control_node import SimNode
    from control_world import World

KEYS = (b"a", b"b", b"c")
NAMES = ("red", "green")
NAMESPACE = "n"
#: Operations on one key that have not returned. The checker of histories takes longer with each of them.
OPEN_MAX = 6


class Program:
    def __init__(self, world: World, node: SimNode, id: bytes, job: Job, *, is_driver: bool) -> None:
        self.world = world
        self.node = node
        self.random = world.random
        # What the daemon knows of a process.
        self.id = id
        self.job = job
        self.worker = None if is_driver else self
        self.ready = True
        # What the process itself knows.
        self.is_alive = True
        self._counter = 0
        self._waiting: dict[int, Callable[[Any], None]] = {}
        self._answered: set[int] = set()
        #: The last that it was told of each actor that it watches, and the owners of those.
        self.watched: dict[bytes, wire.ActorState | None] = {}
        self._owners: dict[bytes, bytes] = {}
        self.functions: set[bytes] = set()
        self.topics: set[str] = set()
        #: The actor that it is, and which life of that.
        self.actor = b""
        self.life = 0
        self._is_leaving = False

    def __repr__(self) -> str:
        return f"process {self.id.hex()}"

    @property
    def waits(self) -> bool:
        """A request of it was not answered."""
        return bool(self._waiting)

    def begin(self) -> None:
        """It does something now and then, as long as it lives."""
        if self.is_alive and not self.world.is_healing:
            self._act()
            self.world.clock.after(self.random.uniform(0, 2 * self.world.pause_s), self.begin)

    # -- talking ------------------------------------------------------------------------------------------------------

    def say(self, message: Any) -> None:
        if self.is_alive:
            self.node.control.pass_on(self.id, message)

    def ask(self, make: Callable[[int], Any], then: Callable[[Any], None] = lambda body: None) -> None:
        self._counter += 1
        self._waiting[self._counter] = then
        self.say(make(self._counter))

    def hear(self, message: Any) -> None:
        match message:
            case wire.Answer(request, body):
                self._on_answer(request, body)
            case wire.ActorState(actor):
                before = self.watched.get(actor)
                if before is not None and before.state == DEAD and message.state != DEAD:
                    self.world.fail(f"{self} was told that actor {actor.hex()} is dead, and then that it lives")
                if actor in self.watched:
                    self.watched[actor] = message
            case wire.StartActor():
                self._on_start(message)
            case wire.LeaveActor():
                self._is_leaving = True
                if not self.world.everyone_left_stays:
                    self._soon(lambda: self.exits("it left"))
            case wire.Renewed():
                self._say_again()
            case wire.Published():
                if message.topic not in self.topics:
                    self.world.fail(f"{self} does not subscribe to what was published")

    def _on_answer(self, request: int, body: Any) -> None:
        if request in self._answered:
            self.world.fail(f"request {request} of {self} was answered twice")
            return
        self._answered.add(request)
        self._waiting.pop(request)(body)

    def _say_again(self) -> None:
        self.say(wire.Needs(sorted(self.functions)))
        for actor, told in sorted(self.watched.items()):
            if told is None or told.state != DEAD:
                self.say(wire.WatchActor(actor, self._owners[actor]))
        for topic in sorted(self.topics):
            self.say(wire.Topic(0, "subscribe", NAMESPACE, topic))

    def _soon(self, action: Callable[[], None]) -> None:
        self.world.clock.after(self.random.choice((0.0, 0.005, 0.1)), action)

    # -- the end ------------------------------------------------------------------------------------------------------

    def exits(self, reason: str) -> None:
        self.node.process_ends(self.id, reason)

    def ends(self, reason: str, *, by_control: bool) -> None:
        self.is_alive = False
        self._waiting.clear()
        placed = self.node.actors._placed.get(self.id)
        if placed is not None and not by_control:
            self.world.actors[placed.actor].ends_by_itself += 1

    # -- an actor -----------------------------------------------------------------------------------------------------

    def _on_start(self, message: wire.StartActor) -> None:
        if self.actor:
            self.world.fail(f"{self} was told twice to become an actor")
            return
        self.actor, self.life = message.create.actor, message.life
        known = self.world.actors[self.actor]
        if known.job.id and message.create.creation.id[:16] != self.actor:
            self.world.fail("an actor was made of the creation of another one")
        if message.life in known.lives:
            self.world.fail(f"life {message.life} of actor {self.actor.hex()} was started twice")
        known.lives[message.life] = self.id
        if self.job.namespace != known.job.namespace or self.job.id != known.job.id:
            self.world.fail(f"{self} has become an actor of another job")
        outcome = self.random.random()
        if outcome < 0.06 and not self.world.is_healing:
            self._soon(lambda: self.exits("it crashed in __init__"))
        elif outcome < 0.1 and not self.world.is_healing:
            self._soon(lambda: self._over("init"))
        else:
            self._soon(self._started)

    def _over(self, kind: str) -> None:
        if self.is_alive:
            self.world.actors[self.actor].asked_to_end.add(kind)
            self.say(wire.ActorEnded(Death(kind, "by its own doing")))
            self._soon(lambda: self.exits("it has left"))

    def _started(self) -> None:
        if self.is_alive:
            self.say(wire.ActorStarted())
            self.begin()

    # -- what programs do ---------------------------------------------------------------------------------------------

    def _act(self) -> None:
        kinds = (
            *(self._key_value,) * self.world.key_value_weight,
            self._new_actor,
            self._new_actor,
            self._watch,
            self._watch,
            self._end_actor,
            self._new_group,
            self._remove_group,
            self._topic,
            self._find,
            self._put_object,
            self._pull_object,
            self._free_object,
        )
        self.random.choice(kinds)()

    def _key_value(self) -> None:
        key, what = self.random.choice(KEYS), self.random.choice(("get", "put", "add", "add", "delete", "delete"))
        done = self.world.operations.setdefault(key, [])
        open_count = sum(operation.returned_at == inf for operation in done)
        if len(done) >= self.world.operations_max or open_count >= OPEN_MAX:
            return
        value = b"%d" % self.world.next_value() if what in ("put", "add") else b""
        kind = {"get": "read", "delete": "remove"}.get(what, what)
        operation = Operation(kind, key.decode(), (value.decode(),), self.world.clock.now)
        self.world.operations[key].append(operation)

        def answered(body: Any) -> None:
            operation.returned_at = self.world.clock.now
            operation.result = (body.decode() if body is not None else None) if kind == "read" else int(body)

        verb = "put" if what == "add" else what
        self.ask(lambda request: wire.KeyValue(request, verb, NAMESPACE, key, value, what != "add"), answered)

    def _new_actor(self) -> None:
        if len(self.world.actors) >= self.world.actors_max:
            return
        actor = self.world.new_id(16)
        name = self.random.choice(("", *NAMES))
        detached = bool(name) and self.random.random() < 0.5
        groups = [id for id, known in self.world.groups.items() if not known.is_removed]
        resources: dict[str, float] = self.random.choice(({}, {"CPU": 1.0}, {"CPU": 1.0}))
        if groups and self.random.random() < 0.4:
            resources = {f"CPU_group_{self.random.choice(groups).hex()}": 1.0}
        max_restarts = self.random.choice((0, 0, 1, 3, -1))
        info = ActorInfo("A", name, NAMESPACE, detached, max_restarts, resources, resources)
        fn = b"fn%d" % self.random.randrange(3)
        self.world.new_actor(actor, self, info, fn)

        def create() -> None:
            if self.is_alive:
                self.say(wire.Define(fn, "A", b"code"))
                self.functions.add(fn)
                creation = Task(actor + b"\0\0\0\0", fn, b"")
                self.say(wire.CreateActor(actor, creation, ActorSettings()))

        def answered(body: Any) -> None:
            known = self.world.actors[actor]
            known.was_taken = body["taken"]
            if body["taken"]:
                self._watch_actor(body["actor"], body["owner"] or self.world.actors[body["actor"]].owner)
            else:
                known.is_registered = True
                self._watch_actor(actor, self.id)
                self._soon(create)

        if name:
            self.ask(lambda request: wire.RegisterActor(request, actor, info), answered)
        else:
            self.say(wire.RegisterActor(0, actor, info))
            self._watch_actor(actor, self.id)
            self._soon(create)

    def _watch_actor(self, actor: bytes, owner: bytes) -> None:
        if actor not in self.watched:
            self.watched[actor], self._owners[actor] = None, owner
            self.say(wire.WatchActor(actor, owner))

    def _watch(self) -> None:
        if self.world.actors:
            known = self.random.choice(list(self.world.actors.values()))
            if not known.was_taken:
                self._watch_actor(known.id, known.owner)

    def _end_actor(self) -> None:
        living = [known for known in self.world.actors.values() if not known.asked_to_end]
        if not living:
            return
        known, how = self.random.choice(living), self.random.random()
        told = self.watched.get(known.id)
        if how < 0.3:
            known.asked_to_end.add("kill")
            self.say(wire.KillActor(known.id, True, "a program"))
        elif how < 0.6 and told is not None and told.state == ALIVE:
            if known.kills.setdefault(told.life, self.id) == self.id:
                self.say(wire.KillActor(known.id, False, "a program", life=told.life))
        elif known.owner == self.id and not known.info.detached:
            known.asked_to_end.add("scope")
            self.say(wire.DropActor(known.id))

    def _new_group(self) -> None:
        if len(self.world.groups) >= self.world.groups_max:
            return
        group, count = self.world.new_id(16), self.random.choice((1, 2, 2, 3))
        name = self.random.choice(("", "", "left", "right"))
        strategy = self.random.choice(("PACK", "SPREAD", "STRICT_SPREAD", "STRICT_PACK"))
        detached = self.random.random() < 0.3
        known = self.world.new_group(group, self, name, detached=detached)

        def answered(body: Any) -> None:
            known.was_taken = body.get("taken", False)
            known.is_there = not known.was_taken

        self.ask(
            lambda request: wire.CreateGroup(
                request, group, [{"CPU": 1.0}] * count, strategy, name, detached, self.job.driver
            ),
            answered,
        )

    def _remove_group(self) -> None:
        there = [known for known in self.world.groups.values() if known.is_there and not known.is_removed]
        if there and self.random.random() < 0.7:
            known = self.random.choice(there)
            known.is_removed, known.remover = True, self
            self.say(wire.RemoveGroup(known.id))

    def _topic(self) -> None:
        topic = self.random.choice(("t", "u"))
        if self.random.random() < 0.5:
            self.topics.add(topic)
            self.ask(lambda request: wire.Topic(request, "subscribe", NAMESPACE, topic))
        else:
            self.ask(lambda request: wire.Topic(request, "publish", NAMESPACE, topic, b"news"))

    def _find(self) -> None:
        name = self.random.choice(NAMES)

        def found(body: Any) -> None:
            if body is not None:
                self._watch_actor(body["actor"], body["owner"] or self.world.actors[body["actor"]].owner)

        self.ask(lambda request: wire.FindActor(request, name, NAMESPACE), found)

    # -- objects ------------------------------------------------------------------------------------------------------

    def _put_object(self) -> None:
        if self.world.new_objects():
            self.node.transfers.made[self.world.new_object(self)] = self.id

    def _pull_object(self) -> None:
        there = self.world.living_objects()
        if there:
            object = self.random.choice(there)
            maker = self.world.everyone[self.world.objects[object]].node
            if maker is not self.node and not maker.is_over:
                self.node.transfers.pull(object, maker)

    def _free_object(self) -> None:
        mine = [object for object, owner in self.node.transfers.made.items() if owner == self.id]
        if mine and self.random.random() < 0.3:
            object = self.random.choice(mine)
            self.world.objects_freed.add(object)
            self.node.transfers.free(object)
