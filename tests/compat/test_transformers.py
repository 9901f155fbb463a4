"""Hugging Face's Trainer finds its place inside `train.run`, and trains a model that is made on the spot."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from skate import train

pytestmark = pytest.mark.timeout(180)


def fit(config: dict[str, Any]) -> None:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    class Counting(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
        """Rows of numbers that follow each other."""

        def __len__(self) -> int:
            return 64

        def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
            row = (torch.arange(8) + number) % 16
            return {"input_ids": row, "labels": row}

    torch.manual_seed(train.context().rank)  # only DDP makes the ranks agree on the weights
    model = GPT2LMHeadModel(GPT2Config(vocab_size=16, n_positions=8, n_embd=16, n_layer=1, n_head=2))
    arguments = TrainingArguments(
        output_dir=config["folder"],
        use_cpu=True,
        num_train_epochs=4,
        per_device_train_batch_size=8,
        learning_rate=1e-2,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=Counting())
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    total = sum(value.double().sum().item() for value in model.state_dict().values())
    train.report(
        {"processes": arguments.world_size, "steps": trainer.state.global_step, "losses": losses, "sum": total}
    )


def test_the_trainer_of_transformers_trains_in_step(runtime: ModuleType, tmp_path: Path) -> None:
    result = train.run(fit, {"folder": str(tmp_path / "transformers")}, path=tmp_path / "run")
    first, second = sorted(result.history, key=lambda row: row["rank"])
    assert first["processes"] == second["processes"] == 2
    assert first["steps"] == second["steps"] == 4 * 64 // (2 * 8)
    assert first["sum"] == second["sum"]
    assert first["losses"][-1] < 0.8 * first["losses"][0]
