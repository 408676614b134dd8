"""A checkpoint of the last step is the result: nothing is trained any more."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("transformers")

from tasks.training.resume import train_from


class Trainer:
    """What `train_from` uses of transformers' trainer."""

    def __init__(self, max_steps: int) -> None:
        self.args = SimpleNamespace(max_steps=max_steps)
        self.accelerator = SimpleNamespace(num_processes=1)
        self.state: Any = None
        self.did: list[str] = []

    def _load_from_checkpoint(self, folder: str) -> None:
        self.did.append(f"load {Path(folder).name}")

    def train(self, resume_from_checkpoint: str | None) -> Any:
        self.did.append(f"train from {resume_from_checkpoint and Path(resume_from_checkpoint).name}")
        return SimpleNamespace(training_loss=0.25)


def checkpoint(tmp_path: Path, step: int) -> str:
    folder = tmp_path / f"checkpoint-{step}"
    folder.mkdir()
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step, "max_steps": 24}))
    return str(folder)


@pytest.mark.parametrize("max_steps", [24, -1])  # -1: by epochs, the total is in the checkpoint
def test_the_last_step_is_not_followed_by_another(tmp_path: Path, max_steps: int) -> None:
    trainer = Trainer(max_steps)
    assert train_from(trainer, checkpoint(tmp_path, 24)) is None
    assert trainer.did == ["load checkpoint-24"] and trainer.state.global_step == 24


def test_otherwise_it_trains(tmp_path: Path) -> None:
    trainer = Trainer(24)
    assert train_from(trainer, checkpoint(tmp_path, 21)) == 0.25
    assert train_from(trainer, None) == 0.25
    assert trainer.did == ["train from checkpoint-21", "train from None"]
