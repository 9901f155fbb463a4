"""The controller: it keeps what is to be served, and has it served.

A detached actor with its state in `skate.kv` (`ledger.py`). When it is killed it is started again, reads its state,
finds its replicas by their names, and goes on. Requests do not need it meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import skate
from skate.serve import blobs, ledger
from skate.serve.application import App
from skate.serve.config import HTTPOptions
from skate.serve.crew import Crew
from skate.serve.demand import Demand, probe_every_s
from skate.serve.directory import publish_routes, publish_table, table_keys
from skate.serve.ledger import Kept
from skate.serve.metrics import prometheus_text
from skate.serve.reconcile import Command, Configure, Deployment, Drain, Kill, Publish, Replica, Start, State
from skate.serve.records import CONTROLLER, NAMESPACE, AppSpec, Member, Route, Routes, Table
from skate.serve.replica import LINGER_S
from skate.serve.report import ApplicationStatusOverview, ServeStatus, application_overview, deployment_overview

__all__ = ["Controller"]

logger = logging.getLogger("skate.serve")

#: The controller looks so often whether something is to be done that it was not told of.
WAKE_EVERY_S = 1.0
#: `status` waits so long for what replicas have counted, and else has older counts.
ASK_S = 0.2
#: A version that does not start to work is looked at so often: what ends the wait may be no event.
LOOK_EVERY_S = 0.1
#: After an error of its own, the controller goes on so soon.
PAUSE_S = 0.5


class Controller:
    """The actor."""

    async def __init__(self) -> None:  # type: ignore[misc] # an event loop has to run
        self._apps: dict[str, App] = {}
        self._deployments: dict[str, Deployment] = {}
        self._changed = asyncio.Event()
        self._crew = Crew(self._changed.set)
        self._demand = Demand(self._crew)
        self._http: HTTPOptions | None = None
        self._address: tuple[str, int] | None = None
        self._numbers = int(time.time() * 1000)
        self._routes: list[Route] = []
        self._is_recovering = True
        #: Replicas may not take longer to end, once everything is shut down.
        self._drain_s_max = float("inf")
        self._recover()
        self._loops = [asyncio.ensure_future(self._run()), asyncio.ensure_future(self._probe())]

    # -- what users ask ---------------------------------------------------------------------------------------------

    async def start(self, http: HTTPOptions | None) -> str:
        """Answer HTTP as the options say; why not, if that cannot be."""
        if http is None or http == self._http:
            return ""
        if self._http is not None:
            ours = f"{self._http.host}:{self._http.port}"
            return (
                f"HTTP is answered already, at {ours}, with other options.\n"
                "  next: serve.shutdown() first, or leave the options out."
            )
        from skate.serve.keeper import keeper_of

        context = skate.get_runtime_context()
        address, problem = await keeper_of(context.get_node_id()).bind.remote(http.host, http.port)
        if problem:
            return str(problem)
        self._http, self._address = http, address
        ledger.keep_http(http, address)
        return ""

    async def deploy(self, spec: AppSpec, found: dict[str, bytes]) -> str:
        """Have an application served; "" once it is, or why it is not."""
        before = self._apps.get(spec.name)
        if before is not None and before.target == spec and before.outcome is None and not before.deleting:
            await before.settled.wait()  # asked again, because the controller was killed meanwhile
            return before.outcome or ""
        prefix = spec.route_prefix
        taken = next((name for name, each in self._apps.items() if each.prefix == prefix and name != spec.name), None)
        if prefix is not None and taken is not None:
            return (
                f"the route_prefix {prefix!r} is that of the application {taken!r}.\n"
                f"  next: serve.run(…, route_prefix=…) with another one, or serve.delete({taken!r}) first."
            )
        for digest, data in found.items():
            blobs.keep(digest, data)
        good = None if before is None or before.deleting else before.good
        app = self._apps[spec.name] = App(spec, good, time.time())
        if before is not None:
            before.outcome = "another version was deployed meanwhile."
            before.settled.set()
        self._keep(app)
        self._aim(app)
        self._changed.set()
        await app.settled.wait()
        return app.outcome or ""

    async def delete(self, name: str) -> bool:
        """Serve an application no more; whether there was one. Returns when its replicas have ended."""
        app = self._apps.get(name)
        if app is None:
            return False
        app.deleting = True
        if app.outcome is None:
            app.outcome = "the application was deleted meanwhile."
            app.settled.set()
        self._keep(app)
        for each in self._of(name):
            each.delete()
        self._changed.set()
        while self._apps.get(name) is app:
            await asyncio.sleep(0.02)
        return True

    async def shutdown(self, drain_s_max: float | None = None) -> None:
        """Serve nothing any more. Requests are answered first, within `drain_s_max` if that is given."""
        if drain_s_max is not None:
            self._drain_s_max = drain_s_max
        await asyncio.gather(*(self.delete(name) for name in list(self._apps)))
        for task in self._loops:
            task.cancel()
        ledger.forget_all()

    async def ends_with(self, pid: int) -> bool:
        """Whether a process has started the node, so that this controller ends with it."""
        import psutil

        return pid in [each.pid for each in psutil.Process().parents()]

    async def status(self) -> ServeStatus:
        """What is served, and how that goes."""
        await asyncio.wait([asyncio.ensure_future(self._crew.probe(list(self._deployments.values())))], timeout=ASK_S)
        return ServeStatus(self._address, {name: self._report(app) for name, app in self._apps.items()})

    async def waiting(self, process: str, counts: dict[str, int]) -> None:
        """A process has so many requests that wait for a replica."""
        for key, count in counts.items():
            self._demand.waits(key, process, count)
        self._demand.look(self._deployments)
        self._changed.set()

    async def metrics(self) -> str:
        """All counts, in the text format of Prometheus."""
        await self._crew.probe(list(self._deployments.values()))
        return prometheus_text(
            {
                (each.spec.app, each.spec.name): (self._demand.counted(key), len(each.members))
                for key, each in self._deployments.items()
            }
        )

    async def knocked(self, node: str) -> None:
        """A connection waits on a node where no replica answers HTTP: one is started that does."""
        for app in self._apps.values():
            key = next((each.key for each in app.target.deployments if each.is_ingress), "")
            deployment = self._deployments.get(key)
            if app.target.route_prefix is not None and deployment is not None and deployment.wanted == 0:
                self._demand.waits(key, f"socket of {node}", 1)
                self._demand.look(self._deployments)
                self._changed.set()
                return

    # -- what is to be ----------------------------------------------------------------------------------------------

    def _aim(self, app: App) -> None:
        """The deployments of an application are to be what its target says."""
        proven = {each.key: each for each in app.good.deployments} if app.good is not None else {}
        specs = {each.key: each for each in app.target.deployments}
        for key, spec in specs.items():
            found = self._deployments.get(key)
            wanted = self._demand.aim(spec, found)
            if found is None:
                found = self._deployments[key] = Deployment(spec, wanted)
                if not self._is_recovering:
                    self._publish(found)  # its handles may be used by deployments that are being started
            found.become(spec, wanted, proven=spec == proven.get(key))
        for each in self._of(app.target.name):
            if each.spec.key not in specs:
                each.delete()

    def _of(self, app: str) -> list[Deployment]:
        return [each for each in self._deployments.values() if each.spec.app == app]

    # -- what is done -----------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            try:
                self._step(time.monotonic())
            except Exception:
                logger.exception("the controller of skate.serve goes on after an error of its own")
                for each in self._deployments.values():
                    each.publish_again()
                await asyncio.sleep(PAUSE_S)
                continue
            now = time.monotonic()
            times = [at for each in self._deployments.values() if (at := each.wake_at(now)) is not None]
            unsettled = any(app.outcome is None for app in self._apps.values())
            wait = min([LOOK_EVERY_S if unsettled else WAKE_EVERY_S, *(at - now for at in times)])
            try:
                await asyncio.wait_for(self._changed.wait(), max(0.001, wait))
            except asyncio.TimeoutError:
                pass
            self._changed.clear()

    def _step(self, now: float) -> None:
        self._crew.start_waiting()
        for deployment in list(self._deployments.values()):
            for command in deployment.step(now):
                self._carry_out(deployment, command)
        self._conclude(now)

    async def _probe(self) -> None:
        while True:
            await asyncio.sleep(probe_every_s([each.spec for each in self._deployments.values()]))
            try:
                await self._crew.probe(list(self._deployments.values()))
                self._demand.look(self._deployments)
            except Exception:
                logger.exception("the controller of skate.serve could not ask its replicas")
            self._changed.set()

    def _carry_out(self, deployment: Deployment, command: Command) -> None:
        crew = self._crew
        if isinstance(command, Start):
            app = self._apps[deployment.spec.app]
            crew.start(deployment, command.id, app.target, command.spec, self._http)
        elif isinstance(command, Configure):
            crew.configure(deployment, command.id, command.spec)
        elif isinstance(command, Drain):
            timeout_s = min(command.timeout_s, self._drain_s_max)
            crew.drain(deployment, command.id, timeout_s, self._silent_s(deployment))
        elif isinstance(command, Kill):
            crew.kill(deployment, command.id)
        elif isinstance(command, Publish):
            self._publish(deployment)

    def _silent_s(self, deployment: Deployment) -> float | None:
        """How long connections of HTTP without a request are kept: not at all if no application is left for them."""
        ends = deployment.deleted and not any(app.prefix is not None for app in self._apps.values())
        return 0.0 if ends else None

    def _publish(self, deployment: Deployment, *, deleted: bool = False) -> None:
        spec = deployment.spec
        members = [Member(each.id, each.node, each.tunnel) for each in deployment.members]
        self._numbers += 1
        publish_table(Table(spec.key, self._numbers, spec.max_ongoing, spec.max_queued, members, deleted))

    def _conclude(self, now: float) -> None:
        """What the steps have come to: applications that work, that failed, that are gone."""
        for name, app in list(self._apps.items()):
            deployments = self._of(name)
            for each in [each for each in deployments if each.is_gone]:
                self._publish(each, deleted=True)
                del self._deployments[each.spec.key]
                self._demand.forget(each.spec.key)
            if app.deleting:
                if not self._of(name):
                    del self._apps[name]
                    ledger.forget_app(name)
                    self._drop_blobs()
                continue
            current = [each for each in deployments if not each.deleted]
            broken = next((each for each in current if each.broken), None)
            if broken is not None:
                self._give_up(app, broken)
            elif app.outcome is None and all(each.is_settled and _has_spread(each, now) for each in current):
                app.outcome = ""
                app.good = app.target
                self._keep(app)
                self._drop_blobs()
        self._publish_routes()
        for app in self._apps.values():
            if app.outcome is not None:
                app.settled.set()

    def _give_up(self, app: App, broken: Deployment) -> None:
        """A version does not start: what worked before it is to be again."""
        why = f"deployment {broken.spec.name} of application {app.target.name} did not start.\n{broken.message}"
        if app.good is not None:
            app.outcome = f"{why}\n  The version before it serves on."
            app.target = app.good
            self._aim(app)
        else:
            app.outcome = why
            for each in self._of(app.target.name):
                each.delete()
        self._keep(app)

    def _publish_routes(self) -> None:
        routes = [
            Route(app.prefix, name, f"{name}#{app.target.ingress}")
            for name, app in self._apps.items()
            if app.prefix is not None and app.good is not None
        ]
        routes.sort(key=lambda each: len(each.prefix), reverse=True)
        if routes != self._routes:
            self._routes = routes
            self._numbers += 1
            publish_routes(Routes(self._numbers, routes))

    # -- what is kept -----------------------------------------------------------------------------------------------

    def _keep(self, app: App) -> None:
        if app.has_failed and not app.deleting:
            ledger.forget_app(app.target.name)
        else:
            ledger.keep_app(Kept(app.target, app.good, app.deployed_at, app.deleting))

    def _drop_blobs(self) -> None:
        needed: set[str] = set()
        for app in self._apps.values():
            needed |= app.target.digests() | (app.good.digests() if app.good is not None else set())
        for digest in blobs.digests():
            if digest not in needed:
                blobs.forget(digest)
        self._crew.forget_blobs(needed)

    def _recover(self) -> None:
        """Go on where the controller before this one was ended. Handles keep the replicas that they know meanwhile."""
        http = ledger.read_http()
        if http is not None:
            self._http, self._address = http
        for kept in ledger.read_apps():
            app = self._apps[kept.target.name] = App(kept.target, kept.good, kept.deployed_at, deleting=kept.deleting)
            if app.deleting:
                app.outcome = "the application was deleted meanwhile."
            self._aim(app)
        self._find_replicas()
        for app in self._apps.values():
            for each in self._of(app.target.name) if app.deleting else []:
                each.delete()
        for key in table_keys():
            if key not in self._deployments:
                self._numbers += 1
                publish_table(Table(key, self._numbers, 0, 0, deleted=True))
        if self._http is not None:
            self._tidying = asyncio.ensure_future(self._crew.tidy_keepers())
        self._is_recovering = False

    def _find_replicas(self) -> None:
        now = time.monotonic()
        for each in ledger.read_replicas():
            deployment = self._deployments.get(each.key)
            if self._crew.adopt(deployment, each) and deployment is not None:
                replica = Replica(
                    each.id, each.version, State[each.state], each.settings, now, node=each.node, tunnel=each.tunnel
                )
                deployment.adopt(each.id, replica)
        for deployment in self._deployments.values():
            if deployment.spec.scaling is None:
                continue
            there = [each for each in deployment.replicas.values() if each.state is not State.DRAINING]
            wanted = max(len(deployment.members), sum(each.version == deployment.spec.version for each in there))
            deployment.wanted = self._demand.scale(deployment.spec, wanted)

    # -- what is said -----------------------------------------------------------------------------------------------

    def _report(self, app: App) -> ApplicationStatusOverview:
        deployments = {
            each.spec.name: deployment_overview(
                each, self._demand.counted(each.spec.key), self._crew.full.get(each.spec.key, "")
            )
            for each in self._of(app.target.name)
        }
        return application_overview(app, deployments)


def _has_spread(deployment: Deployment, now: float) -> bool:
    """Whether processes had time to hear that the replicas of another version are to be used no more."""
    return not any(
        each.state is State.DRAINING and each.version != deployment.spec.version and now - each.since < LINGER_S
        for each in deployment.replicas.values()
    )


#: What the actor is made with.
ACTOR_OPTIONS: dict[str, Any] = {
    "name": CONTROLLER,
    "namespace": NAMESPACE,
    "lifetime": "detached",
    "get_if_exists": True,
    "max_restarts": -1,
    "max_task_retries": 0,
    "max_concurrency": 10_000,
    "num_cpus": 0,
}
