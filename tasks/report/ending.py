"""How a run ended: completed, refused, stopped, failed, interrupted, still going on, or killed without a word."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from artifacts.locks import lock_holder
from tasks.errors import ExportRefused, GateRefused, RunStopped
from tasks.process.checkpoints import checkpoint_step, newest_complete
from tasks.process.context import LOG_FILE, read_progress
from tasks.process.secrets import mask_secrets
from tasks.report.cost import TRAINED
from tasks.report.run_files import RunFiles, number
from tasks.report.training import last_value

LOG_LINES, LOG_BYTES = 40, 64 << 10
BY_EXIT_CODE = {GateRefused.exit_code: "refused", RunStopped.exit_code: "stopped", ExportRefused.exit_code: "refused"}


def ending_of(run: RunFiles) -> dict[str, Any]:
    """How the run ended and, if it did not complete, everything that helps to go on.

    Returns:
        `state`: completed, refused (by a gate), stopped (by the watchdog), failed, interrupted, running, killed, or unknown (its
        record says running, and it is not on this machine). `stage`: where. `error`: as in the record. `step`, `steps`:
        how far that stage was. `checkpoint`: step of the newest complete checkpoint. `log`: path of the stage's log with its
        last lines. `done`: stages that are kept and will be reused.
    """
    record = run.record
    error = record.get("error") or None
    done = [item["stage"] for item in record["stages"] if "fingerprint" in item]
    state = _state(run, error)
    stage = run.unfinished or _where(error, done)
    ended: dict[str, Any] = {
        "state": state,
        "error": error,
        "stage": stage if state != "completed" else None,
        "done": [name for name in done if name in run.manifests],
        "checkpoint": None,
        "step": None,
        "steps": None,
        "log": None,
    }
    if state != "completed" and run.unfinished:
        ended |= _progress(run, run.unfinished)
        ended["checkpoint"] = _checkpoint(run.work)
        ended["log"] = log_tail(run.work / LOG_FILE) if run.work else None
    return ended


def _state(run: RunFiles, error: Mapping[str, Any] | None) -> str:
    status = str(run.record.get("status"))
    if status == "running":
        return _alive(run)
    if status == "failed" and error:
        return BY_EXIT_CODE.get(int(error.get("exit_code") or 0), "failed")
    return status


def _alive(run: RunFiles) -> str:
    """A running stage holds the lock of its work directory; the kernel frees it when its last process is gone."""
    if run.work is None or run.home is None:
        return "unknown"
    return "running" if lock_holder(run.home / "locks" / f"{run.work.name}.lock") else "killed"


def _where(error: Mapping[str, Any] | None, done: list[str]) -> str | None:
    """The stage that was refused after it had ended: the gate's decision, say."""
    where = str((error or {}).get("where") or "")
    return where if where in done else (done[-1] if done else None)


def _progress(run: RunFiles, stage: str) -> dict[str, Any]:
    """Optimizer steps done and planned; other stages count other things, which say little afterwards."""
    progress = (read_progress(run.work) if run.work else None) or {}
    if stage not in TRAINED:
        return {}
    # The last logged step: progress.json is written a little later or not at all.
    step, steps = last_value(run.rows(stage, "metrics.jsonl"), "step"), number(progress.get("total"))
    return {"step": int(step) if step is not None else None, "steps": int(steps) if steps else None}


def _checkpoint(work: Path | None) -> int | None:
    folder = newest_complete(work / "checkpoints", lambda text: None) if work else None
    return checkpoint_step(folder) if folder else None


def log_tail(path: Path) -> dict[str, Any] | None:
    """Path and last lines of a log, without secrets; None when there is no log."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - LOG_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return None
    lines = text.splitlines()[-LOG_LINES:]
    return {"path": str(path), "lines": mask_secrets("\n".join(lines), os.environ)}
