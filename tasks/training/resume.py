"""Training to the end, from a checkpoint if there is one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerState


def train_from(trainer: Any, checkpoint: str | None) -> float | None:
    """Train to the end, from a checkpoint if there is one; returns the mean loss of the steps made now, None when none was left.

    From a checkpoint of the last step transformers would train one step more: a run that was killed after its last save
    would not come to the result of one that was not.
    """
    if checkpoint is not None and trainer.accelerator.num_processes == 1:
        state = TrainerState.load_from_json(str(Path(checkpoint) / "trainer_state.json"))
        last = trainer.args.max_steps if trainer.args.max_steps > 0 else state.max_steps
        if state.global_step >= last > 0:
            trainer._load_from_checkpoint(checkpoint)
            trainer.state = state
            return None
    return float(trainer.train(resume_from_checkpoint=checkpoint).training_loss)
