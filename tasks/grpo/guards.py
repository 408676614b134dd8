"""What stops a GRPO run by name, or sends it on with a remedy: the watchdog's verdicts, and a reference that is not the SFT model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from pipeline_config.training import GRPOSettings
from tasks.diagnosis.advice import ADVICE
from tasks.diagnosis.callback import NOT_WORTH_SAVING, STARVING, Decision, WatchdogCallback
from tasks.diagnosis.doctor import Diagnosis
from tasks.diagnosis.run_info import from_settings
from tasks.errors import NonFinite, RunStopped
from tasks.grpo.remedied import good_checkpoint, take
from tasks.grpo.remedies import LADDERS, NOTHING_LEFT, ROLLBACKS, Failure, Situation, Step, next_step, settings_after
from tasks.process.context import StageContext
from tasks.process.failures import classify

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


class OwnLearningRate(TrainerCallback):
    """A resumed trainer takes the learning rate from its checkpoint; after a remedy the settings' own is meant."""

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        optimizer: Any = None,
        lr_scheduler: Any = None,
        **_: Any,
    ) -> None:
        if state.global_step == 0 or not hasattr(lr_scheduler, "lr_lambdas"):
            return
        lr_scheduler.base_lrs = [args.learning_rate] * len(lr_scheduler.base_lrs)
        lr_scheduler._last_lr = [args.learning_rate * rate(lr_scheduler.last_epoch) for rate in lr_scheduler.lr_lambdas]
        for group, rate in zip(optimizer.param_groups, lr_scheduler._last_lr, strict=True):
            group["lr"], group["initial_lr"] = rate, args.learning_rate


class Watchdog:
    """Runs the diagnosis on the training log; on a failure it chooses a remedy or stops the run after a last checkpoint.

    Args:
        ctx: the stage; its configuration is the one asked for.
        steps: remedies taken so far.
        window: optimizer steps per generation window.
        look: where the run stands, by its optimizer step.
    """

    def __init__(self, ctx: StageContext, steps: list[Step], window: int, look: Callable[[int], Situation]) -> None:
        self.ctx, self.asked, self.steps, self.look = ctx, ctx.config.grpo, steps, look
        self.notes = [f"remedy {number} {step.sentence()}" for number, step in enumerate(steps, 1)]
        self.stopped: RunStopped | None = None
        self.step: Step | None = None
        self.callback = WatchdogCallback(
            on_verdict=self._on_verdict,
            info=from_settings(settings_after(self.asked, steps)),
            window=window,
            forget_before=max((step.at_step for step in steps if step.start == "here"), default=0),
        )

    def _on_verdict(self, diagnosis: Diagnosis) -> Decision:
        first = f"; first: {diagnosis.first_step}" if diagnosis.first_step else ""
        self._note(f"{diagnosis.verdict}: {diagnosis.headline}", first)
        if self.asked.watchdog == "stop" and diagnosis.verdict == "all_correct" and self._was_learnt():
            # The end of learning, not a run that cannot learn: what is left of it would only cost time.
            self.notes.append(NOTHING_LEFT)
            return "save_and_stop"
        at = diagnosis.last_step or 0
        failure = Failure(diagnosis.verdict, diagnosis.headline, diagnosis.onset_step or at, diagnosis.from_start)
        return self._decide(failure, at, diagnosis.first_step)

    def _decide(self, failure: Failure, at_step: int, first_step: str) -> Decision:
        remedy = None
        if self.asked.remedies != "off":
            remedy = next_step(failure, self.steps, self.asked, self.look(at_step))
        if remedy is not None and self.asked.acts:
            self.step = remedy
            return "save_and_stop" if remedy.start == "here" else "stop"
        if remedy is not None:
            self._note(f"suggested remedy {remedy.sentence()}")
        if self.asked.watchdog != "stop" or failure.name == STARVING:
            return "go_on"
        self.stopped = self._error(failure, remedy, first_step)
        # A checkpoint of a policy that has failed on its way could push the last good one out.
        lost = failure.name in NOT_WORTH_SAVING or (
            not failure.from_start and any(rung in ROLLBACKS for rung in LADDERS.get(failure.name, ()))
        )
        return "stop" if lost else "save_and_stop"

    def _error(self, failure: Failure, remedy: Step | None, first_step: str) -> RunStopped:
        tried = "; ".join(step.sentence() for step in self.steps)
        good = good_checkpoint(self.ctx, failure.onset - self.asked.logging_steps)
        parts = [
            first_step,
            f"remedies already tried: {tried}" if tried else "",
            f"suggested (grpo.remedies=act would do it): {remedy.sentence()}" if remedy else "",
            f"the last good checkpoint is {good}" if good else "",
        ]
        return RunStopped(
            failure.headline,
            where=f"grpo step {failure.onset}",
            fix=". ".join(part.rstrip(".") for part in parts if part),
            cause=failure.name,
        )

    def _note(self, note: str, rest: str = "") -> None:
        if note not in self.notes:
            self.notes.append(note)
            self.ctx.log(f"watchdog: {note}{rest}")

    def _was_learnt(self) -> bool:
        """Whether the share of right completions was clearly lower in the first logged row."""
        shares = [row["outcomes/right"] for row in self.callback.rows if row.get("outcomes/right") is not None]
        return bool(shares) and shares[0] < LEARNT_FROM

    def training_failed(self, error: Exception, at_step: int) -> None:
        """`train()` or the last save raised: weights that are not finite are a failure with a name, to be settled; all else is raised
        again."""
        known = classify(error)
        if not isinstance(known, NonFinite) or self.asked.watchdog != "stop" or self.asked.remedies == "off":
            raise error
        headline = f"weights, logits or gradients are not finite: {known.message}"
        self._note(f"late_nan: {headline}")
        # The update before this step has done it: its checkpoint is not a good one.
        self._decide(
            Failure("late_nan", headline, max(1, at_step)), at_step, known.fix or ADVICE["late_nan"].first_step
        )

    def settle(self) -> None:
        """After training: take the remedy that was chosen, or raise the verdict that ended it.

        Raises:
            StartAgain: a remedy was taken; the next process of this stage goes on with it.
            RunStopped: no remedy is left.
        """
        if self.step is not None:
            raise take(self.ctx, self.steps, self.step)
        if self.stopped is not None:
            raise self.stopped


def situation(
    prompts: int, groups: Callable[[], list[dict[str, Any]]], steps: list[Step], can_refill: bool
) -> Callable[[int], Situation]:
    """A function that tells where the run stands. The share of live groups is that since the last remedy; dead prompts are those of the
    whole run."""
    since = steps[-1].resumed_from or 0 if steps else 0

    def look(at_step: int) -> Situation:
        rows = groups()
        kinds: dict[str, set[str]] = {}
        for row in rows:
            kinds.setdefault(row["prompt_id"], set()).add(row["kind"])
        dead = tuple(name for name, seen in kinds.items() if "live" not in seen)
        recent = [row for row in rows if row["step"] > since]
        if not recent:
            return Situation(at_step, prompts, 1.0, dead, can_refill)
        live = sum(row["kind"] == "live" for row in recent) / len(recent)
        return Situation(at_step, prompts, live, dead, can_refill)

    return look
