"""From the end of a stage process to a result or to a typed error that tells the user what to do."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from pydantic import ValidationError

from tasks.errors import BY_EXIT_CODE, Interrupted, PipelineError, Retryable, from_json
from tasks.process.context import ERROR_FILE, ERROR_LINE, LOG_FILE, RESULT_FILE, StageResult
from tasks.process.jsonio import read_json
from tasks.process.launch import ProcessResult

SHOWN_LINES = 20

RUN_AGAIN = "run again: it goes on from the newest complete checkpoint"


def read_result(result: ProcessResult, work_dir: Path) -> StageResult:
    """The result of a stage that ended well.

    Raises:
        PipelineError: it did not; see `to_error`.
    """
    data = read_json(work_dir / RESULT_FILE)
    if result.exit_code != 0 or result.ended_by != "itself" or data is None:
        raise to_error(result, work_dir)
    try:
        return StageResult.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"])) or "the file"
        raise Retryable(
            f"the stage's result cannot be used: {field}: {first['msg']}",
            where=str(work_dir / RESULT_FILE),
            fix=RUN_AGAIN,
            cause="result_damaged",
        ) from None


def to_error(result: ProcessResult, work_dir: Path) -> PipelineError:
    """The error for a stage process that failed, with the last lines of its output as a note.

    A limit of the launcher and the supervisor's death come first (the stage's own error.json then only tells how it
    took the SIGTERM), then error.json or what was printed in its place, then the signal or exit code.
    """
    error = _limit(result) or _written(work_dir) or _printed(result) or _unwritten(result)
    if result.tail:
        lines = "\n".join(f"  | {line}" for line in result.tail[-SHOWN_LINES:])
        error.add_note(f"last lines of {work_dir / LOG_FILE}:\n{lines}")
    return error


def _limit(result: ProcessResult) -> PipelineError | None:
    if result.ended_by == "timeout":
        return Retryable(
            f"the stage was ended at its time limit, after {result.duration_s:.0f} s",
            fix=f"raise the limit, or {RUN_AGAIN}",
            cause="timeout",
        )
    if result.ended_by == "stall":
        return Retryable(
            "the stage gave no sign of life for too long and was ended",
            fix=f"see the stacks at the end of its log; {RUN_AGAIN}",
            cause="stall",
        )
    if result.ended_by == "supervisor_lost":
        return Retryable("the supervisor of the stage was killed", fix=RUN_AGAIN, cause="supervisor_lost")
    return None


def _written(work_dir: Path) -> PipelineError | None:
    data = read_json(work_dir / ERROR_FILE)
    return from_json(data) if isinstance(data, dict) else None


def _printed(result: ProcessResult) -> PipelineError | None:
    """The error of a stage that could not write error.json."""
    for line in reversed(result.tail):
        if line.startswith(ERROR_LINE):
            try:
                data = json.loads(line.removeprefix(ERROR_LINE))
            except ValueError:
                continue
            if isinstance(data, dict) and data.get("exit_code") == result.exit_code:
                return from_json(data)
    return None


def _unwritten(result: ProcessResult) -> PipelineError:
    code = result.exit_code
    if code == 128 + signal.SIGKILL:
        return Retryable(
            "the stage was killed (often: out of memory)",
            fix=f"see the kernel's log for 'oom-kill'; lower the batch size or the number of workers, then {RUN_AGAIN}",
            cause="killed",
        )
    if code in (128 + signal.SIGTERM, 128 + signal.SIGINT):
        return Interrupted("the stage was stopped", fix=RUN_AGAIN)
    if result.signal is not None:
        name = signal.Signals(result.signal).name if result.signal in set(signal.Signals) else str(result.signal)
        return PipelineError(
            f"the stage crashed with {name}", fix="see the stacks at the end of its log", cause=f"signal_{name.lower()}"
        )
    if code == 0:
        return PipelineError("the stage ended without a result", fix="see the end of its log", cause="no_result")
    if code == 127:
        return PipelineError("the stage could not be started", fix="see the end of its log", cause="not_started")
    kind = BY_EXIT_CODE.get(code, PipelineError)
    return kind(f"the stage ended with exit code {code} and no message", fix="see the end of its log")
