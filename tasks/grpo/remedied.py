"""Remedies taken by a run, kept in its work directory so that a killed run goes on at the same rung. No torch here.

`remedies.json` is the list of steps. A remedy is taken in this order: put the log aside, remove the checkpoints that are not gone
on from, write remedies.json. Killed in between, the run meets the same failure again and takes the same step.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tasks.errors import StartAgain, StoreError
from tasks.grpo.remedies import Step, step_from_json
from tasks.process.checkpoints import checkpoint_step, why_incomplete
from tasks.process.context import StageContext
from tasks.process.jsonio import read_json, write_json

REMEDIES_FILE = "remedies.json"


def load_steps(work_dir: Path) -> list[Step]:
    """The steps taken so far; none without the file.

    Raises:
        StoreError: the file is damaged. The checkpoints were made under its remedies: going on without them is no option.
    """
    path = work_dir / REMEDIES_FILE
    if not path.exists():
        return []
    data: Any = read_json(path)
    try:
        return [step_from_json(item) for item in data["steps"]]
    except (TypeError, KeyError, ValueError, AttributeError):
        raise StoreError(
            "the list of remedies that this run took is damaged",
            where=str(path),
            fix="delete the work directory; the stage then starts over",
            cause="work_damaged",
        ) from None


def good_checkpoint(ctx: StageContext, not_after: int) -> Path | None:
    """The newest complete checkpoint up to a step."""
    if not ctx.checkpoints.is_dir():
        return None
    folders = [path for path in ctx.checkpoints.iterdir() if 0 <= checkpoint_step(path) <= not_after]
    return next((path for path in sorted(folders, key=checkpoint_step, reverse=True) if not why_incomplete(path)), None)


def take(ctx: StageContext, steps: list[Step], step: Step) -> StartAgain:
    """Record a remedy and make the work directory ready for it; returns what the caller raises."""
    limit = {
        "here": step.at_step,
        # A row logged at the onset speaks for all steps since the row before it.
        "good": step.onset - ctx.config.grpo.logging_steps,
        "sft": -1,
    }[step.start]
    good = good_checkpoint(ctx, limit)
    resumed_from = checkpoint_step(good) if good else 0
    number = len(steps) + 1
    if ctx.metrics_path.exists():
        shutil.copyfile(ctx.metrics_path, ctx.work_dir / f"before-remedy-{number}.jsonl")
    if ctx.checkpoints.is_dir():
        for folder in ctx.checkpoints.iterdir():
            if checkpoint_step(folder) > resumed_from:
                shutil.rmtree(folder)
    done = Step(**{**step.__dict__, "resumed_from": resumed_from})
    write_json(ctx.work_dir / REMEDIES_FILE, {"steps": [item.to_json() for item in [*steps, done]]})
    return StartAgain(f"remedy {number} {done.sentence()}", where=f"grpo step {step.at_step}", cause=step.because)


def publish(ctx: StageContext, steps: list[Step]) -> list[dict[str, Any]]:
    """Copy what tells of the remedies into the artifact; returns them for the manifest, ids counted instead of listed."""
    if steps:
        shutil.copyfile(ctx.work_dir / REMEDIES_FILE, ctx.out / REMEDIES_FILE)
        for path in sorted(ctx.work_dir.glob("before-remedy-*.jsonl")):
            shutil.copyfile(path, ctx.out / path.name)
    return [{**step.to_json(), "set_aside": len(step.set_aside)} for step in steps]
