"""The controller: it keeps what is to be served, and has it served.

A detached actor with its state in `skate.kv` (`ledger.py`). When it is killed it is started again, reads its state,
finds its replicas by their names, and goes on. Requests do not need it meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

import skate
from skate.serve import blobs, ledger
from skate.serve.application import App, open_gates
from skate.serve.client import end_all
from skate.serve.config import HTTPOptions, why_not_as
from skate.serve.crew import Crew
from skate.serve.demand import Demand, probe_every_s
from skate.serve.ledger import Kept
from skate.serve.metrics import prometheus_text
from skate.serve.publishing import Publisher
from skate.serve.reconcile import Command, Configure, Deployment, Drain, Kill, Publish, Replica, Start, State
from skate.serve.records import AppSpec
from skate.serve.replica import LINGER_S
from skate.serve.report import ApplicationStatusOverview, ServeStatus, application_overview, deployment_overview

__all__ = ["Controller"]

logger = logging.getLogger("skate.serve")

#: Seconds between two looks of the controller for work that no event has announced.
WAKE_EVERY_S = 1.0
#: Seconds that `status` waits for fresh counts of replicas. After that it reports older ones.
ASK_S = 0.2
#: A version that does not start to work is looked at so often: what ends the wait may be no event.
LOOK_EVERY_S = 0.1
#: Seconds after which a controller without work ends itself, unless its caller has ended it.
FAREWELL_S = 1.0
#: After an error of its own, the controller goes on so soon.
PAUSE_S = 0.5


class Controller:
    """The actor."""

    async def __init__(self) -> None:  # type: ignore[misc] # an event loop has to run
        self._apps: dict[str, App] = {}
        self._deployments: dict[str, Deployment] = {}
        self._changed = asyncio.Event()
        #: Deployments are to be something else, which may have to be looked at more often.
        self._has_new_aim = asyncio.Event()
        self._crew = Crew(self._changed.set)
        self._demand = Demand(self._crew)
        self._http: HTTPOptions | None = None
        self._address: tuple[str, int] | None = None
        self._publisher = Publisher()
        self._is_recovering = True
        #: Replicas may not take longer to end, once everything is shut down.
        self._drain_s_max = float("inf")
        self._recover()
        self._loops = [asyncio.ensure_future(self._run()), asyncio.ensure_future(self._probe())]

    # -- what users ask ---------------------------------------------------------------------------------------------

    async def start(self, http: HTTPOptions | None) -> str:
        """Answer HTTP as the options say; why not, if that cannot be."""
        if http is None:
            return ""
        if self._http is not None and self._address is not None:
            return why_not_as(http, self._http, self._address)
        from skate.serve.keeper import keeper_of

        context = skate.get_runtime_context()
        address, problem = await keeper_of(context.get_node_id()).bind.remote(http.host, http.port)
        if problem:
            return str(problem)
        ledger.keep_http(http, address)
        self._http, self._address = http, address
        return ""

    async def deploy(self, spec: AppSpec, found: dict[str, bytes]) -> str:
        """Have an application served; "" once it is, or why it is not."""
        before = self._apps.get(spec.name)
        if before is not None and before.target == spec and before.outcome is None and not before.deleting:
            await before.settled.wait()  # asked again, because the controller was killed meanwhile
            return before.outcome or ""
        prefix = spec.route_prefix
        taken = next((name for name, each in self._apps.items() if prefix in each.prefixes and name != spec.name), None)
        if taken is not None:
            return (
                f"the route_prefix {prefix!r} is that of the application {taken!r}.\n"
                f"  next: serve.run(…, route_prefix=…) with another one, or serve.delete({taken!r}) first."
            )
        for digest, data in found.items():
            blobs.keep(digest, data)
        good = None if before is None or before.deleting else before.good
        app = App(spec, good, time.time())
        self._keep(app)  # first: if that fails, nothing has changed
        self._apps[spec.name] = app
        if before is not None:
            before.outcome = "another version was deployed meanwhile."
            before.settled.set()
        self._aim(app)
        self._changed.set()
        await app.settled.wait()
        if prefix is not None:
            await self._crew.tell_routes()  # who asks for the new application now may ask a replica of another one
        return app.outcome or ""

    async def delete(self, name: str) -> bool:
        """Delete an application; whether there was one. Returns when its replicas have ended."""
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
        """Delete all applications. Requests are answered first, within `drain_s_max` if that is given."""
        if drain_s_max is not None:
            self._drain_s_max = drain_s_max
        await asyncio.gather(*(self.delete(name) for name in list(self._apps)))
        for task in self._loops:
            task.cancel()
        ledger.forget_all()
        # The caller ends this controller; but it may be dead by now, and the next caller is to find none that is over.
        asyncio.get_running_loop().call_later(FAREWELL_S, end_all)

    async def is_there(self) -> None:
        """Whether it answers."""

    async def ends_with(self, pid: int) -> bool:
        """Whether a process has started the node, so that this controller ends with it."""
        import psutil

        return pid in [each.pid for each in psutil.Process().parents()]

    async def status(self) -> ServeStatus:
        """What is served, and how that goes."""
        await asyncio.wait([asyncio.ensure_future(self._crew.probe(list(self._deployments.values())))], timeout=ASK_S)
        return ServeStatus(self._address, {name: self._report(app) for name, app in self._apps.items()})

    async def waiting(self, process: str, counts: dict[str, int], refused: dict[str, int]) -> None:
        """Note how many requests of a process wait for a replica, and how many more it has refused."""
        for key, count in counts.items():
            self._demand.waits(key, process, count)
        for key, count in refused.items():
            if key in self._deployments:
                self._demand.refused(key, count)
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
            spec = next((each for each in app.target.deployments if each.is_ingress), None)
            if spec is None or spec.scaling is None or app.target.route_prefix is None:
                continue  # it answers no HTTP, or has no replicas because that was asked for
            deployment = self._deployments.get(spec.key)
            if deployment is not None and deployment.wanted == 0:
                self._demand.waits(spec.key, f"socket of {node}", 1)
                self._demand.look(self._deployments)
                self._changed.set()
                return

    # -- what is to be ----------------------------------------------------------------------------------------------

    def _aim(self, app: App) -> None:
        """The deployments of an application are to be what its target says.

        Those of the version that worked before stay until the target works: its replicas may call them.
        """
        self._has_new_aim.set()
        good = {each.key: each for each in app.good.deployments} if app.good is not None else {}
        specs = good | {each.key: each for each in app.target.deployments}
        for key, spec in specs.items():
            found = self._deployments.get(key)
            wanted = self._demand.aim(spec, found)
            if found is None:
                found = self._deployments[key] = Deployment(spec, wanted)
                if not self._is_recovering:
                    self._publisher.table(found)  # its handles may be used by deployments that are being started
            found.become(spec, wanted, proven=spec == good.get(key))
        for each in self._of(app.target.name):
            if each.spec.key in specs:
                continue
            each.wanted = len(each.members)  # those of a target that was given up may be called by its other replicas
            if not each.members:
                each.delete()

    def _of(self, app: str) -> list[Deployment]:
        return [each for each in self._deployments.values() if each.spec.app == app]

    def _aimed(self, app: App) -> list[Deployment]:
        """The deployments of the target; callers come before those that they call."""
        found = [self._deployments.get(each.key) for each in app.target.deployments]
        return [each for each in found if each is not None and not each.deleted]

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
            times = [at for each in self._deployments.values() if (at := each.wake_at(now, LINGER_S)) is not None]
            times += [at for app in self._apps.values() if (at := app.concluded_at + LINGER_S) > now]
            unsettled = any(app.outcome is None for app in self._apps.values())
            wait = min([LOOK_EVERY_S if unsettled else WAKE_EVERY_S, *(at - now for at in times)])
            try:
                await asyncio.wait_for(self._changed.wait(), max(0.001, wait))
            except asyncio.TimeoutError:
                pass
            self._changed.clear()

    def _step(self, now: float) -> None:
        self._crew.start_waiting()
        for app in self._apps.values():
            open_gates(self._aimed(app), now)
        for deployment in list(self._deployments.values()):
            for command in deployment.step(now):
                self._carry_out(deployment, command)
        self._conclude(now)

    async def _probe(self) -> None:
        last = time.monotonic()
        while True:
            wait = last + probe_every_s([each.spec for each in self._deployments.values()]) - time.monotonic()
            if wait > 0:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._has_new_aim.wait(), wait)
                self._has_new_aim.clear()
                continue
            last = time.monotonic()
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
            self._publisher.table(deployment)

    def _silent_s(self, deployment: Deployment) -> float | None:
        """How long connections of HTTP without a request are kept: not at all if no application is left for them."""
        ends = deployment.deleted and not any(app.prefixes for app in self._apps.values())
        return 0.0 if ends else None

    def _conclude(self, now: float) -> None:
        """What the steps have come to: applications that work, that failed, that are gone."""
        for name, app in list(self._apps.items()):
            for each in [each for each in self._of(name) if each.is_gone]:
                self._publisher.table(each, deleted=True)
                del self._deployments[each.spec.key]
                self._demand.forget(each.spec.key)
                self._drop_blobs()
            if app.deleting:
                if not self._of(name):
                    del self._apps[name]
                    ledger.forget_app(name)
                    self._drop_blobs()
                continue
            current = self._aimed(app)
            broken = next((each for each in current if each.broken), None)
            if broken is not None:
                self._give_up(app, broken)
            elif all(each.is_settled and each.has_spread(now, LINGER_S) for each in current):
                if app.outcome is None:
                    self._succeed(app, current, now)
                elif now - app.concluded_at >= LINGER_S and all(each.has_replaced for each in current):
                    self._leave_behind(app, current)
        self._publisher.routes(self._apps.values())
        for app in self._apps.values():
            if app.outcome is not None:
                app.settled.set()

    def _succeed(self, app: App, current: list[Deployment], now: float) -> None:
        app.outcome, app.concluded_at = "", now
        app.good = app.target
        for each in current:
            each.proven = True
        self._keep(app)
        self._drop_blobs()

    def _give_up(self, app: App, broken: Deployment) -> None:
        """Roll back an application whose new version does not start."""
        why = broken.why_broken
        if app.good is not None:
            app.outcome = f"{why}\n  The version before it serves on."
            app.target = app.good
            self._aim(app)
        else:
            app.outcome = why
            for each in self._of(app.target.name):
                each.delete()
        app.concluded_at = time.monotonic()
        self._keep(app)
        self._drop_blobs()
        self._changed.set()

    def _leave_behind(self, app: App, current: list[Deployment]) -> None:
        """Delete deployments that the target lacks, one by one: a caller ends before its callee."""
        keys = {each.spec.key for each in current}
        rest = [each for each in self._of(app.target.name) if each.spec.key not in keys]
        if rest and not any(each.deleted for each in rest):
            rest[0].delete()
            self._changed.set()

    # -- what is kept -----------------------------------------------------------------------------------------------

    def _keep(self, app: App) -> None:
        if app.has_failed and not app.deleting:
            ledger.forget_app(app.target.name)
        else:
            ledger.keep_app(Kept(app.target, app.good, app.deployed_at, app.deleting))

    def _drop_blobs(self) -> None:
        """Forget what no application needs, and no deployment that may yet start a replica."""
        there = [each.spec for each in self._deployments.values() if not each.deleted]
        needed = {digest for spec in there for digest in (spec.code, spec.config)}
        for app in self._apps.values():
            needed |= app.digests()
        blobs.keep_only(needed)
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
        self._publisher.remove_others(self._deployments)
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
        now, full = time.monotonic(), self._crew.full
        deployments = {
            each.spec.name: deployment_overview(
                each, self._demand.counted(each.spec.key), full.get(each.spec.key) or each.why_waiting(now)
            )
            for each in self._of(app.target.name)
        }
        return application_overview(app, deployments)
