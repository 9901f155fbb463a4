"""Gradients that skate.collective averages, in real workers: the same numbers, and what a death leads to."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from skate import exceptions, train


def learn(config: dict[str, Any]) -> None:
    """Train a small network in buckets of a few hundred bytes; a rank may die in the backward of a step."""
    import torch

    def prepared(communication: str) -> tuple[Any, Any]:
        torch.manual_seed(1)
        hidden = torch.nn.Sequential(torch.nn.Linear(5, 40), torch.nn.Tanh(), torch.nn.Linear(40, 40))
        net = torch.nn.Sequential(hidden, torch.nn.Linear(40, 1))
        model = train.torch.prepare(net, communication=communication, bucket_cap_mb=0.001)
        return model, torch.optim.Adam(model.parameters(), 0.01)

    def improve(model: Any, optimizer: Any, step: int) -> None:
        x = torch.rand(8, 5, generator=torch.Generator().manual_seed(100 * step + here.rank))
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
        optimizer.step()

    def numbers(model: Any) -> Any:
        return torch.cat([each.detach().flatten() for each in model.parameters()])

    here = train.context()
    model, optimizer = prepared("skate")
    reference = prepared("torch") if config["compare"] else None
    start = train.restore(model=model, optimizer=optimizer)
    for step in range(start, 6):
        if config.get("dies") == (here.rank, step) and here.restarts == 0:
            model.module[0][0].weight.register_hook(lambda gradient: os.kill(os.getpid(), signal.SIGKILL))
        improve(model, optimizer, step)
        row: dict[str, Any] = {"weights": numbers(model).numpy().tobytes().hex()}
        if reference is not None:
            improve(*reference, step)
            row["differs_by"] = (numbers(model) - numbers(reference[0])).abs().max()
        train.report(row, checkpoint={"model": model, "optimizer": optimizer}, step=step)


def weights(result: train.Result) -> list[float]:
    assert result.checkpoint is not None
    state = result.checkpoint.load()["state"]["model"]
    return [number for value in state.values() for number in value.flatten().tolist()]


@pytest.mark.timeout(300)  # torch is imported six times
def test_gradients_averaged_by_skate_are_those_of_gloo_and_a_killed_rank_changes_no_bit(
    runtime: ModuleType, tmp_path: Path
) -> None:
    whole = train.run(learn, {"compare": True}, path=tmp_path / "whole")
    assert max(row["differs_by"] for row in whole.history) < 1e-6
    of_step: dict[int, set[str]] = {}
    for row in whole.history:
        of_step.setdefault(row["step"], set()).add(row["weights"])
    assert [len(each) for each in of_step.values()] == [1] * 6, "ranks have the same bits after every step"
    assert len({each for both in of_step.values() for each in both}) == 6, "and they learn"

    killed = train.run(learn, {"compare": False, "dies": (1, 3)}, failures=1, path=tmp_path / "killed")
    assert isinstance(killed.error, exceptions.ActorDiedError), "the cause, and not what the other rank saw of it"
    assert weights(killed) == weights(whole), "bit for bit, in another run"


def test_a_communication_that_is_not_known_is_named(runtime: ModuleType, tmp_path: Path) -> None:
    def fit() -> None:
        import torch

        train.torch.prepare(torch.nn.Linear(1, 1), communication="mpi")

    with pytest.raises(ValueError, match='may be "torch" or "skate"'):
        train.run(fit, workers=1, path=tmp_path)
