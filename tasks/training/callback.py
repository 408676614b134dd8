"""Ties a transformers Trainer to its stage: metrics, progress, complete checkpoints, and a stop that saves first."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from tasks.errors import Interrupted, NonFinite
from tasks.process.checkpoints import mark_complete
from tasks.process.context import StageContext
from tasks.training.reporters import forget_after
from tasks.training.world import restore_on_cpu_ranks

LINE_EVERY_S = 5.0


class StageCallback(TrainerCallback):
    """Streams a Trainer's rows into metrics.jsonl and stops it cleanly on SIGTERM.

    Args:
        ctx: the stage.
        window: optimizer steps per generation window; a stop waits for its end, so that a resume is exact.
    """

    def __init__(self, ctx: StageContext, label: str, window: int = 1) -> None:
        self.ctx, self.label, self.window = ctx, label, max(1, window)
        self.nonfinite_rows = 0
        self.shown_at = float("-inf")

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        logs = dict(logs or {})
        if "train_runtime" in logs:
            return
        self.ctx.metric(state.global_step, logs)
        self._show(logs, state)
        norm = logs.get("grad_norm")
        bad = isinstance(norm, float) and not math.isfinite(norm)
        self.nonfinite_rows = self.nonfinite_rows + 1 if bad else 0
        if self.nonfinite_rows >= 3:
            raise NonFinite(
                "the gradient norm was not finite in 3 logged rows in a row",
                where=f"{self.label} step {state.global_step}",
                fix="lower the learning rate; the last complete checkpoint is kept",
            )

    def _show(self, logs: dict[str, Any], state: TrainerState) -> None:
        """Every row is in metrics.jsonl; the log only has to show that it goes on."""
        now = time.monotonic()
        if now - self.shown_at < LINE_EVERY_S and state.global_step < state.max_steps:
            return
        shown = ("loss", "reward", "frac_reward_zero_std", "kl", "grad_norm", "completions/mean_length")
        values = ", ".join(f"{key} {float(logs[key]):.4g}" for key in shown if isinstance(logs.get(key), int | float))
        if values:
            self.shown_at = now
            self.ctx.log(f"{self.label} step {state.global_step}/{state.max_steps}: {values}")

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        self.ctx.progress(state.global_step, state.max_steps, self.label)
        if self.ctx.stop_requested() and state.global_step % self.window == 0:
            control.should_save = True
            control.should_training_stop = True
        return control

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        folder = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
        if args.world_size > 1:
            torch.distributed.barrier()  # every process has written its part
        if self.ctx.rank == 0:
            mark_complete(folder)
        self.ctx.log(f"checkpoint saved at step {state.global_step}")


def resume_point(ctx: StageContext) -> tuple[str | None, int | None]:
    """Folder and step of the newest complete checkpoint; rows logged after it are dropped."""
    checkpoint = ctx.newest_checkpoint()
    if ctx.config.parallel.processes > 1:
        restore_on_cpu_ranks()
    if checkpoint is None:
        ctx.truncate_metrics(0)
        return None, None
    step = int(checkpoint.name.rpartition("-")[2])
    ctx.truncate_metrics(step)
    forget_after(ctx, step)
    ctx.log(f"resuming from the checkpoint at step {step}")
    return str(checkpoint), step


def raise_if_stopped(ctx: StageContext, step: int) -> None:
    """After `train()` returned: was it the end, or a stop?"""
    if ctx.stop_requested():
        raise Interrupted(
            f"stopped on request at step {step}; the checkpoint is kept", fix="run again to go on from it"
        )
