"""Libraries that look for torchrun's environment find it in `train.run`, without a line of glue."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from skate import train

pytestmark = pytest.mark.timeout(180)


def fit_with_accelerate_and_then_with_lightning() -> None:
    """Each joins a process group of its own; together, because they import torch in the same processes."""
    fit_with_accelerate()
    fit_with_lightning()


def fit_with_accelerate() -> None:
    import torch
    from accelerate import Accelerator

    assert not torch.distributed.is_initialized()
    accelerator = Accelerator(cpu=True)
    ranks = accelerator.gather(torch.tensor([accelerator.process_index]))
    train.report({"sum": int(ranks.sum()), "processes": accelerator.num_processes})
    accelerator.end_training()
    assert not torch.distributed.is_initialized()


def fit_with_lightning() -> None:
    import lightning
    import torch

    class Line(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)
            self.losses: list[float] = []

        def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> torch.Tensor:
            loss = torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), 0.1)

    lightning.seed_everything(train.context().rank, verbose=False)  # only DDP makes the ranks agree on the weights
    inputs = torch.rand(64, 3, generator=torch.Generator().manual_seed(0))
    dataset = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
    trainer = lightning.Trainer(
        strategy="ddp",
        accelerator="cpu",
        devices=2,
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Line()
    trainer.fit(model, torch.utils.data.DataLoader(dataset, batch_size=8))
    train.report(
        {
            "place": [trainer.global_rank, trainer.world_size],
            "losses": model.losses,
            "weights": model.layer.weight.flatten().tolist(),
        }
    )


def test_accelerate_and_lightning_find_their_place_and_train_in_step(runtime: ModuleType, tmp_path: Path) -> None:
    result = train.run(fit_with_accelerate_and_then_with_lightning, path=tmp_path)
    rows = {(row["rank"], row["step"]): row for row in result.history}
    assert sorted(rows) == [(rank, step) for rank in range(2) for step in range(2)]
    for rank in range(2):
        assert (rows[rank, 0]["sum"], rows[rank, 0]["processes"]) == (1, 2)
    first, second = (rows[rank, 1] for rank in range(2))
    assert [first["place"], second["place"]] == [[0, 2], [1, 2]]
    assert first["weights"] == second["weights"]
    assert len(first["losses"]) == len(second["losses"]) == 12  # each has half of the eight batches of an epoch
    assert first["losses"] != second["losses"]
    assert sum(first["losses"][-4:]) < 0.5 * sum(first["losses"][:4])
