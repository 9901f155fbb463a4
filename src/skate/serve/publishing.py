"""What the controller tells all processes: the replicas of deployments, and the routes of HTTP."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable

from skate.serve.application import App
from skate.serve.directory import highest_number, publish_routes, publish_table, table_keys
from skate.serve.reconcile import Deployment
from skate.serve.records import Member, Route, Routes, Table, key_of

__all__ = ["Publisher"]


class Publisher:
    """Numbers what it publishes: a process that hears two tables in the wrong order keeps the later one."""

    def __init__(self) -> None:
        #: Higher than all numbers of the controller before, also if the clock was set back meanwhile.
        self._numbers = max(int(time.time() * 1000), highest_number())
        self._routes: list[Route] | None = None

    def table(self, deployment: Deployment, *, deleted: bool = False) -> None:
        """Tell handles which replicas a deployment has."""
        spec = deployment.spec
        members = [Member(each.id, each.node, each.tunnel) for each in deployment.members]
        publish_table(Table(spec.key, self._next(), spec.max_ongoing, spec.max_queued, members, deleted))

    def remove_others(self, keys: Collection[str]) -> None:
        """Remove the tables of all deployments but these."""
        for key in table_keys():
            if key not in keys:
                publish_table(Table(key, self._next(), 0, 0, deleted=True))

    def routes(self, apps: Iterable[App]) -> None:
        """Tell replicas which application answers under which prefix, if that has changed."""
        routes = [
            Route(good.route_prefix, good.name, key_of(good.name, good.ingress))
            for good in (app.serving for app in apps)
            if good is not None and good.route_prefix is not None
        ]
        routes.sort(key=lambda each: len(each.prefix), reverse=True)
        if routes != self._routes:
            self._routes = routes
            publish_routes(Routes(self._next(), routes))

    def _next(self) -> int:
        self._numbers += 1
        return self._numbers
