"""What a stage gets and gives: its specification, its context while it runs, and its result.

The work directory is `<work_root>/<stage>-<fingerprint[:16]>/`: spec.json, out/ (becomes the artifact), checkpoints/,
metrics.jsonl, progress.json, stage.log, and at the end result.json or error.json.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, Field

from tasks.errors import Interrupted
from tasks.process import checkpoints, metrics
from tasks.process.jsonio import read_json, write_json

PROGRESS_EVERY_S = 1.0
SPEC_FILE, RESULT_FILE, ERROR_FILE = "spec.json", "result.json", "error.json"
ERROR_LINE = "[error] "
"""Begins the line of output that holds error.json when that file cannot be written."""
METRICS_FILE, PROGRESS_FILE, LOG_FILE = "metrics.jsonl", "progress.json", "stage.log"


class StageSpec(BaseModel):
    """Everything a stage process is told; no secrets and no objects, so that it can be read and started by hand."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stage: str
    """Name of the stage, one of `stage_main.ENTRIES`."""
    fingerprint: str = Field(min_length=1)
    """The stage's whole fingerprint."""
    config: dict[str, Any]
    """The whole pipeline configuration as JSON data."""
    inputs: dict[str, str] = Field(default_factory=dict)
    """Stage name of each parent -> local folder with its artifact."""
    work_dir: Path
    """The work directory, which exists."""
    seed: int = 0
    attempt: int = Field(default=1, ge=1)
    """1 on the first try; a retry counts up."""
    resume: bool = True
    """Whether checkpoints found in the work directory are used."""
    options: dict[str, Any] = Field(default_factory=dict)
    """What this instance of the stage does otherwise than the configuration says (`tasks.stage.Stage.options`)."""


def write_spec(spec: StageSpec) -> Path:
    """Prepare the work directory for one attempt and return the path of its spec.json.

    The result or error of an earlier attempt is removed; checkpoints, metrics and the log are kept.
    """
    for folder in (spec.work_dir / "out", spec.work_dir / "checkpoints"):
        folder.mkdir(parents=True, exist_ok=True)
    for name in (RESULT_FILE, ERROR_FILE, PROGRESS_FILE):
        (spec.work_dir / name).unlink(missing_ok=True)
    path = spec.work_dir / SPEC_FILE
    write_json(path, spec.model_dump(mode="json"))
    return path


class StageResult(BaseModel):
    """What a stage returns beside the files in its out/ folder."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    metrics: dict[str, Any] = Field(default_factory=dict)
    """Final numbers for the manifest; NaN and infinities become null."""
    effective_config: dict[str, Any] = Field(default_factory=dict)
    """The settings as the trainer really used them, read back after construction."""
    notes: list[str] = Field(default_factory=list)
    """Remarks for the report, one sentence each."""


class RowListener(Protocol):
    """Is told of every row of metrics.jsonl, and must neither raise nor block."""

    def row_written(self) -> None:
        """A row was appended."""


@dataclass
class StageContext:
    """What the entry of a stage works with.

    Attributes:
        config: the pipeline's configuration (`pipeline_config.PipelineConfig`).
        inputs: stage name of each parent -> local folder with its artifact, not to be written to.
        work_dir: the work directory.
        seed: the run's seed.
        attempt: 1 on the first try.
        resume: whether earlier checkpoints may be used.
        saves_on_stop: set to True by a stage that looks at `stop_requested()` itself, saves and raises Interrupted.
            Otherwise SIGTERM raises Interrupted in the main thread at once.
        stage: name of the stage, as in its spec.
        fingerprint: the stage's whole fingerprint.
        options: as in the spec.
        tracker: listens to the metrics, if anything does.
        rank: of this process among those that train together; only rank 0 writes the stage's files and its log.
    """

    config: Any
    inputs: dict[str, Path]
    work_dir: Path
    seed: int = 0
    attempt: int = 1
    resume: bool = True
    saves_on_stop: bool = False
    stage: str = ""
    fingerprint: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    tracker: RowListener | None = None
    rank: int = 0
    _stop: bool = field(default=False, repr=False)
    _progress_at: float = field(default=float("-inf"), repr=False)
    _progress_label: str = field(default="", repr=False)

    @property
    def out(self) -> Path:
        """Folder that becomes the artifact."""
        return self.work_dir / "out"

    @property
    def checkpoints(self) -> Path:
        """Folder for the trainer's checkpoints."""
        return self.work_dir / "checkpoints"

    @property
    def metrics_path(self) -> Path:
        """The metrics.jsonl of all attempts."""
        return self.work_dir / METRICS_FILE

    def log(self, message: str) -> None:
        """Print a line to the stage's log and the run's log."""
        if self.rank == 0:
            print(message, flush=True)
        self._check_stop()

    def metric(self, step: int, values: Mapping[str, Any]) -> None:
        """Append the row {"step": step, **values} to metrics.jsonl.

        A value that is NaN or infinite is written as null and its name added to the row's list "nonfinite".
        """
        if self.rank == 0:
            metrics.append_metric(self.metrics_path, step, values)
        if self.tracker is not None:
            self.tracker.row_written()
        self._check_stop()

    def truncate_metrics(self, after_step: int) -> None:
        """Drop the rows whose step is greater than `after_step`: a resumed run writes them again."""
        if self.rank == 0:
            metrics.truncate_metrics(self.metrics_path, after_step)

    def progress(self, done: float, total: float, label: str = "") -> None:
        """Say how far the stage is: at most one file write a second, but always for a new label and for the end.

        Every write is a sign of life; a stage without any is ended as stalled.
        """
        now = time.monotonic()
        due = done >= total or label != self._progress_label or now - self._progress_at >= PROGRESS_EVERY_S
        if due and self.rank == 0:
            self._progress_at, self._progress_label = now, label
            data = {"done": done, "total": total, "label": label, "time": time.time()}
            write_json(self.work_dir / PROGRESS_FILE, data, durable=False)
        self._check_stop()

    def newest_checkpoint(self) -> Path | None:
        """The newest complete checkpoint to resume from; None when there is none or `resume` is off."""
        return checkpoints.newest_complete(self.checkpoints, self.log) if self.resume else None

    def stop_requested(self) -> bool:
        """Whether the stage has been asked to stop (SIGTERM)."""
        return self._stop

    def request_stop(self) -> None:
        """Note a request to stop and, unless the stage saves by itself, raise Interrupted. For the signal handler."""
        self._stop = True
        self._check_stop()

    def _check_stop(self) -> None:
        # Raised again at every call, for library code may have swallowed the one from the signal handler.
        if self._stop and not self.saves_on_stop:
            raise Interrupted(
                "the stage was asked to stop", fix="run again: it goes on from the newest complete checkpoint"
            )


def read_progress(work_dir: Path) -> dict[str, Any] | None:
    """The content of progress.json, or None when there is none or it is not what a stage writes."""
    data = read_json(work_dir / PROGRESS_FILE)
    if not isinstance(data, dict) or "label" not in data:
        return None
    return data if all(isinstance(data.get(key), int | float) for key in ("done", "total")) else None


def last_activity(work_dir: Path) -> float:
    """Time of the newest sign of life of a stage: the later mtime of progress.json and metrics.jsonl; 0 for none."""
    times = [0.0]
    for name in (PROGRESS_FILE, METRICS_FILE):
        try:
            times.append((work_dir / name).stat().st_mtime)
        except OSError:
            continue
    return max(times)
