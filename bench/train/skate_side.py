"""Rows on Skate."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tools

#: gloo would look for an interface that the name of the machine leads to.
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
MEASURE_STORE_BYTES = 1 << 30


def _needs(module: str, name: str = "") -> Any:
    """Something of Skate; or the end of this program, with a line in the result that says what is not there."""
    try:
        found = importlib.import_module(module)
        return getattr(found, name) if name else found
    except (ImportError, AttributeError) as error:
        print(json.dumps({"failed": f"skipped, because {module}{'.' * bool(name)}{name} is not there: {error}"}))
        sys.exit()


# -- data-parallel training --------------------------------------------------------------------------------------------


def ddp(loads: dict[str, list[int]], hook: bool = False) -> dict[str, Any]:
    """Samples a second of two workers, whose gradients are averaged by gloo or by skate.collective."""
    from skate import train

    def fit(config: dict[str, Any]) -> None:
        import models

        from skate import train

        communication = "skate" if config["hook"] else "torch"
        found = models.train_all(config["loads"], 2, lambda net: train.torch.prepare(net, communication=communication))
        train.report({"samples_per_s": found})

    with tempfile.TemporaryDirectory() as folder:
        result = train.run(fit, {"loads": loads, "hook": hook}, workers=2, path=folder, progress=False)
        return {"samples_per_s": result.metrics["samples_per_s"]}


def first_step() -> dict[str, Any]:
    """From the beginning of the program, and from the call, to the end of the first step."""

    def fit() -> None:
        import models

        from skate import train

        train.report({"at": models.first_step(train.torch.prepare)})

    called = time.time()
    from skate import train

    with tempfile.TemporaryDirectory() as folder:
        at = train.run(fit, workers=2, path=folder, progress=False).metrics["at"]
    return {"seconds": at - tools.STARTED, "from_call_s": at - called}


def killed(steps: int = 20, at: int = 12) -> dict[str, Any]:
    """From `kill -9` of a worker to the end of the next step, and whether the weights are those of an unharmed run."""
    from skate import train

    def fit(config: dict[str, Any]) -> None:
        began = time.perf_counter()
        import torch  # noqa: F401

        import_s = time.perf_counter() - began
        import signal

        import models

        from skate import train

        notes, rank = Path(config["notes"]), train.context().rank
        net, optimizer = models.small()
        net = train.torch.prepare(net)
        start = train.restore(net=net, optimizer=optimizer)
        for step in range(start, config["steps"]):
            models.step_of(net, optimizer, *models.small_batch(step, rank))
            if train.context().restarts and step == start and rank == 0:
                (notes / "again").write_text(json.dumps({"at": time.time(), "import_s": import_s, "start": start}))
            train.report({}, checkpoint={"net": net, "optimizer": optimizer} if step % 5 == 4 else None, step=step)
            if config["dies"] and step == config["at"] and rank == 1 and not train.context().restarts:
                (notes / "killed").write_text(json.dumps(time.time()))
                os.kill(os.getpid(), signal.SIGKILL)
        if rank == 0:
            (notes / "digest").write_text(json.dumps(models.digest(net)))

    def run(config: dict[str, Any], path: Path, failures: int) -> None:
        train.run(fit, config, workers=2, path=path, failures=failures, progress=False)

    with tempfile.TemporaryDirectory() as folder:
        return tools.killed_and_unharmed(Path(folder), run, steps, at)


def report(count: int = 200, pause_s: float = 0.01) -> dict[str, Any]:
    """What a report without a checkpoint costs the worker, and when the driver has it."""
    from skate import train

    def fit(config: dict[str, Any]) -> None:
        import tools

        from skate import train

        tools.report_often(train.report, config["count"], config["pause_s"])

    seen: list[tuple[float, dict[str, Any]]] = []
    with tempfile.TemporaryDirectory() as folder:
        train.run(
            fit,
            {"count": count, "pause_s": pause_s},
            workers=2,
            path=folder,
            callbacks=[lambda result, row: seen.append((time.time(), row)) if row["rank"] == 0 else None],
            progress=False,
        )
    return tools.report_figures(seen)


def parameter_server(loads: dict[str, list[int]]) -> dict[str, Any]:
    """Samples a second of two workers with a shard for each part of a network."""
    import parameter_server
    import skate

    _needs("sharded_parameter_server")
    with skate.init(num_cpus=2):
        found = {kind: parameter_server.samples_per_s(kind, batch, steps) for kind, (batch, steps) in loads.items()}
    return {"samples_per_s": found}


# -- collectives -------------------------------------------------------------------------------------------------------


class Rank:
    """A member of a group."""

    def __init__(self, world: int, rank: int) -> None:
        from skate import collective

        collective.init_collective_group(world_size=world, rank=rank, group_name="bench")

    def measure(self, size: int, repeats: int) -> float:
        """The median time of an allreduce, in milliseconds."""
        import numpy as np

        from skate import collective

        array = np.zeros(size // 4, np.float32)
        return tools.median_ms(repeats, lambda: collective.allreduce(array, group_name="bench"))


def allreduce(names: list[str] | None = None, repeats: int | None = None) -> dict[str, Any]:
    """Two ranks on one machine."""
    _needs("skate.collective", "allreduce")
    import skate

    found = {}
    with skate.init(num_cpus=2):
        ranks = [skate.remote(num_cpus=1)(Rank).remote(2, rank) for rank in range(2)]
        for name, (size, count) in tools.sizes(names, repeats).items():
            found[name] = skate.get([rank.measure.remote(size, count) for rank in ranks])[0]
    return {"ms": found}


def nodes(counts: list[int], size: str, repeats: int) -> dict[str, Any]:
    """The same size among more and more nodes, with a rank on each."""
    _needs("skate.collective", "allreduce")
    import skate

    found = {}
    for count in counts:
        with _cluster(count) as places:
            ranks = [skate.remote(num_cpus=1, **place)(Rank).remote(count, rank) for rank, place in enumerate(places)]
            size_bytes = tools.SIZES[size][0]
            found[f"{count} nodes"] = skate.get([rank.measure.remote(size_bytes, repeats) for rank in ranks])[0]
    return {"ms": found}


def ring(delays_ms: list[float], nodes: int, size: int, repeats: int) -> dict[str, Any]:
    """An allreduce written as tasks, on a cluster whose scheduler is made slower and slower."""
    import ring

    import skate

    found = {}
    for delay_ms in delays_ms:
        os.environ["SKATE_TEST_SCHEDULING_DELAY_MS"] = str(delay_ms)
        with _cluster(nodes):
            times = []
            for _ in range(1 + repeats):  # the first one starts the workers
                parts = ring.arrays(nodes, size)
                flat = [part for own in parts for part in own]
                skate.wait(flat, num_returns=len(flat))
                began = time.perf_counter()
                results = [part for own in ring.allreduce(parts) for part in own]
                skate.wait(results, num_returns=len(results))
                times.append(time.perf_counter() - began)
            found[f"{delay_ms:g} ms"] = statistics.median(times[1:]) * 1e3
            assert skate.get(results[0])[0] == nodes, "it is no sum"
            del parts, flat, results
    return {"ms": found, "rounds": 2 * (nodes - 1)}


@contextlib.contextmanager
def _cluster(count: int) -> Iterator[list[dict[str, Any]]]:
    """A cluster of nodes with a CPU each; the options that put something on each of them."""
    import skate
    from skate.cluster_utils import Cluster

    with Cluster() as cluster:
        for node in range(count):
            cluster.add_node(
                wait=False, num_cpus=1, resources={f"node{node}": 1}, object_store_memory=MEASURE_STORE_BYTES
            )
        cluster.wait_for_nodes()
        cluster.connect()
        try:
            yield [{"resources": {f"node{node}": 0.001}} for node in range(count)]
        finally:
            skate.shutdown()


# -- trials ------------------------------------------------------------------------------------------------------------


def trials(sampler: str, count: int = 100) -> dict[str, Any]:
    """Trivial trials, two at a time; workers that have imported Optuna are there."""
    import optuna

    import skate
    from skate.util.optuna import optimize

    with skate.init(num_cpus=2):
        optimize(_study(optuna, sampler), _objective, trials=10, in_flight=2)
        study = _study(optuna, sampler)
        began = time.perf_counter()
        optimize(study, _objective, trials=count, in_flight=2)
        seconds = time.perf_counter() - began
    assert len(study.trials) == count
    return {"seconds": seconds}


def alone(sampler: str, count: int = 100) -> dict[str, Any]:
    """The same trials with Optuna alone, one by one in this process."""
    import optuna

    _study(optuna, sampler).optimize(_objective, n_trials=10)
    study = _study(optuna, sampler)
    began = time.perf_counter()
    study.optimize(_objective, n_trials=count)
    return {"seconds": time.perf_counter() - began}


def _study(optuna: Any, sampler: str) -> Any:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    chosen = {"random": optuna.samplers.RandomSampler, "tpe": optuna.samplers.TPESampler}[sampler]
    return optuna.create_study(sampler=chosen(seed=1))


def _objective(trial: Any) -> float:
    return float((trial.suggest_float("x", -10, 10) - 2) ** 2)


if __name__ == "__main__":
    tools.main(
        {
            "ddp": ddp,
            "first_step": first_step,
            "killed": killed,
            "report": report,
            "parameter_server": parameter_server,
            "allreduce": allreduce,
            "nodes": nodes,
            "ring": ring,
            "trials": trials,
            "alone": alone,
        }
    )
