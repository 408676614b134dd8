"""The diagnosis of a run of this pipeline, by its record: what its GRPO log shows or, where that shows nothing, how it ended."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from pipeline_config.training import GRPOSettings
from tasks.diagnosis.doctor import Diagnosis, diagnose
from tasks.diagnosis.rows import Row
from tasks.diagnosis.run_info import RunInfo, from_settings
from tasks.errors import DataError
from tasks.grpo.remedies import NOTHING_LEFT
from tasks.report.ending import ending_of
from tasks.report.run_files import RunFiles

LOG = "metrics.jsonl"
AGAIN = "give the command of the run again: stages that are done are reused, and training goes on from its newest checkpoint"


def diagnose_run(run: RunFiles) -> Diagnosis:
    """What the log of the run's GRPO stage shows. Where it shows no failure, or GRPO has not begun, but the run did not complete,
    the verdict is the cause with which it ended: the gate's, for instance.

    Raises:
        DataError: the run completed without a GRPO stage or without a row of its log, or the log cannot be read.
    """
    ended = ending_of(run)
    path = run.path("grpo", LOG)
    found = diagnose(path, _info(run)) if path and _has_rewards(run.rows("grpo", LOG, 50)) else None
    if found is not None and found.verdict == "all_correct" and _was_learnt(run):
        # The watchdog, which saw every row as it came, took this for the end of learning.
        found = replace(
            found, verdict="healthy", title="The run learnt its problems", headline=f"{NOTHING_LEFT} ({found.headline})"
        )
    if found is not None and found.failed:
        return found
    if ended["state"] in ("completed", "running", "unknown"):
        return found or _without_log(run, ended)
    return _by_ending(ended, found)


def _was_learnt(run: RunFiles) -> bool:
    grpo = run.manifests.get("grpo")
    return grpo is not None and NOTHING_LEFT in grpo.notes


def _has_rewards(rows: list[Row]) -> bool:
    return any("reward" in row for row in rows)


def _info(run: RunFiles) -> RunInfo:
    """From the settings of the run's record; those of another version may no longer be valid, and the log then stands alone."""
    try:
        return from_settings(GRPOSettings.model_validate(run.record.get("config", {}).get("grpo", {})))
    except ValidationError:
        return RunInfo()


def _without_log(run: RunFiles, ended: dict[str, Any]) -> Diagnosis:
    if ended["state"] == "completed":
        raise DataError(
            "GRPO logged no reward in this run" if "grpo" in run.manifests else "this run has no GRPO stage",
            where=str(run.record["run_id"]),
            fix="give a run that trained with GRPO, and a grpo.logging_steps below its steps",
        )
    at = f"the stage {ended['stage']}" if ended["stage"] else "its first stage"
    goes_on = f"{at} is running" if ended["state"] == "running" else f"{at} was the last that was heard of"
    headline = f"GRPO has logged nothing yet; {goes_on}"
    return Diagnosis("healthy", headline, "Too early to tell", conclusive=False)


def _by_ending(ended: dict[str, Any], found: Diagnosis | None) -> Diagnosis:
    """The verdict from how the run ended; `found` is what its log showed, which was no failure."""
    error, stage = ended["error"] or {}, ended["stage"] or "a stage"
    titles = {
        "refused": f"The run was refused after {stage}",
        "stopped": f"{stage} stopped itself",
        "interrupted": f"The run was interrupted in {stage}",
        "killed": f"The run was killed in {stage}",
    }
    said = {"interrupted": "the run was asked to stop", "killed": "its processes are gone, and none said why"}
    # The record of a run that a signal ended has the signal's class and no message.
    verdict = str(error["cause"] if error.get("message") and error.get("cause") else ended["state"])
    headline = str(error.get("message") or said.get(ended["state"], "no reason was recorded"))
    log = (ended["log"] or {}).get("path")
    note = {"name": "log", "text": str(log)} if log else None
    seen = found or Diagnosis(verdict, headline, rows=0)
    return replace(
        seen,
        verdict=verdict,
        title=titles.get(ended["state"], f"The run failed in {stage}"),
        headline=headline,
        conclusive=True,
        first_step=str(error.get("fix") or AGAIN),
        notes=(*seen.notes, *([note] if note else [])),
    )
