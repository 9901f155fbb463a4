"""Ray's configurations: what they become, and what they refuse."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from skate import train
from skate.train import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from skate.train.checkpoint import committed_in, remove_all_but
from skate.train.driver import Result
from skate.train.trainer import TorchConfig, TorchTrainer


@pytest.mark.parametrize(
    ("kind", "option"),
    [
        (ScalingConfig, {"topology": "4x4"}),
        (ScalingConfig, {"placement_strategy": "SPREAD"}),
        (RunConfig, {"callbacks": [print]}),
        (RunConfig, {"storage_filesystem": object()}),
        (FailureConfig, {"fail_fast": True}),
        (CheckpointConfig, {"checkpoint_frequency": 2}),
        (CheckpointConfig, {"num_to_keep": 0}),
        (CheckpointConfig, {"checkpoint_score_order": "best"}),
        (TorchConfig, {"init_method": "tcp"}),
    ],
)
def test_an_option_that_cannot_be_kept_is_named(kind: Any, option: dict[str, Any]) -> None:
    (name,) = option
    with pytest.raises(ValueError, match=rf"{kind.__name__}\(.*{name}="):
        kind(**option)


def test_what_a_trainer_cannot_do_is_named() -> None:
    for option in ({"datasets": {"train": [1]}}, {"resume_from_checkpoint": Checkpoint("x")}, {"metadata": {"a": 1}}):
        (name,) = option
        with pytest.raises(ValueError, match=rf"TorchTrainer\({name}="):
            TorchTrainer(lambda: None, **option)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one argument"):
        TorchTrainer(lambda a, b: None)
    with pytest.raises(ValueError, match="not an address"):
        RunConfig(storage_path="s3://bucket").folder()


def test_a_function_gets_its_config_if_it_can_take_one() -> None:
    def with_default(config: Any = None) -> None: ...

    for function, arguments in ((with_default, ({"lr": 1},)), (lambda config: None, ({"lr": 1},)), (lambda: None, ())):
        assert TorchTrainer(function, train_loop_config={"lr": 1})._takes_config == bool(arguments)


def test_resources_of_a_worker() -> None:
    assert ScalingConfig().resources() == {"CPU": 1}
    assert ScalingConfig(use_gpu=True).resources() == {"CPU": 1, "GPU": 1}
    assert ScalingConfig(use_gpu=True, resources_per_worker={"CPU": 4, "GPU": 0.5}).resources() == {
        "CPU": 4,
        "GPU": 0.5,
    }


def test_a_run_has_the_folder_of_its_name(tmp_path: Path) -> None:
    assert RunConfig(name="a").folder() == Path("runs/a")
    assert RunConfig(name="a", storage_path=str(tmp_path)).folder() == tmp_path / "a"
    first, second = (RunConfig(storage_path=str(tmp_path / "new")).folder() for _ in range(2))
    assert first is not None
    assert second is not None
    assert first != second
    assert first.parent == tmp_path / "new"


def make_result(folder: Path, losses: list[float]) -> Result:
    history = []
    for step, loss in enumerate(losses):
        (folder / f"checkpoint-{step}").mkdir()
        (folder / f"checkpoint-{step}" / "checkpoint.json").write_text(f'{{"step": {step}, "workers": 1}}')
        history += [{"step": step, "rank": rank, "reported": {"loss": loss + rank}} for rank in (1, 0)]
    return Result(folder, history=history)


@pytest.mark.parametrize(("order", "kept"), [("min", {1, 3, 4}), ("max", {0, 2, 4})])
def test_the_best_checkpoints_stay_and_the_last(tmp_path: Path, order: str, kept: set[int]) -> None:
    result = make_result(tmp_path, [5.0, 1.0, 4.0, 2.0, 3.0])
    best = CheckpointConfig(2, "loss", order).best
    assert best == ("loss", order)
    remove_all_but(tmp_path, 2, lambda checkpoint: result.score(checkpoint, best))
    assert {int(path.name[11:]) for path in committed_in(tmp_path)} == kept


def test_a_result_has_what_ray_has(tmp_path: Path) -> None:
    result = make_result(tmp_path, [5.0, 1.0, 4.0])
    assert [metrics for _, metrics in result.best_checkpoints] == [{"loss": 5.0}, {"loss": 1.0}, {"loss": 4.0}]
    best = result.get_best_checkpoint("loss", "min")
    assert best is not None
    assert best.step == 1
    assert result.get_best_checkpoint("accuracy", "max") is None
    assert result.metrics_dataframe["loss"].tolist() == [5.0, 1.0, 4.0]


def test_a_checkpoint_is_copied_without_what_we_know_of_it(tmp_path: Path) -> None:
    folder = make_result(tmp_path, [1.0]).path / "checkpoint-0"
    (folder / "model.pt").write_bytes(b"weights")
    checkpoint = Checkpoint(folder)
    with checkpoint.as_directory() as path:
        assert Path(path, "model.pt").read_bytes() == b"weights"
    copy = checkpoint.to_directory(tmp_path / "copy")
    assert [each.name for each in Path(copy).iterdir()] == ["model.pt"]
    assert Checkpoint.from_directory(copy).path == tmp_path / "copy"


def test_an_error_keeps_its_causes_in_a_pickle() -> None:
    error = pickle.loads(pickle.dumps(train.WorkerGroupError("it failed", {1: ValueError("x")})))
    assert isinstance(error, train.TrainingFailedError)
    assert str(error) == "it failed"
    assert repr(error.worker_failures) == "{1: ValueError('x')}"


def test_a_process_outside_of_a_training_is_told() -> None:
    for call in (train.get_context, train.get_checkpoint):
        with pytest.raises(RuntimeError, match="no worker of a training"):
            call()


class Batch(NamedTuple):
    """What a loader makes of samples that are named tuples."""

    x: Any
    labels: list[Any]


def test_batches_are_moved_whole_to_a_device() -> None:
    torch = pytest.importorskip("torch")
    from skate.train.given_loader import OnDevice

    there = torch.device("meta")  # where tensors have a shape and no values: no GPU is needed
    given = {"batch": Batch(torch.ones(2), [torch.ones(3), "name"]), "pair": (torch.ones(1), 7)}
    (moved,) = OnDevice([given], there, may_overlap=False)
    assert isinstance(moved["batch"], Batch)
    assert [each.device for each in (moved["batch"].x, moved["batch"].labels[0], moved["pair"][0])] == [there] * 3
    assert (moved["batch"].labels[1], moved["pair"][1]) == ("name", 7)


def test_a_communication_that_is_not_known_is_named() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(ValueError, match='may be "torch" or "skate"'):
        train.torch.prepare(torch.nn.Linear(1, 1), communication="mpi")
