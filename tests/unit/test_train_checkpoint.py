"""Checkpoints of a training: whole or not there, and what they give back is bit-equal."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from skate.train import checkpoint as checkpoints
from skate.train import session
from skate.train.torch import Loader, backend_for, loader


@pytest.fixture
def enter(tmp_path: Path) -> Any:
    def entered(rank: int = 0, size: int = 1) -> list[Any]:
        sent: list[Any] = []
        saved = checkpoints.latest(tmp_path)
        session.enter(session.Context(rank, size, rank, size, 0, tmp_path, 0, saved, sent.append))
        return sent

    yield entered
    session.enter(None)


def test_parts_are_no_checkpoint_until_they_are_committed(tmp_path: Path, enter: Any) -> None:
    sent = enter(rank=1, size=2)
    session.report({"loss": torch.tensor(0.5)}, checkpoint={"epoch": 3}, step=3)
    assert sent == [(3, {"loss": 0.5}, True)]
    assert checkpoints.latest(tmp_path) is None
    enter(rank=0, size=2)
    session.report({}, checkpoint={"epoch": 3}, step=3)
    assert checkpoints.commit(tmp_path, 3, 2, keep=None).load()["state"] == {"epoch": 3}
    latest = checkpoints.latest(tmp_path)
    assert latest is not None
    assert (latest.step, latest.workers) == (3, 2)


def test_the_last_ones_are_kept_in_the_order_of_their_steps(tmp_path: Path, enter: Any) -> None:
    enter()
    for step in (8, 9, 10):
        session.report({}, checkpoint={}, step=step)
        checkpoints.commit(tmp_path, step, 1, keep=2)
    assert [path.name for path in checkpoints.committed_in(tmp_path)] == ["checkpoint-9", "checkpoint-10"]


def train(enter: Any, folder: Path, epochs: int, stop: int) -> dict[str, Any]:
    """Train a model with dropout, whose draws come from the generator that a checkpoint has to keep."""
    enter()
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    data = torch.utils.data.TensorDataset(torch.arange(64.0).reshape(16, 4))
    batches = loader(data, 4, seed=1)
    for epoch in range(session.restore(model=model, optimizer=optimizer), epochs):
        if epoch == stop:
            return {}
        for (batch,) in batches(epoch):
            optimizer.zero_grad()
            (model(batch).mean() * random.random() * np.random.rand()).backward()
            optimizer.step()
        session.report({}, checkpoint={"model": model, "optimizer": optimizer}, step=epoch)
        checkpoints.commit(folder, epoch, 1, keep=None)
    weights: dict[str, Any] = model.state_dict()
    return weights


def test_a_training_that_stopped_and_was_restored_ends_with_equal_weights(tmp_path: Path, enter: Any) -> None:
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    expected = train(enter, tmp_path, 4, stop=-1)
    for path in checkpoints.committed_in(tmp_path):
        (path / "checkpoint.json").unlink()
        for part in path.iterdir():
            part.unlink()
        path.rmdir()
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    np.random.set_state(states[2])
    assert train(enter, tmp_path, 4, stop=2) == {}
    torch.manual_seed(12345)  # another process draws other numbers
    found = train(enter, tmp_path, 4, stop=-1)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_loader_keeps_its_place_and_workers_share_the_samples(enter: Any) -> None:
    data = torch.utils.data.TensorDataset(torch.arange(12))
    parts = []
    for rank in (0, 1):
        enter(rank, 2)
        parts.append([int(value) for (batch,) in loader(data, 2, seed=7)(3) for value in batch])
    assert sorted(parts[0] + parts[1]) == list(range(12))
    enter(0, 2)
    first: Loader = loader(data, 2, seed=7)
    taken = next(iter(first(3)))[0].tolist()
    second = loader(data, 2, seed=7)
    second.load_state_dict(first.state_dict())
    assert taken + [int(value) for (batch,) in second(3) for value in batch] == parts[0]


def test_outside_of_a_worker_a_report_says_where_it_belongs() -> None:
    with pytest.raises(RuntimeError, match=r"train\.run"):
        session.report({})


def test_a_name_that_is_not_in_the_checkpoint_is_an_error_that_names_those_that_are(tmp_path: Path, enter: Any) -> None:
    enter()
    session.report({}, checkpoint={"model": torch.nn.Linear(1, 1)}, step=0)
    checkpoints.commit(tmp_path, 0, 1, keep=None)
    enter()
    with pytest.raises(KeyError, match=r"no 'optimizer'.*'model'"):
        session.restore(optimizer=torch.optim.SGD([torch.zeros(1)], 0.1))


@pytest.mark.parametrize(("gpus", "nccl", "backend"), [(0, True, "gloo"), (1, True, "nccl"), (2, False, "gloo")])
def test_the_backend_follows_from_the_gpus(gpus: int, nccl: bool, backend: str) -> None:
    assert backend_for(gpus, nccl) == backend


def test_importing_the_library_needs_no_torch() -> None:
    code = "import sys, skate.train, skate.train.session; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE).stdout == b"False\n"
