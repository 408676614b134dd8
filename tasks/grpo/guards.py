"""What stops a GRPO run by name: a reference policy that is not the SFT model, and the watchdog's verdicts."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from pipeline_config.training import GRPOSettings
from tasks.diagnosis.callback import WatchdogCallback
from tasks.errors import RunStopped
from tasks.process.context import StageContext


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
        self.callback = WatchdogCallback(on_verdict=self._on_verdict, info=run_info(ctx))

    def _on_verdict(self, diagnosis: Any) -> bool:
        """Returns whether training should stop."""
        note = f"{diagnosis.verdict}: {diagnosis.headline}"
        if note not in self.notes:
            self.notes.append(note)
            self.ctx.log(f"watchdog: {note}; first: {diagnosis.first_step}")
        if self.mode != "stop":
            return False
        self.stopped = RunStopped(
            diagnosis.headline,
            where=f"grpo step {diagnosis.onset_step}",
            fix=diagnosis.first_step,
            cause=diagnosis.verdict,
        )
        return True

    def raise_if_stopped(self) -> None:
        """After `train()`: raise the verdict that ended it."""
        if self.stopped is not None:
            raise self.stopped


def run_info(ctx: StageContext) -> Any:
    """What the diagnosis may know about the run beyond its log."""
    from tasks.diagnosis.rules import RunInfo

    settings = ctx.config.grpo
    return RunInfo(
        num_generations=settings.num_generations,
        beta=settings.beta,
        max_completion_length=settings.max_completion_length,
    )
