"""The controller's dealings with replicas: it starts them, hears how they end, and asks how they are."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import msgspec

import skate
from skate.exceptions import ActorDiedError, ActorError, ActorUnavailableError, SkateError, TaskError
from skate.serve import blobs, configs, ledger
from skate.serve.metrics import Snapshot
from skate.serve.placement import NoNode, has_group, place, remove_group
from skate.serve.reconcile import Deployment, State
from skate.serve.records import NAMESPACE, AppSpec, DeploymentSpec, ReplicaRecord
from skate.serve.replica import LINGER_S, Hello, Replica

__all__ = ["Crew"]

#: Seconds beyond its drain time within which a replica has to report its end.
ANSWERS_WITHIN_S = 5.0
#: Seconds to wait for the answers of all replicas. Later answers count too.
PROBES_WITHIN_S = 0.5
#: Calls at a time that a replica can have; its slots let fewer of them work.
CALLS_MAX = 100_000
#: What the error of a replica says that has ended in order.
LEFT = "exit_actor"
MISSES_MAX = 3
#: Between two looks at a replica whose node cannot be reached.
UNREACHABLE_S = 0.1
#: How the names of keepers begin.
KEEPER = "SERVE_KEEPER::"

#: Of a replica: its deployment and its id.
Key = tuple[str, str]

_ReplicaActor = skate.remote(max_concurrency=CALLS_MAX, concurrency_groups={"control": 100})(Replica)


class Crew:
    """The replicas of all deployments, as actors."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._actors: dict[Key, Any] = {}
        #: What lies in the ledger of each replica.
        self._records: dict[Key, ReplicaRecord] = {}
        #: Replicas that wait for a node, with what they are made of.
        self._unplaced: dict[Key, tuple[Deployment, AppSpec, DeploymentSpec, Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._checked: dict[Key, float] = {}
        #: Questions that have no answer yet.
        self._probes: dict[Key, asyncio.Task[None]] = {}
        #: Why a replica was ended that was not well.
        self._unwell: dict[Key, str] = {}
        #: What each replica has counted; and, by deployment, those that are gone, and processes with handles.
        self.counted: dict[Key, Snapshot] = {}
        self.gone: dict[str, Snapshot] = {}
        #: Why a deployment has fewer replicas than it is to have, if its nodes are full.
        self.full: dict[str, str] = {}
        #: Blobs that were put into the object store, for as long as this controller lives.
        self._put: dict[str, Any] = {}

    # -- commands ---------------------------------------------------------------------------------------------------

    def start(self, deployment: Deployment, id: str, app: AppSpec, spec: DeploymentSpec, http: Any) -> None:
        """Make a replica, or let it wait for a node."""
        has_socket = http is not None and spec.is_ingress and app.route_prefix is not None
        record = ReplicaRecord(spec.key, id, spec.version, spec.settings, spec.drain_s, has_socket=has_socket)
        self._unplaced.pop((spec.key, id), None)
        try:
            if has_group(spec):
                record = msgspec.structs.replace(record, has_group=True)
                self._keep(record)  # what it reserves would be lost with this controller, too
            options, record = place(spec, record, self._records.values())
            self._keep(record)  # first: a replica that is not in the ledger would be lost with this controller
            actor = _ReplicaActor.options(**options, name=record.name, namespace=NAMESPACE, lifetime="detached").remote(
                id, app, spec, self._code(spec.code), self._config(spec.config), http
            )
        except NoNode as error:
            self._unplaced[spec.key, id] = (deployment, app, spec, http)
            self.full[spec.key] = str(error)
            return
        except Exception as error:  # noqa: BLE001 - options that cannot be meant are the deployer's to hear of
            self._forget(record)
            deployment.failed(id, f"{type(error).__name__}: {error}", time.monotonic())
            self._changed()
            return
        self._actors[spec.key, id] = actor
        self._spawn(self._start(deployment, record, actor))

    def start_waiting(self) -> None:
        """Make the replicas that have waited for a node, if one may have them by now."""
        self.full.clear()
        for (_, id), what in list(self._unplaced.items()):
            self.start(what[0], id, *what[1:])

    def adopt(self, deployment: Deployment | None, record: ReplicaRecord) -> bool:
        """Take over a replica that an earlier controller has started; False if it is dead.

        A replica of a deleted deployment is drained.
        """
        try:
            actor = skate.get_actor(record.name, NAMESPACE)
        except ValueError:
            self._forget(record)
            return False
        self._records[record.key, record.id] = record
        self._actors[record.key, record.id] = actor
        if deployment is None or record.state == "DRAINING":
            self._spawn(self._drain(actor, record.drain_s, LINGER_S, None))
        if deployment is not None and record.state == "STARTING":
            self._spawn(self._start(deployment, record, actor))
        else:
            self._spawn(self._watch(deployment, record, actor))
        return True

    def configure(self, deployment: Deployment, id: str, spec: DeploymentSpec) -> None:
        """Give a replica other settings."""
        actor = self._actors.get((spec.key, id))
        if actor is not None:
            self._spawn(self._configure(deployment, id, actor, spec))

    def drain(self, deployment: Deployment, id: str, timeout_s: float, silent_s: float | None) -> None:
        """Let a replica end. No handle looks for one of a deployment that was deleted, so that one does not linger."""
        key = (deployment.spec.key, id)
        actor = self._actors.get(key)
        if actor is not None:
            self._keep(msgspec.structs.replace(self._records[key], state="DRAINING"))
            self._spawn(self._drain(actor, timeout_s, 0.0 if deployment.deleted else LINGER_S, silent_s))

    def kill(self, deployment: Deployment, id: str) -> None:
        """End a replica at once."""
        key = (deployment.spec.key, id)
        self._unplaced.pop(key, None)
        actor = self._actors.get(key)
        if actor is not None:
            skate.kill(actor)

    async def tell_routes(self) -> None:
        """Have the replicas that answer HTTP know the routes as they are now. A slow one is left alone."""
        telling = [
            asyncio.ensure_future(_tell_routes(self._actors[key]))
            for key, record in self._records.items()
            if record.has_socket and record.state == "RUNNING" and key in self._actors
        ]
        if telling:
            await asyncio.wait(telling, timeout=ANSWERS_WITHIN_S)

    def forget_blobs(self, needed: set[str]) -> None:
        """Keep in the object store only what is needed."""
        self._put = {digest: ref for digest, ref in self._put.items() if digest in needed}

    # -- what happens -----------------------------------------------------------------------------------------------

    async def _start(self, deployment: Deployment, record: ReplicaRecord, actor: Any) -> None:
        while True:
            try:
                hello: Hello = await actor.hello.remote()
            except ActorUnavailableError:  # its node cannot be reached at present
                await asyncio.sleep(UNREACHABLE_S)
                continue
            except Exception as error:  # noqa: BLE001 - whatever it is, the replica has not started
                skate.kill(actor)
                self._forget(record)
                deployment.failed(record.id, _told(error), time.monotonic())
                self._changed()
                return
            break
        record = msgspec.structs.replace(record, state="RUNNING", node=hello.node, tunnel=hello.tunnel)
        if record.id in deployment.replicas:
            self._keep(record)
        deployment.started(record.id, hello.node, hello.tunnel, time.monotonic())
        self._changed()
        await self._watch(deployment, record, actor)

    async def _watch(self, deployment: Deployment | None, record: ReplicaRecord, actor: Any) -> None:
        """Wait until a replica has ended."""
        key = (record.key, record.id)
        while True:
            try:
                await actor.stay.remote()
                continue  # it ends: the next call fails, and says how
            except ActorDiedError as error:
                why = "" if LEFT in error.reason else _told(error)
            except ActorError:
                await asyncio.sleep(UNREACHABLE_S)  # the connection broke, or its node cannot be reached at present
                continue
            break
        why = self._unwell.pop(key, why)
        counted = self.counted.pop(key, None)
        if counted is not None and deployment is not None:
            self.gone.setdefault(record.key, Snapshot()).merge(counted.gone())
        self._forget(record)
        if deployment is not None:
            deployment.died(record.id, why, time.monotonic())
        self._changed()

    async def _configure(self, deployment: Deployment, id: str, actor: Any, spec: DeploymentSpec) -> None:
        why = ""
        while True:
            try:
                await actor.reconfigure.remote(spec, self._config(spec.config))
            except Exception as error:  # noqa: BLE001 - the deployment's own, or it is dead
                if _is_of_actor(error, ActorUnavailableError):
                    await asyncio.sleep(UNREACHABLE_S)
                    continue
                if _is_of_actor(error, ActorError):
                    return  # it is dead, which the watch says
                why = _told(error)
            break
        record = self._records.get((spec.key, id))
        if record is not None:
            version = "" if why else record.version
            self._keep(msgspec.structs.replace(record, settings=spec.settings, version=version))
        deployment.configured(id, spec.settings, why)
        self._changed()

    async def _drain(self, actor: Any, timeout_s: float, linger_s: float, silent_s: float | None) -> None:
        try:
            ended = _awaited(actor.drain.remote(timeout_s, linger_s, silent_s))
            done = await asyncio.wait_for(ended, timeout_s + ANSWERS_WITHIN_S)
        except ActorDiedError:
            return
        except (asyncio.TimeoutError, TaskError, ActorError):
            done = False
        if not done:
            skate.kill(actor)

    # -- the ledger -------------------------------------------------------------------------------------------------

    def _keep(self, record: ReplicaRecord) -> None:
        self._records[record.key, record.id] = record
        ledger.keep_replica(record)

    def _forget(self, record: ReplicaRecord) -> None:
        """Release what a dead replica held."""
        key = (record.key, record.id)
        record = self._records.pop(key, record)
        self._actors.pop(key, None)
        self._checked.pop(key, None)
        if record.has_group:
            remove_group(record)
        if record.has_socket:
            self._spawn(self.tidy_keepers())
        ledger.forget_replica(record)

    async def tidy_keepers(self) -> None:
        """Tell the keepers of sockets which replicas have ended. A keeper without replicas watches for connections."""
        for each in skate.util.list_named_actors(all_namespaces=True):
            if each["namespace"] != NAMESPACE or not each["name"].startswith(KEEPER):
                continue
            with contextlib.suppress(ValueError, ActorError):
                keeper = skate.get_actor(each["name"], NAMESPACE)
                for id in await keeper.holders.remote() - {id for _, id in self._records}:
                    await keeper.returned.remote(id)

    # -- questions --------------------------------------------------------------------------------------------------

    async def probe(self, deployments: list[Deployment]) -> None:
        """Ask all replicas what they have to do, and those whose turn it is whether they are well.

        One that does not answer is not asked again, and holds up no other. Its health is asked all the same.
        """
        now = time.monotonic()
        for deployment in deployments:
            for id, replica in list(deployment.replicas.items()):
                key = (deployment.spec.key, id)
                actor = self._actors.get(key)
                if actor is None or replica.state is State.STARTING:
                    continue
                if key not in self._probes:
                    self._probes[key] = self._spawn(self._probe(key, actor))
                if now - self._checked.setdefault(key, now) >= deployment.spec.health_period_s:
                    self._checked[key] = float("inf")  # until it has been answered
                    self._spawn(self._check(deployment, id, actor))
        if self._probes:
            await asyncio.wait(self._probes.values(), timeout=PROBES_WITHIN_S)

    async def _probe(self, key: Key, actor: Any) -> None:
        try:
            counted: Snapshot = await actor.probe.remote()
        except ActorError:
            return
        finally:
            self._probes.pop(key, None)
        if key in self._actors:  # else it has ended meanwhile
            self.counted[key] = counted

    async def _check(self, deployment: Deployment, id: str, actor: Any) -> None:
        try:
            await self._look(deployment, id, actor)
        finally:
            if (deployment.spec.key, id) in self._actors:
                self._checked[deployment.spec.key, id] = time.monotonic()

    async def _look(self, deployment: Deployment, id: str, actor: Any) -> None:
        """Ask a replica whether it is well, and end it if it was not several times."""
        replica = deployment.replicas.get(id)
        if replica is None or replica.state is not State.RUNNING:
            return
        try:
            await asyncio.wait_for(_awaited(actor.check_health.remote()), deployment.spec.health_timeout_s)
            replica.misses = 0
            return
        except asyncio.TimeoutError as error:
            why = f"check_health did not return within {deployment.spec.health_timeout_s:g} s."
            if isinstance(error, TaskError):
                why = _told(error)
        except Exception as error:  # noqa: BLE001 - the deployment's own
            if _is_of_actor(error, ActorError):
                return
            why = _told(error)
        replica.misses += 1
        if replica.misses >= MISSES_MAX:
            self._unwell[deployment.spec.key, id] = f"replica {id} was ended because it was not well.\n{why}"
            self.kill(deployment, id)

    # -- blobs ------------------------------------------------------------------------------------------------------

    def _code(self, digest: str) -> Any:
        if digest not in self._put:
            self._put[digest] = skate.put(blobs.load(digest))
        return self._put[digest]

    def _config(self, digest: str) -> Any:
        if not digest:
            return None
        if digest not in self._put:
            self._put[digest] = configs.put(blobs.load(digest))
        return self._put[digest]

    def _spawn(self, coroutine: Any) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _tell_routes(actor: Any) -> None:
    with contextlib.suppress(SkateError):  # it may be ending
        await actor.learn_routes.remote()


async def _awaited(ref: Any) -> Any:
    return await ref


def _is_of_actor(error: BaseException, kind: type[ActorError]) -> bool:
    """Whether an error speaks of the actor that was called, and is none that its method has raised."""
    return isinstance(error, kind) and not isinstance(error, TaskError)


def _told(error: BaseException) -> str:
    """The text of an error, with the traceback of what the deployment raised."""
    if isinstance(error, ActorDiedError) and not isinstance(error, TaskError):
        if error.__cause__ is not None:
            return str(error.__cause__)
        # What its own text advises is for actors of the user's own.
        printed = f"\nIt printed last:\n{error.last_output}" if error.last_output else ""
        return f"a replica died: {error.reason}{printed}"
    return str(error) if isinstance(error, (TaskError, ActorError)) else f"{type(error).__name__}: {error}"
