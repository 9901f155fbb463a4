"""Rows on Ray Train and Ray Tune, with the programs that the other peers run."""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import tools

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["GLOO_SOCKET_IFNAME"] = "lo"


def _quiet() -> None:
    import logging
    import warnings

    import ray

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    # One CPU more than workers: its controller is an actor too.
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, logging_level="error")


def _run(fit: Any, config: dict[str, Any], folder: str, **more: Any) -> Any:
    """Train on two workers; the result."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    run = RunConfig(
        name="run", storage_path=folder, failure_config=FailureConfig(max_failures=more.pop("failures", 0)), **more
    )
    scaling = ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1})
    return TorchTrainer(fit, train_loop_config=config, scaling_config=scaling, run_config=run).fit()


def ddp(loads: dict[str, list[int]]) -> dict[str, Any]:
    def fit(config: dict[str, Any]) -> None:
        import models
        from ray import train
        from ray.train.torch import prepare_model

        found = models.train_all(config["loads"], 2, prepare_model)
        if train.get_context().get_world_rank() == 0:  # its Result has no metrics without a checkpoint
            Path(config["found"]).write_text(json.dumps(found))

    _quiet()
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder, "found")
        _run(fit, {"loads": loads, "found": str(found)}, folder)
        return {"samples_per_s": json.loads(found.read_text())}


def first_step() -> dict[str, Any]:
    """From the beginning of the program, and from the call, to the end of the first step."""

    def fit(config: dict[str, Any]) -> None:
        import models
        from ray import train
        from ray.train.torch import prepare_model

        at = models.first_step(prepare_model)
        if train.get_context().get_world_rank() == 0:
            Path(config["found"]).write_text(json.dumps(at))

    called = time.time()
    with tempfile.TemporaryDirectory() as folder:
        _quiet()
        found = Path(folder, "found")
        _run(fit, {"found": str(found)}, folder)
        at = json.loads(found.read_text())
    return {"seconds": at - tools.STARTED, "from_call_s": at - called}


def killed(steps: int = 20, at: int = 12) -> dict[str, Any]:
    """From `kill -9` of a worker to the end of the next step, and whether the weights are those of an unharmed run."""

    def fit(config: dict[str, Any]) -> None:
        began = time.perf_counter()
        import torch

        import_s = time.perf_counter() - began
        import signal

        import models
        from ray import train
        from ray.train.torch import prepare_model

        notes, rank = Path(config["notes"]), train.get_context().get_world_rank()
        net, optimizer = models.small()
        start = 0
        if (saved := train.get_checkpoint()) is not None:
            with saved.as_directory() as folder:
                state = torch.load(Path(folder, "state.pt"), weights_only=False)
            net.load_state_dict(state["net"])
            optimizer.load_state_dict(state["optimizer"])
            torch.set_rng_state(state["random"][rank])
            start = state["step"] + 1
        net = prepare_model(net)
        for step in range(start, config["steps"]):
            models.step_of(net, optimizer, *models.small_batch(step, rank))
            if (notes / "killed").exists() and step == start and rank == 0:
                (notes / "again").write_text(json.dumps({"at": time.time(), "import_s": import_s, "start": start}))
            if step % 5 == 4:
                random: list[Any] = [None, None]
                torch.distributed.all_gather_object(random, torch.get_rng_state())
                with tempfile.TemporaryDirectory() as folder:
                    state = {"net": net.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                    if rank == 0:
                        torch.save({**state, "random": random}, Path(folder, "state.pt"))
                    checkpoint = train.Checkpoint.from_directory(folder) if rank == 0 else None
                    train.report({"step": step}, checkpoint=checkpoint)
            else:
                train.report({"step": step})
            if config["dies"] and step == config["at"] and rank == 1 and not (notes / "killed").exists():
                (notes / "killed").write_text(json.dumps(time.time()))
                os.kill(os.getpid(), signal.SIGKILL)
        if rank == 0:
            (notes / "digest").write_text(json.dumps(models.digest(net)))

    _quiet()
    with tempfile.TemporaryDirectory() as folder:
        return tools.killed_and_unharmed(
            Path(folder), lambda config, path, failures: _run(fit, config, str(path), failures=failures), steps, at
        )


def report(count: int = 100, pause_s: float = 0.01) -> dict[str, Any]:
    """What a report without a checkpoint costs the worker, and when the controller has it."""
    from ray.train import UserCallback

    class Seen(UserCallback):
        """Runs in the controller's process."""

        def __init__(self, path: str) -> None:
            self.path = path

        def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
            with Path(self.path).open("a") as file:
                file.write(json.dumps([time.time(), metrics[0]]) + "\n")

    def fit(config: dict[str, Any]) -> None:
        import tools
        from ray import train

        tools.report_often(train.report, config["count"], config["pause_s"])

    _quiet()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "seen")
        _run(fit, {"count": count, "pause_s": pause_s}, folder, callbacks=[Seen(str(path))])
        return tools.report_figures([json.loads(line) for line in path.read_text().splitlines()])


def trials(sampler: str, count: int = 100) -> dict[str, Any]:
    """Trivial trials of Ray Tune, with a sampler of Optuna; two at a time."""
    import optuna
    from ray import tune
    from ray.tune.search.optuna import OptunaSearch

    def objective(config: dict[str, float]) -> None:
        tune.report({"value": (config["x"] - 2) ** 2})

    _quiet()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    chosen = {"random": optuna.samplers.RandomSampler, "tpe": optuna.samplers.TPESampler}[sampler](seed=1)
    search = OptunaSearch({"x": optuna.distributions.FloatDistribution(-10, 10)}, "value", "min", sampler=chosen)
    with tempfile.TemporaryDirectory() as folder:
        tuner = tune.Tuner(
            tune.with_resources(objective, {"cpu": 1}),
            tune_config=tune.TuneConfig(search_alg=search, num_samples=count, max_concurrent_trials=2),
            run_config=tune.RunConfig(storage_path=folder, verbose=0),
        )
        began = time.perf_counter()
        results = tuner.fit()
        seconds = time.perf_counter() - began
        assert len(results) == count
        return {"seconds": seconds}


if __name__ == "__main__":
    tools.main({"ddp": ddp, "first_step": first_step, "killed": killed, "report": report, "trials": trials})
