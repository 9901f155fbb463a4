"""What of a driver's environment reaches the workers of a cluster."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import skate
from programs import run_program
from skate.cluster_utils import Cluster
from waiting import WITHIN_S, wait_for

JOB = {"env_vars": {"COLOUR": "green", "SIZE": "9"}}
HEAD, SECOND = {"head": 0.1}, {"second": 0.1}


@pytest.fixture(params=["joined", "outside"])
def cluster(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Two nodes, and this process as a driver with variables of its own: on a node, or on none."""
    with Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "resources": {"head": 1}}) as cluster:
        cluster.add_node(num_cpus=1, resources={"second": 1})
        monkeypatch.setenv("SKATE_TOKEN", cluster._token)
        monkeypatch.setenv("COLOUR", "of the driver alone")
        skate.init(("skate://" if request.param == "outside" else "") + cluster.address, runtime_env=JOB)
        cluster.wait_for_nodes()
        yield cluster
        skate.shutdown()


def look_at(*names: str) -> list[str | None]:
    return [os.environ.get(name) for name in names]


look: Any = skate.remote(num_cpus=0)(look_at)


@skate.remote(num_cpus=0)
class Looker:
    def look(self, *names: str) -> list[str | None]:
        return look_at(*names)

    def nested(self, *names: str) -> list[str | None]:
        return skate.get(look.options(resources=HEAD).remote(*names))

    def pid(self) -> int:
        return os.getpid()


@pytest.mark.parametrize("node", [HEAD, SECOND], ids=["head", "second"])
def test_variables_of_init_reach_all_nodes(cluster: Cluster, node: dict[str, float]) -> None:
    assert skate.get(look.options(resources=node).remote("COLOUR", "SIZE"), timeout=WITHIN_S) == ["green", "9"]
    own = {"env_vars": {"SIZE": "10"}}
    merged = look.options(resources=node, runtime_env=own).remote("COLOUR", "SIZE")
    assert skate.get(merged, timeout=WITHIN_S) == ["green", "10"], "a task's own variables are merged over them"
    looker = Looker.options(resources=node, runtime_env=own).remote()
    assert skate.get(looker.look.remote("COLOUR", "SIZE"), timeout=WITHIN_S) == ["green", "10"]
    nested = looker.nested.remote("COLOUR", "SIZE")
    assert skate.get(nested, timeout=WITHIN_S) == ["green", "10"], "and inherited"
    said = skate.get(
        skate.remote(num_cpus=0, resources=node)(lambda: skate.get_runtime_context().get_runtime_env_string()).remote(),
        timeout=WITHIN_S,
    )
    assert json.loads(said) == JOB


DETACHES = """
import os, skate
skate.init({address!r}, namespace="n", runtime_env={{"env_vars": {{"COLOUR": "blue"}}}})

@skate.remote(num_cpus=0, max_restarts=1, max_task_retries=-1, resources={{"second": 0.1}})
class Kept:
    def look(self): return os.environ.get("COLOUR"), os.environ.get("SIZE"), os.getpid()

print(skate.get(Kept.options(name="kept", lifetime="detached").remote().look.remote())[0])
"""


def test_a_detached_actor_keeps_the_variables_of_its_program_when_it_starts_again(cluster: Cluster) -> None:
    said, _ = run_program(DETACHES.format(address=cluster.address))
    assert said.split() == ["blue"]
    kept = skate.get_actor("kept", namespace="n")
    colour, size, pid = skate.get(kept.look.remote(), timeout=WITHIN_S)
    assert (colour, size) == ("blue", None), "and not those of another program"
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not psutil.pid_exists(pid), WITHIN_S, "its process to be gone")
    colour, _, again = skate.get(kept.look.remote(), timeout=WITHIN_S)
    assert colour == "blue"
    assert again != pid
    skate.kill(kept)


def test_programs_of_one_cluster_have_their_own_variables(cluster: Cluster) -> None:
    program = (
        "import os, skate\n"
        "skate.init({!r}, **{!r})\n"
        "print(skate.get(skate.remote(num_cpus=0)(lambda: os.environ.get('COLOUR')).remote()))"
    )
    for settings, expected in (({}, "None"), ({"runtime_env": {"env_vars": {"COLOUR": "red"}}}, "red")):
        assert run_program(program.format(cluster.address, settings))[0].strip() == expected
    assert skate.get(look.remote("COLOUR"), timeout=WITHIN_S) == ["green"]


@pytest.mark.parametrize("address", ["auto", "127.0.0.1:1", "skate://127.0.0.1:1", None])
@pytest.mark.parametrize("key", ["working_dir", "pip", "conda", "py_modules", "container"])
def test_parts_of_a_runtime_env_that_are_not_there_are_named(key: str, address: str | None) -> None:
    with pytest.raises(ValueError, match=rf"knows only 'env_vars', and not '{key}'"):
        skate.init(address, runtime_env={key: "anything", **JOB})
    assert not skate.is_initialized()


def test_the_directory_and_the_path_of_a_driver_reach_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "beside_the_program.py").write_text("WORD = 'found'\n")
    with Cluster(initialize_head=True) as cluster:
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(str(modules))
        monkeypatch.setenv("ONLY_IN_THE_DRIVER", "1")
        skate.init(cluster.address)

        @skate.remote
        def surroundings() -> tuple[str, str, str | None]:
            import beside_the_program

            return os.getcwd(), beside_the_program.WORD, os.environ.get("ONLY_IN_THE_DRIVER")

        assert skate.get(surroundings.remote(), timeout=WITHIN_S) == (str(tmp_path), "found", None)
        skate.shutdown()
