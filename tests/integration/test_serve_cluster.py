"""Serving on several nodes: requests of HTTP reach replicas of other nodes, whatever becomes of a node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.requests import Request

import skate
from serve_http import ask
from skate import serve
from skate.cluster_utils import Cluster
from waiting import WITHIN_S, wait_for


@serve.deployment(graceful_shutdown_timeout_s=1)
class Where:
    async def __call__(self, request: Request | None = None) -> list[Any]:
        body = "" if request is None else (await request.body()).decode()
        return [skate.get_runtime_context().get_node_id(), body]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "resources": {"first": 1}}) as cluster:
        cluster.connect()
        yield cluster
        serve.shutdown()
        skate.shutdown()


def test_one_port_answers_for_replicas_of_two_nodes_of_a_machine(cluster: Cluster) -> None:
    second = cluster.add_node(num_cpus=2, resources={"second": 1})
    here = skate.get_runtime_context().get_node_id()
    on_second = {"ray_actor_options": {"resources": {"second": 0.1}}}
    on_first = {"ray_actor_options": {"resources": {"first": 0.1}}}
    serve.run(Where.options(**on_first).bind(), name="first", port=0)
    handle = serve.run(Where.options(**on_second).bind(), name="second", route_prefix="/second")
    assert handle.remote().result(timeout_s=WITHIN_S)[0] != here
    assert ask("/").json == [here, ""]
    elsewhere, body = ask("/second", "POST", "a" * 3_000_000).json  # through a tunnel between the nodes
    assert elsewhere != here
    assert body == "a" * 3_000_000

    cluster.remove_node(second, allow_graceful=False)
    cluster.add_node(num_cpus=2, resources={"second": 1})
    states = lambda: serve.status().applications["second"].deployments["Where"].replica_states  # noqa: E731
    wait_for(lambda: ask("/second").status == 200 and states() == {"RUNNING": 1}, WITHIN_S, "a replica on the new node")
    again = ask("/second").json[0]
    assert again not in (here, elsewhere)
