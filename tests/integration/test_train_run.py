"""train.run: real workers, torch's process group, deaths on the way."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import skate
from skate import train
from waiting import wait_for


def learn(config: dict[str, Any]) -> None:
    """Fit a line, with two checkpoints an epoch; a rank may die before a batch of its first attempt."""
    import torch

    torch.manual_seed(0)
    inputs = torch.rand(64, 3)
    dataset = torch.utils.data.TensorDataset(inputs, inputs @ torch.tensor([[1.0], [-2.0], [3.0]]))
    dropout = torch.nn.Dropout(0.05)  # draws from the random state that a checkpoint has to give back
    model = train.torch.prepare(torch.nn.Linear(3, 1))
    optimizer = torch.optim.Adam(model.parameters(), 0.3)
    loader = train.torch.loader(dataset, batch_size=8, seed=1)
    train.restore(model=model, optimizer=optimizer, loader=loader)
    here = train.context()
    for epoch in range(loader.epoch, config["epochs"]):
        for x, y in loader(epoch):
            place = (here.rank, epoch, loader.batch, here.restarts)
            if place == (*config.get("dies", ()), 0):
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(dropout(x)), y)
            loss.backward()
            optimizer.step()
            if loader.batch % 2 == 0:
                state = {"model": model, "optimizer": optimizer, "loader": loader}
                train.report({"loss": loss, "threads": torch.get_num_threads()}, checkpoint=state)


def weights(result: train.Result) -> dict[str, Any]:
    assert result.checkpoint is not None
    return {name: value.tolist() for name, value in result.checkpoint.load()["state"]["model"].items()}


@pytest.mark.timeout(180)  # torch is imported six times
def test_two_workers_learn_and_a_rank_killed_within_an_epoch_changes_no_bit_of_it(
    runtime: ModuleType, tmp_path: Path
) -> None:
    seen: list[tuple[int, int]] = []

    def callback(result: train.Result, row: dict[str, Any]) -> None:
        assert result.history[-1] == row
        seen.append((row["rank"], row["step"]))

    undisturbed = train.run(learn, {"epochs": 4}, path=tmp_path / "a", callbacks=[callback])
    losses = [row["loss"] for row in undisturbed.history if row["rank"] == 0]
    assert losses[-1] < 0.5 * losses[0]
    assert undisturbed.metrics == {"loss": losses[-1], "threads": 1}
    assert undisturbed.error is None
    assert sorted(seen) == [(rank, step) for rank in range(2) for step in range(8)]
    lines = (tmp_path / "a" / "history.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == undisturbed.history

    killed = train.run(learn, {"epochs": 4, "dies": (1, 2, 4)}, failures=1, path=tmp_path / "b")
    assert isinstance(killed.error, skate.exceptions.ActorDiedError)
    assert killed.attempts[1].first_step in (4, 5)  # the checkpoint within the epoch may have been on its way
    assert weights(killed) == weights(undisturbed)
    in_order = [sorted(result.history, key=lambda row: (row["step"], row["rank"])) for result in (killed, undisturbed)]
    assert in_order[0] == in_order[1]
    assert sorted(path.name for path in killed.path.glob("*checkpoint*")) == ["checkpoint-6", "checkpoint-7"]


@pytest.mark.timeout(120)
def test_accelerate_finds_its_place_by_itself(runtime: ModuleType, tmp_path: Path) -> None:
    def fit() -> None:
        import torch
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=True)
        ranks = accelerator.gather(torch.tensor([accelerator.process_index]))
        train.report({"sum": int(ranks.sum()), "processes": accelerator.num_processes})

    result = train.run(fit, path=tmp_path)
    assert [row["sum"] for row in result.history] == [1, 1]
    assert result.metrics == {"sum": 1, "processes": 2}


def test_a_function_without_torch(runtime: ModuleType, tmp_path: Path) -> None:
    def fit(config: dict[str, int]) -> None:
        import sys

        assert threading.current_thread() is threading.main_thread()
        here = train.context()
        same = os.environ["RANK"] == str(here.rank) and os.environ["WORLD_SIZE"] == "2"
        train.report({"torch": "torch" in sys.modules, "same": same, "node": here.node_rank, "x": config["x"]}, step=7)

    result = train.run(fit, {"x": 3}, path=tmp_path)
    assert sorted(result.history, key=lambda row: row["rank"]) == [
        {"step": 7, "rank": rank, "workers": 2, "torch": False, "same": True, "node": 0, "x": 3} for rank in range(2)
    ]
    assert result.checkpoint is None


def test_an_exception_in_the_driver_ends_all_workers(runtime: ModuleType, tmp_path: Path) -> None:
    def fit() -> None:
        train.report({"pid": os.getpid()})
        threading.Event().wait()

    pids: list[int] = []

    def interrupt(result: train.Result, row: dict[str, Any]) -> None:
        pids.append(row["pid"])
        if len(pids) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train.run(fit, path=tmp_path, callbacks=[interrupt])
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 5, "the workers to be gone")


def test_a_checkpoint_that_one_rank_reports_is_none_and_is_told(runtime: ModuleType, tmp_path: Path) -> None:
    def fit() -> None:
        train.report({}, checkpoint={"epoch": 1} if train.context().rank == 0 else None)

    with pytest.warns(UserWarning, match="step 0 was reported by ranks 0 only"):
        result = train.run(fit, path=tmp_path)
    assert result.checkpoint is None


def test_arguments_that_cannot_be_meant(runtime: ModuleType, tmp_path: Path) -> None:
    def fit() -> None:
        raise AssertionError

    wrong: list[tuple[dict[str, Any], str]] = [
        ({"workers": 0}, "workers=0"),
        ({"failures": -1}, "failures=-1"),
        ({"keep": 0}, "keep=0"),
        ({"resources_per_worker": {}}, "resources_per_worker"),
        ({"workers": 3}, "has room for 2 of these workers"),
        ({"resources_per_worker": {"GPU": 1}}, "has room for 0 of these workers"),
    ]
    for arguments, text in wrong:
        with pytest.raises(ValueError, match=text):
            train.run(fit, path=tmp_path, **arguments)
    with pytest.raises(TypeError, match="takes no argument"):
        train.run(fit, {"lr": 1}, path=tmp_path)
    assert list(tmp_path.iterdir()) == []
