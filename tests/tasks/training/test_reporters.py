"""TensorBoard and W&B through the trainer: named before anything starts when missing, one curve over attempts, nothing online."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from artifacts.store import open_store
from pipeline_config.loading import load_config
from tasks.errors import ConfigError
from tasks.preflight.local import check_before_start
from tasks.process.checkpoints import mark_complete
from tasks.process.context import StageContext
from tasks.training import reporters
from tasks.training.reporters import check_reporters, set_environment

FINGERPRINT = "0123456789abcdef" * 4


def context(tmp_path: Path, *names: str, stage: str = "sft") -> StageContext:
    work = tmp_path / "work" / f"{stage}-{FINGERPRINT[:16]}"
    (work / "checkpoints").mkdir(parents=True, exist_ok=True)
    config = load_config("tiny", overrides=[f"run.home={tmp_path}", f"run.report_to=[{','.join(names)}]"])
    return StageContext(config=config, inputs={}, work_dir=work, stage=stage, fingerprint=FINGERPRINT)


def test_a_missing_package_is_named_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporters, "find_spec", lambda name: None)
    config = load_config(
        "tiny", overrides=["run.report_to=[tensorboard, wandb]", f"run.home={tmp_path}", "run.min_free_gb=0"]
    )
    with pytest.raises(ConfigError) as caught:
        check_before_start(config, open_store(str(tmp_path / "store")))
    assert (caught.value.where, caught.value.exit_code) == ("run.report_to", 10)
    assert "tensorboard and wandb" in caught.value.message
    assert "pip install 'grpo-pipeline[tensorboard,wandb]'" in caught.value.fix
    check_reporters(load_config("tiny"))


def test_only_known_reporters() -> None:
    with pytest.raises(ConfigError, match="report_to"):
        load_config("tiny", overrides=["run.report_to=[tensorbord]"])


def test_where_reporters_write(tmp_path: Path) -> None:
    environ: dict[str, str] = {"WANDB_PROJECT": "mine"}
    set_environment(context(tmp_path, "tensorboard", "wandb"), environ)
    assert environ["TENSORBOARD_LOGGING_DIR"] == str(tmp_path / "tensorboard" / "sft-01234567")
    assert (environ["WANDB_PROJECT"], environ["WANDB_MODE"], environ["WANDB_RESUME"]) == ("mine", "offline", "allow")
    again: dict[str, str] = {}
    set_environment(context(tmp_path, "wandb"), again)
    assert again["WANDB_RUN_ID"] == environ["WANDB_RUN_ID"] and again["WANDB_RUN_GROUP"] == environ["WANDB_RUN_GROUP"]
    for ctx in (context(tmp_path), context(tmp_path, "tensorboard", stage="evaluate")):
        none: dict[str, str] = {}
        set_environment(ctx, none)
        assert none == {}


def trainer(ctx: StageContext, steps: int) -> Any:
    """A trainer of one weight, with the arguments that SFT passes."""
    import torch
    from transformers import Trainer, TrainingArguments

    from tasks.training.arguments import common_arguments
    from tasks.training.callback import StageCallback

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))

        def forward(self, x: Any) -> Any:
            return {"loss": (self.weight * x).pow(2).mean()}

    arguments = TrainingArguments(
        **common_arguments(ctx, ctx.config.sft, torch.device("cpu")),
        max_steps=steps,
        save_steps=2,
        remove_unused_columns=False,
    )
    rows = [{"x": torch.ones(1)} for _ in range(64)]
    return Trainer(Model(), arguments, train_dataset=rows, callbacks=[StageCallback(ctx, "sft")])


@pytest.mark.skipif(find_spec("tensorboard") is None, reason="tensorboard is not installed")
def test_tensorboard_shows_one_curve_over_attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt that was killed after step 5, with its checkpoint at step 4, and one that goes on to step 8."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from tasks.training.callback import resume_point

    ctx = context(tmp_path, "tensorboard")
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", "")
    set_environment(ctx)
    first = trainer(ctx, 5)
    first.train()
    mark_complete(ctx.checkpoints / "checkpoint-4")
    for late in ctx.checkpoints.glob("checkpoint-5"):
        (late / "complete.json").unlink()
    checkpoint, step = resume_point(ctx)
    assert step == 4
    trainer(ctx, 8).train(resume_from_checkpoint=checkpoint)
    events = EventAccumulator(str(tmp_path / "tensorboard" / "sft-01234567"))
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed")
def test_wandb_is_kept_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    names: dict[str, str] = {}
    set_environment(context(tmp_path, "wandb"), names)
    for name in names:
        # Set and taken away again, so that what the test leaves there is gone after it.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    ctx = context(tmp_path, "wandb")
    set_environment(ctx)
    trainer(ctx, 3).train()
    wandb.finish()
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    (file,) = folder.glob("run-*.wandb")
    assert file.stat().st_size > 0 and folder.name.endswith(
        FINGERPRINT[:16] + (ctx.work_dir / "swanlab_id").read_text()[16:]
    )
