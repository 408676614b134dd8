"""The diagnosis of a run of ours where its log alone would say something else."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tasks.diagnosis.our_runs import diagnose_run
from tasks.grpo.remedies import NOTHING_LEFT
from tasks.report.run_files import RunFiles


def completed(folder: Path, notes: tuple[str, ...]) -> RunFiles:
    """A completed run whose answers were right in 82 of 100 completions at first and in all of them at the end."""
    rows = []
    for step in range(1, 21):
        right = min(1.0, 0.82 + 0.02 * step)
        dead = 0.5 if step < 5 else 1.0
        paid = {"reward": right, "rewards/sound/mean": right, "outcomes/right": right, "frac_reward_zero_std": dead}
        rows.append({"step": step, **paid, "reward_std": 1 - dead, "entropy": 0.3, "grad_norm": 0.1})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    manifest: Any = SimpleNamespace(notes=list(notes), metrics={})
    record = {"run_id": "r", "status": "completed", "stages": [], "config": {}}
    return RunFiles(record, {"grpo": manifest}, {"grpo": folder}, None, None, None)


@pytest.mark.parametrize(("notes", "verdict"), [((), "all_correct"), ((NOTHING_LEFT,), "healthy")])
def test_a_run_that_the_watchdog_ended_as_learnt_is_no_failure(
    tmp_path: Path, notes: tuple[str, ...], verdict: str
) -> None:
    found = diagnose_run(completed(tmp_path, notes))
    assert (found.verdict, found.failed) == (verdict, verdict != "healthy")
    assert "right" in found.headline and (NOTHING_LEFT in found.headline) == bool(notes)
