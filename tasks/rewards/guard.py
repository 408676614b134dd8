"""A wall around each reward function: whatever it does, a run of many hours goes on, or stops with the sample in hand.

A call that raises, hangs or kills its process is repeated row by row to find the rows at fault; the others keep their
values. What cannot be scored becomes None: TRL turns it into NaN, and a row whose functions all gave None has advantage
0 and stays out of its group's mean (trl 1.13, `GRPOTrainer._generate_and_score_completions`).
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tasks.errors import PipelineError, RunStopped
from tasks.rewards.client import CallFailed
from tasks.rewards.spec import GOLD_COLUMN, BadReturn, RewardFn, Scores, checked_values, text_of
from tasks.rewards.user import call

WINDOW = 256
"""The error rate is taken over this many completions at most."""

MIN_WINDOW = 64
"""And over this many at least, before it can stop a run."""

MIN_ROW_S = 0.25
"""Shortest limit for a single row while the rows at fault are looked for."""

MAX_LOG_BYTES = 4 << 20
"""`reward_errors.jsonl` grows no further than this."""

MAX_TEXT = 4000
"""Longest prompt or completion that is saved or shown, in characters; of a longer one, both ends."""


class Caller(Protocol):
    """Runs a reward function on one batch."""

    def start(self) -> None: ...

    def score(self, offered: Mapping[str, Any], limit_s: float) -> Mapping[str, Any]: ...

    def close(self) -> None: ...


class InProcess:
    """Calls one of our own functions, which are pure and fast, in this process; `limit_s` is not enforced."""

    def __init__(self, function: RewardFn, *, allow_none: bool = False) -> None:
        self.function, self.allow_none = function, allow_none
        self._runner: asyncio.Runner | None = None

    def start(self) -> None:
        """Nothing to start."""

    def score(self, offered: Mapping[str, Any], limit_s: float) -> Mapping[str, Any]:
        """As `Worker.score`."""
        self._runner = self._runner or asyncio.Runner()
        metrics: list[tuple[str, float]] = []
        extras: dict[str, list[Any]] = {}
        logged = {
            "log_metric": lambda name, value: metrics.append((name, float(value))),
            "log_extra": lambda column, values: extras.setdefault(column, []).extend(values),
        }
        try:
            returned = call(self.function, {**offered, **logged}, self._runner)
            values, errors = checked_values(returned, len(offered["completions"]), allow_none=self.allow_none)
        except PipelineError:
            raise
        except BadReturn as error:
            raise CallFailed(str(error), whole_batch=True) from error
        except Exception as error:
            raise CallFailed(f"raised {type(error).__name__}: {error}") from error
        return {"values": values, "errors": errors, "metrics": metrics, "extras": extras}

    def close(self) -> None:
        """Close the event loop, if there is one."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None


class Guard:
    """Scores batches with one function and finds the rows at fault.

    Args:
        name: as in the metrics.
        caller: where the function runs.
        timeout_s: limit of one call on a whole batch; finding the rows at fault may take as long again, and so may
            scoring the others.
    """

    def __init__(self, name: str, caller: Caller, timeout_s: float = math.inf) -> None:
        self.name, self.caller, self.timeout_s = name, caller, timeout_s
        self._metric_names: set[str] = set()
        self._extra_names: set[str] = set()

    def score(self, offered: Mapping[str, Any]) -> Scores:
        """Score one batch. Never raises for what the function does.

        Raises:
            ConfigError: the function cannot be loaded, or a column that it needs is missing.
        """
        rows = len(offered["completions"])
        scores = Scores([None] * rows)
        try:
            self._call(offered, range(rows), self.timeout_s, scores)
        except CallFailed as failure:
            everyone = range(rows)
            if failure.whole_batch or rows == 1:
                scores.errors.update(dict.fromkeys(everyone, str(failure)))
            else:
                self._isolate(offered, scores, str(failure))
        return self._with_usual_logs(scores)

    def _isolate(self, offered: Mapping[str, Any], scores: Scores, message: str) -> None:
        rows = len(scores.values)
        limit = min(self.timeout_s, max(MIN_ROW_S, 2 * self.timeout_s / rows))
        spent = 0.0
        for row in range(rows):
            if spent >= self.timeout_s:
                scores.errors.update(dict.fromkeys(range(row, rows), f"not scored: the batch {message}"))
                break
            self.caller.start()  # importing the user's module again is not the row's time
            began = time.monotonic()
            try:
                self._call(offered, [row], limit, Scores([None] * rows))
            except CallFailed as failure:
                scores.errors[row] = str(failure)
            spent += time.monotonic() - began
        # Once more together, for functions that compare the completions of a batch.
        rest = [row for row in range(rows) if row not in scores.errors]
        try:
            if rest and len(rest) < rows:
                self._call(offered, rest, self.timeout_s, scores)
                return
        except CallFailed as failure:
            message = str(failure)
        scores.errors.update(dict.fromkeys(rest, message))

    def _call(self, offered: Mapping[str, Any], rows: Sequence[int], limit_s: float, into: Scores) -> None:
        total = len(into.values)
        answer = self.caller.score(_rows_of(offered, rows, total), limit_s)
        for row, value in zip(rows, answer["values"], strict=True):
            into.values[row] = value
        into.errors.update({rows[int(at)]: str(message) for at, message in answer["errors"].items()})
        into.metrics += [(name, value) for name, value in answer["metrics"]]
        for column, values in answer["extras"].items():
            if len(values) == len(rows):
                filled: list[Any] = [None] * total
                for row, value in zip(rows, values, strict=True):
                    filled[row] = value
                into.extras[column] = filled

    def _with_usual_logs(self, scores: Scores) -> Scores:
        # Trainers on several devices gather each logged name: a name missing on one of them would shift all others.
        self._metric_names.update(name for name, _ in scores.metrics)
        self._extra_names.update(scores.extras)
        here = {name for name, _ in scores.metrics}
        scores.metrics += [(name, math.nan) for name in sorted(self._metric_names - here)]
        for column in self._extra_names - scores.extras.keys():
            scores.extras[column] = [None] * len(scores.values)
        return scores


def _rows_of(offered: Mapping[str, Any], rows: Sequence[int], total: int) -> dict[str, Any]:
    if len(rows) == total:
        return dict(offered)
    return {
        name: [value[row] for row in rows] if isinstance(value, list) and len(value) == total else value
        for name, value in offered.items()
    }


class ErrorLog:
    """Counts the errors of one function, saves their samples, and stops the run when there are too many.

    Args:
        name: the function's.
        max_error_rate: share of the last MIN_WINDOW to WINDOW completions above which the run stops.
        path: `reward_errors.jsonl`; None saves nothing.
    """

    def __init__(self, name: str, max_error_rate: float, path: Path | None) -> None:
        self.name, self.max_error_rate, self.path = name, max_error_rate, path
        self._recent: deque[bool] = deque(maxlen=WINDOW)

    def record(self, offered: Mapping[str, Any], errors: Mapping[int, str]) -> None:
        """Count one batch and save its failures.

        Raises:
            RunStopped: the error rate is above the limit; the message holds the last sample.
        """
        rows = len(offered["completions"])
        self._recent.extend(row in errors for row in range(rows))
        step = getattr(offered.get("trainer_state"), "global_step", None)
        samples = [_sample(self.name, offered, row, message, step) for row, message in sorted(errors.items())]
        if samples and self.path is not None:
            _append(self.path, samples)
        rate = sum(self._recent) / len(self._recent) if self._recent else 0.0
        if samples and len(self._recent) >= MIN_WINDOW and rate > self.max_error_rate:
            raise RunStopped(
                f"the reward function {self.name!r} failed on {rate:.0%} of the last {len(self._recent)} completions "
                f"(limit {self.max_error_rate:.0%}). The last one: it {samples[-1]['error']}; "
                f"prompt: {samples[-1]['prompt'][-300:]!r}; completion: {samples[-1]['completion'][-500:]!r}; "
                f"gold: {samples[-1]['gold']!r}",
                where=f"step {step}" if step is not None else "",
                fix="correct the function and run again: it resumes from the newest checkpoint"
                + (f"; the samples are in {self.path}" if self.path is not None else ""),
                cause="reward_errors",
            )


def _sample(name: str, offered: Mapping[str, Any], row: int, message: str, step: Any) -> dict[str, Any]:
    prompts, golds = offered.get("prompts"), offered.get(GOLD_COLUMN)
    return {
        "function": name,
        "step": step,
        "error": message,
        "prompt": _cut(text_of(prompts[row])) if prompts else "",
        "completion": _cut(text_of(offered["completions"][row])),
        "gold": _cut(str(golds[row])) if golds else None,
    }


def _cut(text: str) -> str:
    half = MAX_TEXT // 2
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[:half]} [{len(text) - 2 * half} characters left out] {text[-half:]}"


def _append(path: Path, samples: list[dict[str, Any]]) -> None:
    size = path.stat().st_size if path.exists() else 0
    lines = [json.dumps(sample, ensure_ascii=False, default=str) + "\n" for sample in samples]
    with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
        for line in lines:
            size += len(line.encode(errors="backslashreplace"))
            if size > MAX_LOG_BYTES:
                return
            file.write(line)
