"""train.run: real workers, torch's process group, deaths on the way."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import skate
from skate import train
from waiting import wait_for

EPOCHS = 4
#: The epoch and the batch in which a rank dies.
DIES_IN = (2, 4)


def learn() -> None:
    """Fit a line twice, with gradients averaged by torch and by Skate, and with two checkpoints an epoch.

    Rank 1 dies in the backward of the last step of an epoch. After the restart everything is trained once more from its
    beginning, by workers that see no death.
    """
    import torch

    class Training:
        def __init__(self) -> None:
            torch.manual_seed(0)
            inputs = torch.rand(64, 3)
            dataset = torch.utils.data.TensorDataset(inputs, inputs @ torch.tensor([[1.0], [-2.0], [3.0]]))
            self.dropout = torch.nn.Dropout(0.05)  # draws from the random state that a checkpoint has to give back
            self.loader = train.torch.loader(dataset, batch_size=8, seed=1)
            self.models = [self.model(communication) for communication in ("torch", "skate")]
            self.optimizers = [torch.optim.Adam(model.parameters(), 0.3) for model in self.models]
            names = ("by_torch", "by_skate", "optimizer", "second", "loader")
            self.state = dict(zip(names, [*self.models, *self.optimizers, self.loader], strict=True))

        def model(self, communication: str) -> Any:
            torch.manual_seed(1)
            net = torch.nn.Sequential(torch.nn.Linear(3, 20), torch.nn.Linear(20, 1))
            return train.torch.prepare(net, communication=communication, bucket_cap_mb=0.0001)  # several buckets

        def steps(self) -> Iterator[dict[str, Any]]:
            for epoch in range(self.loader.epoch, EPOCHS):
                for x, y in self.loader(epoch):
                    if (here.rank, epoch, self.loader.batch, here.restarts) == (1, *DIES_IN, 0):
                        weight = self.models[1].module[0].weight
                        weight.register_hook(lambda gradient: os.kill(os.getpid(), signal.SIGKILL))
                    x = self.dropout(x)
                    for model, optimizer in zip(self.models, self.optimizers):
                        optimizer.zero_grad()
                        loss = torch.nn.functional.mse_loss(model(x), y)
                        loss.backward()
                        optimizer.step()
                    if self.loader.batch % 2 == 0:
                        torchs, ours = (
                            torch.cat([each.flatten() for each in model.parameters()]) for model in self.models
                        )
                        yield {
                            "loss": loss,
                            "weights": ours.detach().numpy().tobytes().hex() + torchs.detach().numpy().tobytes().hex(),
                            "differ_by": (ours - torchs).abs().max(),
                        }

    here = train.context()
    disturbed = Training()
    train.restore(**disturbed.state)
    for row in disturbed.steps():
        train.report({**row, "threads": torch.get_num_threads()}, checkpoint=disturbed.state)
    for row in Training().steps():
        train.report(row)


@pytest.mark.timeout(180)  # torch is imported four times
def test_two_workers_learn_and_a_rank_killed_within_an_epoch_changes_no_bit_of_it(
    runtime: ModuleType, tmp_path: Path
) -> None:
    seen: list[tuple[int, int]] = []

    def callback(result: train.Result, row: dict[str, Any]) -> None:
        assert result.history[-1] == row
        seen.append((row["rank"], row["step"]))

    result = train.run(learn, failures=1, path=tmp_path, callbacks=[callback])
    assert isinstance(result.error, skate.exceptions.ActorDiedError), "the cause, and not what the other rank saw of it"
    first = result.attempts[1].first_step
    assert first in (4, 5)  # the checkpoint within the epoch may have been on its way
    assert set(seen) == {(rank, step) for rank in range(2) for step in range(16)}
    assert [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()] == result.history
    assert sorted(path.name for path in tmp_path.glob("*checkpoint*")) == ["checkpoint-6", "checkpoint-7"]

    rows = {(row["rank"], row["step"]): row for row in result.history}
    losses = [rows[0, step]["loss"] for step in range(8)]
    assert losses[-1] < 0.5 * losses[0]
    assert {row["threads"] for row in rows.values() if "threads" in row} == {1}
    assert max(row["differ_by"] for row in rows.values()) < 1e-5, "both average the same gradients"
    weights = [rows[0, step]["weights"] for step in range(8)]
    assert len(set(weights)) == 8
    for rank in range(2):
        assert [rows[rank, step]["weights"] for step in range(8)] == weights, "ranks have the same bits"
        assert [rows[rank, 8 + step]["weights"] for step in range(8)] == weights, "as they have without a death"
        assert [rows[rank, 8 + step]["loss"] for step in range(8)] == [rows[rank, step]["loss"] for step in range(8)]


def test_a_function_without_torch(runtime: ModuleType, tmp_path: Path) -> None:
    def fit(config: dict[str, int]) -> None:
        import gc
        import sys

        assert gc.isenabled()
        assert gc.get_threshold()[2] in (100, 0)  # from Python 3.14 on there is no such number
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
        ({"best": "loss"}, "best='loss'"),
        ({"best": ("loss", "least")}, "'min'"),
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
