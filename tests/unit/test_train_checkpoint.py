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
from skate.train import session, supervise
from skate.train.torch import Loader, backend_for, loader


@pytest.fixture
def enter(tmp_path: Path) -> Any:
    def entered(rank: int = 0, size: int = 1) -> list[Any]:
        sent: list[Any] = []
        saved = checkpoints.latest(tmp_path)
        step = -1 if saved is None else saved.step
        session.enter(session.Context(rank, size, rank, size, 0, tmp_path, 0, saved, sent.append, step))
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
    assert checkpoints.commit(tmp_path, 3, 2).load()["state"] == {"epoch": 3}
    latest = checkpoints.latest(tmp_path)
    assert latest is not None
    assert (latest.step, latest.workers) == (3, 2)


def test_what_is_reported_may_have_several_elements_and_has_names(tmp_path: Path, enter: Any) -> None:
    sent = enter()
    session.report({"loss": torch.tensor([0.5]), "of each": torch.arange(2), "counts": np.eye(2, dtype=int)})
    assert sent == [(0, {"loss": 0.5, "of each": [0, 1], "counts": [[1, 0], [0, 1]]}, False)]
    for wrong, kind, text in (
        (lambda: session.report(0.5), TypeError, "takes metrics by name"),
        (lambda: session.report({}, checkpoint="folder"), TypeError, r"next: .*Checkpoint\.from_directory"),
        (lambda: session.report({}, step=1.5), ValueError, "step=1.5"),
        (lambda: session.report({}, step=-1), ValueError, "step=-1"),
    ):
        with pytest.raises(kind, match=text):
            wrong()
    session.report({}, step=np.int64(3))
    assert sent[1:] == [(3, {}, False)]


def test_the_last_ones_are_kept_in_the_order_of_their_steps(tmp_path: Path, enter: Any) -> None:
    enter()
    for step in (8, 9, 10):
        session.report({}, checkpoint={}, step=step)
        checkpoints.commit(tmp_path, step, 1)
        checkpoints.remove_all_but(tmp_path, 2)
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
        checkpoints.commit(folder, epoch, 1)
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


def numbers(batches: Any) -> list[int]:
    return [int(value) for (batch,) in batches for value in batch]


@pytest.mark.parametrize(("before", "after"), [(2, 2), (4, 1), (1, 3), (3, 2)])
def test_after_a_change_of_the_number_of_workers_an_epoch_goes_on_with_the_samples_that_are_left(
    enter: Any, before: int, after: int
) -> None:
    data = torch.utils.data.TensorDataset(torch.arange(24))
    seen: list[int] = []
    state: dict[str, int] = {}
    for rank in range(before):
        enter(rank, before)
        loader_before = loader(data, 2, seed=7)
        batches = loader_before(3)
        seen += numbers(next(batches) for _ in range(2))
        state = loader_before.state_dict()
    for rank in range(after):
        enter(rank, after)
        restored = loader(data, 2, seed=7)
        restored.load_state_dict(state)
        assert restored.epoch == 3
        seen += numbers(restored(3))
        assert restored.state_dict() == {"epoch": 4, "batch": 0, "taken": 0}
    # Where the rest cannot be shared evenly, a few samples come twice.
    assert set(seen) == set(range(24))
    assert len(seen) - 24 < after


class Noisy(torch.utils.data.Dataset[Any]):
    """Samples that differ each time that they are loaded, as those of image augmentation do."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return index, torch.rand(()), random.random(), np.random.rand()


def test_noise_that_loading_processes_add_is_the_same_after_a_restore_within_an_epoch(enter: Any) -> None:
    enter()

    def loaded(restored: dict[str, int] | None, processes: int) -> list[Any]:
        batches = loader(Noisy(), 3, seed=5, num_workers=processes)
        if restored is not None:
            batches.load_state_dict(restored)
        return [[part.tolist() for part in batch] for batch in batches(1)]

    whole = loaded(None, 1)
    assert loaded({"epoch": 1, "batch": 2, "taken": 6}, 2) == whole[2:]
    assert len({noise for batch in whole for noise in batch[1]}) == 12


def test_a_rank_that_was_not_there_before_draws_other_numbers_than_rank_0_and_always_the_same(
    tmp_path: Path, enter: Any
) -> None:
    enter()
    session.report({}, checkpoint={}, step=0)
    checkpoints.commit(tmp_path, 0, 1)
    drawn = []
    for rank in (0, 1, 1, 2):
        enter(rank, 3)
        assert session.restore() == 1
        drawn.append((torch.rand(3).tolist(), random.random(), np.random.rand()))
    assert drawn[1] == drawn[2]
    for kind in range(3):
        assert len({str(each[kind]) for each in drawn}) == 3


def test_a_part_that_is_missing_is_no_checkpoint_and_the_error_says_where_it_may_be(tmp_path: Path, enter: Any) -> None:
    enter(0, 2)
    session.report({}, checkpoint={}, step=0)
    with pytest.raises(FileNotFoundError, match=r"rank 1 wrote .*\n.*next: .*path="):
        checkpoints.commit(tmp_path, 0, 2)
    assert checkpoints.latest(tmp_path) is None


def test_what_a_kill_left_half_written_or_half_removed_is_no_checkpoint_and_goes(tmp_path: Path, enter: Any) -> None:
    enter()
    for step in (1, 2):
        session.report({}, checkpoint={"step": step}, step=step)
        checkpoints.commit(tmp_path, step, 1)
    (tmp_path / "checkpoint-1").rename(tmp_path / ".old-checkpoint-1")
    (tmp_path / ".parts-3").mkdir()
    assert [path.name for path in checkpoints.committed_in(tmp_path)] == ["checkpoint-2"]
    checkpoints.discard_parts(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-2"]


def test_a_checkpoint_of_a_program_without_torch_is_read_without_it(tmp_path: Path) -> None:
    code = f"""if True:
        import sys, pathlib
        from skate.train import checkpoint, session
        path = pathlib.Path({str(tmp_path)!r})
        for attempt in range(2):
            restored = checkpoint.latest(path)
            session.enter(session.Context(0, 1, 0, 1, 0, path, 0, restored, print))
            if session.restore() == 0:
                session.report({{}}, checkpoint={{"weights": [1.5]}}, step=4)
                checkpoint.commit(path, 4, 1)
        print(restored.load()["state"], 'torch' in sys.modules)
    """
    said = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True).stdout
    assert said.splitlines()[-1] == "{'weights': [1.5]} False"


def test_sharded_parts_go_back_to_the_ranks_that_wrote_them_and_to_no_other_number_of_ranks(
    tmp_path: Path, enter: Any
) -> None:
    for rank in range(2):
        enter(rank, 2)
        session.report({}, checkpoint={"weights": torch.nn.Linear(rank + 1, 1)}, sharded=True, step=0)
    checkpoints.commit(tmp_path, 0, 2)
    for rank in range(2):
        enter(rank, 2)
        assert session.restore(weights=torch.nn.Linear(rank + 1, 1)) == 1
    enter(0, 3)
    with pytest.raises(RuntimeError, match=r"written by 2 workers.*there are 3 now.\n.*next: run with workers=2"):
        session.restore(weights=torch.nn.Linear(1, 1))


def test_outside_of_a_worker_a_report_says_where_it_belongs() -> None:
    with pytest.raises(RuntimeError, match=r"train\.run"):
        session.report({})


def test_a_name_that_is_not_in_the_checkpoint_is_an_error_that_names_those_that_are(tmp_path: Path, enter: Any) -> None:
    enter()
    session.report({}, checkpoint={"model": torch.nn.Linear(1, 1)}, step=0)
    checkpoints.commit(tmp_path, 0, 1)
    enter()
    with pytest.raises(KeyError, match=r"no 'optimizer'.*'model'"):
        session.restore(optimizer=torch.optim.SGD([torch.zeros(1)], 0.1))


@pytest.mark.parametrize(("gpus", "nccl", "backend"), [(0, True, "gloo"), (1, True, "nccl"), (2, False, "gloo")])
def test_the_backend_follows_from_the_gpus(gpus: int, nccl: bool, backend: str) -> None:
    assert backend_for(gpus, nccl) == backend


def test_importing_the_library_needs_no_torch() -> None:
    code = "import sys, skate.train, skate.train.session; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE).stdout == b"False\n"


def test_a_checkpoint_of_files_has_those_of_every_rank(tmp_path: Path, enter: Any) -> None:
    for rank in range(2):
        own = tmp_path / f"written-by-{rank}"
        (own / "shards").mkdir(parents=True)
        (own / "shards" / f"{rank}.bin").write_text(str(rank))
        sent = enter(rank, 2)
        session.report({"loss": 1.0}, checkpoints.Checkpoint.from_directory(own))
        assert sent == [(0, {"loss": 1.0}, supervise.Given.FOLDER)]
    with pytest.raises(FileNotFoundError, match="rank 2 wrote to a folder"):  # maybe on another machine's disk
        checkpoints.commit(tmp_path, 0, 3, files_of={0, 2})
    made = checkpoints.commit(tmp_path, 0, 2, files_of={0, 1})
    assert sorted(path.name for path in made.path.rglob("*") if path.is_file()) == ["0.bin", "1.bin", "checkpoint.json"]
    with pytest.raises(ValueError, match="which every checkpoint gets"):
        session.report({}, made)


def test_folders_of_the_program_are_no_checkpoints_and_stay(tmp_path: Path, enter: Any) -> None:
    """Hugging Face's Trainer gives its own folders such names."""
    own = tmp_path / "checkpoint-1"
    own.mkdir()
    (own / "model.bin").write_text("weights")
    assert checkpoints.latest(tmp_path) is None
    enter()
    for step in (2, 3):
        session.report({}, checkpoint={}, step=step)
        checkpoints.commit(tmp_path, step, 1)
        checkpoints.remove_all_but(tmp_path, 1)
    assert [path.name for path in checkpoints.committed_in(tmp_path)] == ["checkpoint-3"]
    assert (own / "model.bin").exists()
    (tmp_path / "checkpoint-4").mkdir()
    session.report({}, checkpoint={}, step=4)
    with pytest.raises(FileExistsError, match=r"a folder checkpoint-4 .*\n.*next: "):
        checkpoints.commit(tmp_path, 4, 1)


def test_a_rank_reports_one_checkpoint_a_step(tmp_path: Path, enter: Any) -> None:
    """The ranks are not in step with each other: two of one step would be mixed."""
    enter(0, 2)
    session.report({}, checkpoint={}, step=5)
    session.report({}, step=5)
    for step in (4, 5):
        with pytest.raises(ValueError, match=rf"step={step}, .*checkpoint of step 5"):
            session.report({}, checkpoint={}, step=step)


def test_values_that_look_like_an_archive_are_read_as_they_were_written(tmp_path: Path) -> None:
    code = f"""if True:
        import io, pathlib, sys, zipfile
        from skate.train import checkpoint, session
        path, archive = pathlib.Path({str(tmp_path)!r}), io.BytesIO()
        with zipfile.ZipFile(archive, "w") as opened:
            opened.writestr("w", b"1")
        session.enter(session.Context(0, 1, 0, 1, 0, path, 0, None, print))
        session.report({{}}, checkpoint={{"weights": archive.getvalue()}})
        saved = checkpoint.commit(path, 0, 1)
        print(saved.load()["state"]["weights"] == archive.getvalue(), "torch" in sys.modules)
    """
    said = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True).stdout
    assert said.splitlines()[-1] == "True False"
