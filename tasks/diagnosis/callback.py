"""The watchdog: the diagnosis, run on every row that a transformers Trainer logs. The only module here that imports transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from tasks.diagnosis.doctor import Diagnosis, diagnose_rows
from tasks.diagnosis.rows import Row, clean_row, drop_rewound
from tasks.diagnosis.run_info import RunInfo
from tasks.errors import RunStopped

NOT_WORTH_SAVING = frozenset({"late_nan", "kl_explosion"})
"""Verdicts after which no checkpoint is written: its weights are lost, and it could push the last good one out."""


class WatchdogCallback(TrainerCallback):
    """Names a failure while the run trains, and stops it.

    A verdict counts when `persistence` diagnoses in a row agree on it (non-finite values at once: that rule waits for itself).
    `on_verdict` is then called, once for each verdict, and returns whether training should stop; without it training stops. Before
    a stop a checkpoint is saved, except after NOT_WORTH_SAVING. On several processes all come to the same verdict, since TRL
    logs gathered metrics.

    Args:
        on_verdict: gets the Diagnosis; True stops the run.
        info: what is known about the run.
        every: logged training rows between diagnoses.
        persistence: equal verdicts in a row that make one count.

    Attributes:
        rows: what has been logged, also before a resume.
        latest: the newest diagnosis. diagnosis: the one that stopped the run, or None.
    """

    def __init__(
        self,
        on_verdict: Callable[[Diagnosis], bool] | None = None,
        info: RunInfo | None = None,
        *,
        every: int = 1,
        persistence: int = 3,
    ) -> None:
        self.on_verdict, self.info = on_verdict, info
        self.every, self.persistence = max(1, every), max(1, persistence)
        self.rows: list[Row] = []
        self.latest: Diagnosis | None = None
        self.diagnosis: Diagnosis | None = None
        self.reset()

    def reset(self) -> None:
        """Forget the rows: after a remedy (other settings, an earlier checkpoint) the run is judged by what follows."""
        self.rows = []
        self._seen = self._streak = 0
        self._reported: set[str] = set()

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """A resumed run brings its history with it."""
        if not self.rows:
            self.rows = [clean_row(row) for row in state.log_history if "train_runtime" not in row]

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
        if "reward" not in row:
            return control
        self._seen += 1
        if self._seen % self.every == 0 and self._counts(diagnose_rows(self.rows, self.info)):
            self._act(control)
        return control

    def _counts(self, found: Diagnosis) -> bool:
        same = self.latest is not None and found.verdict == self.latest.verdict
        self._streak = self._streak + 1 if same else 1
        self.latest = found
        if not found.failed or found.verdict in self._reported:
            return False
        return found.verdict == "late_nan" or self._streak >= self.persistence

    def _act(self, control: TrainerControl) -> None:
        found = self.latest
        assert found is not None
        self._reported.add(found.verdict)
        if self.on_verdict is not None and not self.on_verdict(found):
            return
        self.diagnosis = found
        control.should_training_stop = True
        control.should_save = found.verdict not in NOT_WORTH_SAVING

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
