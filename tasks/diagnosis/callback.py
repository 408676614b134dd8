"""The watchdog: the diagnosis, run on every row that a transformers Trainer logs. The only module here that imports transformers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from tasks.diagnosis.doctor import Diagnosis, diagnose_rows
from tasks.diagnosis.rows import Row, clean_row, drop_rewound
from tasks.diagnosis.run_info import RunInfo
from tasks.errors import RunStopped

Decision = Literal["go_on", "stop", "save_and_stop"]

NOT_WORTH_SAVING = frozenset({"late_nan", "kl_explosion"})
"""Verdicts after which no checkpoint is written: its weights are lost, and it could push the last good one out."""
STARVING = "dead_groups"
"""The note that most groups have no spread: no failure, but something can be done about it."""


class WatchdogCallback(TrainerCallback):
    """Names a failure while the run trains, and stops it.

    A verdict counts when `persistence` diagnoses in a row agree on it (non-finite values at once: that rule waits for itself).
    `on_verdict` is then called, once for each verdict, and decides; without it training stops. Before a stop a checkpoint is
    saved, except after NOT_WORTH_SAVING. With `on_verdict`, the note STARVING counts like a verdict. On several processes all come
    to the same verdict, since TRL logs gathered metrics.

    Args:
        on_verdict: gets the Diagnosis (its verdict is STARVING for that note).
        info: what is known about the run.
        every: logged training rows between diagnoses.
        persistence: equal verdicts in a row that make one count.
        window: optimizer steps per generation window; a diagnosis is made at its end only, where a checkpoint can be resumed.
        forget_before: rows of a resumed run up to this step are left out: they were logged before a remedy.

    Attributes:
        rows: what has been logged, also before a resume.
        latest: the newest diagnosis. diagnosis: the one that stopped the run, or None.
    """

    def __init__(
        self,
        on_verdict: Callable[[Diagnosis], Decision] | None = None,
        info: RunInfo | None = None,
        *,
        every: int = 1,
        persistence: int = 3,
        window: int = 1,
        forget_before: int = 0,
    ) -> None:
        self.on_verdict, self.info = on_verdict, info
        self.every, self.persistence, self.window = max(1, every), max(1, persistence), max(1, window)
        self.forget_before = forget_before
        self.rows: list[Row] = []
        self.latest: Diagnosis | None = None
        self.diagnosis: Diagnosis | None = None
        self._seen = self._streak = 0
        self._counting = ""
        self._reported: set[str] = set()

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """A resumed run brings its history with it."""
        if not self.rows:
            self.rows = [
                clean_row(row)
                for row in state.log_history
                if "train_runtime" not in row and row.get("step", 0) > self.forget_before
            ]

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> TrainerControl:
        row = clean_row({**(logs or {}), "step": state.global_step})
        if "train_runtime" in row or self.diagnosis is not None:
            return control
        self.rows = drop_rewound([*self.rows, row])
        if "reward" not in row or state.global_step % self.window:
            return control
        self._seen += 1
        if self._seen % self.every == 0 and self._counts(diagnose_rows(self.rows, self.info)):
            self._act(control)
        return control

    def _counts(self, found: Diagnosis) -> bool:
        starving = next((note["text"] for note in found.notes if note["name"] == STARVING), None)
        if not found.failed and starving and self.on_verdict is not None:
            found = replace(found, verdict=STARVING, headline=starving)
        self._streak = self._streak + 1 if found.verdict == self._counting else 1
        self.latest, self._counting = found, found.verdict
        if not found.failed or found.verdict in self._reported:
            return False
        return found.verdict == "late_nan" or self._streak >= self.persistence

    def _act(self, control: TrainerControl) -> None:
        found = self.latest
        assert found is not None
        self._reported.add(found.verdict)
        decision: Decision = "stop" if found.verdict in NOT_WORTH_SAVING else "save_and_stop"
        if self.on_verdict is not None:
            decision = self.on_verdict(found)
        if decision == "go_on":
            return
        self.diagnosis = found
        control.should_training_stop = True
        control.should_save = decision == "save_and_stop"

    def raise_if_stopped(self) -> None:
        """After `train()` has returned.

        Raises:
            RunStopped: the watchdog has ended the run; `cause` is the verdict.
        """
        found = self.diagnosis
        if found is not None:
            raise RunStopped(
                found.headline, where=f"grpo step {found.onset_step}", fix=found.first_step, cause=found.verdict
            )
