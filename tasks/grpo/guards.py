"""What stops a GRPO run by name: a reference policy that is not the SFT model, and the watchdog's verdicts."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from pipeline_config.training import GRPOSettings
from tasks.diagnosis.callback import WatchdogCallback
from tasks.diagnosis.doctor import Diagnosis
from tasks.diagnosis.run_info import from_settings
from tasks.errors import RunStopped
from tasks.process.context import StageContext

LEARNT_FROM = 0.85
"""A run that begins with fewer right completions than this and ends with nearly all right has learnt its problems."""


class InitialKL(TrainerCallback):
    """With beta > 0 the policy starts as its own reference, so KL at step 1 is about 0."""

    def __init__(self, settings: GRPOSettings) -> None:
        self.settings = settings

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        kl = (logs or {}).get("kl")
        if state.global_step != 1 or not isinstance(kl, float):
            return
        if kl > self.settings.max_initial_kl:
            raise RunStopped(
                f"KL at step 1 is {kl:.4g}, above {self.settings.max_initial_kl}: the reference policy is not the SFT model",
                where="grpo step 1",
                fix="GRPO must start from the merged SFT model with no dropout; check model and lora settings",
                cause="reference_policy",
            )


class Watchdog:
    """Runs the diagnosis on the training log and, if asked to, stops the run after a last checkpoint."""

    def __init__(self, ctx: StageContext) -> None:
        self.ctx, self.mode = ctx, ctx.config.grpo.watchdog
        self.notes: list[str] = []
        self.stopped: RunStopped | None = None
        self.callback = WatchdogCallback(on_verdict=self._on_verdict, info=from_settings(ctx.config.grpo))

    def _on_verdict(self, diagnosis: Diagnosis) -> bool:
        """Returns whether training should stop."""
        note = f"{diagnosis.verdict}: {diagnosis.headline}"
        if note not in self.notes:
            self.notes.append(note)
            self.ctx.log(f"watchdog: {note}; first: {diagnosis.first_step}")
        if self.mode != "stop":
            return False
        if diagnosis.verdict == "all_correct" and self._was_learnt():
            # The end of learning, not a run that cannot learn: what is left of it would only cost time.
            self.notes.append("training ended early: nothing was left to learn from these problems")
            return True
        self.stopped = RunStopped(
            diagnosis.headline,
            where=f"grpo step {diagnosis.onset_step}",
            fix=diagnosis.first_step,
            cause=diagnosis.verdict,
        )
        return True

    def _was_learnt(self) -> bool:
        """Whether the share of right completions was clearly lower in the first logged row."""
        shares = [row["outcomes/right"] for row in self.callback.rows if row.get("outcomes/right") is not None]
        return bool(shares) and shares[0] < LEARNT_FROM

    def raise_if_stopped(self) -> None:
        """After `train()`: raise the verdict that ended it."""
        if self.stopped is not None:
            raise self.stopped
