"""The diagnosis of a run of ours where its log alone would say something else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tasks.diagnosis.our_runs import diagnose_run
from tasks.errors import DataError
from tasks.grpo.remedies import NOTHING_LEFT
from tasks.report.run_files import RunFiles


def ended(folder: Path, notes: tuple[str, ...], **more: Any) -> RunFiles:
    """A completed run (`more`: another ending) whose answers were right in 82 of 100 completions at first and in all of them at the end."""
    rows = []
    for step in range(1, 21):
        right = min(1.0, 0.82 + 0.02 * step)
        dead = 0.5 if step < 5 else 1.0
        paid = {"reward": right, "rewards/sound/mean": right, "outcomes/right": right, "frac_reward_zero_std": dead}
        rows.append({"step": step, **paid, "reward_std": 1 - dead, "entropy": 0.3, "grad_norm": 0.1})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    manifest: Any = SimpleNamespace(notes=list(notes), metrics={})
    record = {"run_id": "r", "status": "completed", "stages": [], "config": {}, **more}
    return RunFiles(record, {"grpo": manifest}, {"grpo": folder}, None, None, None)


@pytest.mark.parametrize(("notes", "verdict"), [((), "all_correct"), ((NOTHING_LEFT,), "healthy")])
def test_a_run_that_the_watchdog_ended_as_learnt_is_no_failure(
    tmp_path: Path, notes: tuple[str, ...], verdict: str
) -> None:
    found = diagnose_run(ended(tmp_path, notes))
    assert (found.verdict, found.failed) == (verdict, verdict != "healthy")
    assert "right" in found.headline and (NOTHING_LEFT in found.headline) == bool(notes)


def test_a_run_that_learnt_and_was_refused_afterwards_is_named_by_the_refusal(tmp_path: Path) -> None:
    stages = [{"stage": "grpo", "fingerprint": "a"}, {"stage": "export", "fingerprint": "b"}]
    error = {
        "cause": "export_refused",
        "message": "the file differs",
        "fix": "look",
        "where": "export",
        "exit_code": 23,
    }
    found = diagnose_run(ended(tmp_path, (NOTHING_LEFT,), status="failed", error=error, stages=stages))
    assert (found.verdict, found.failed, found.first_step) == ("export_refused", True, "look")


@pytest.mark.parametrize(("grpo", "message"), [(True, "GRPO logged no reward"), (False, "this run has no GRPO stage")])
def test_a_completed_run_without_a_log(tmp_path: Path, grpo: bool, message: str) -> None:
    run = ended(tmp_path, ())
    (tmp_path / "metrics.jsonl").unlink()
    with pytest.raises(DataError, match=message):
        diagnose_run(run if grpo else replace(run, manifests={}, folders={}))


def test_a_run_elsewhere_is_not_said_to_be_running(tmp_path: Path) -> None:
    """Its record says so, but its home is not on this machine."""
    run = replace(ended(tmp_path, (), status="running"), manifests={}, folders={}, unfinished="sft")
    found = diagnose_run(run)
    assert not found.conclusive and found.headline.endswith("the stage sft was the last that was heard of")
