"""Gather what a report shows, from the run's record and its artifacts. Every part may be missing: a run can end anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from artifacts.store import Store
from tasks.report import cost, data, groups, origin, scores, training
from tasks.report.ending import ending_of
from tasks.report.gate import gate_of
from tasks.report.run_files import RunFiles, open_run

NO_SCORES: dict[str, Any] = {"scores": [], "differences": [], "pass_rates": None, "flips": None}


def collect(record: Mapping[str, Any], store: Store, home: Path | None = None) -> dict[str, Any]:
    """Everything the page needs, as plain data.

    Args:
        record: the run's record as stored under `runs/`.
        home: `run.home`, where the work directory of a stage that did not finish is found.
    """
    return collected(open_run(record, store, home))


def collected(run: RunFiles) -> dict[str, Any]:
    """`collect` for a run whose files are known."""
    record = run.record
    sets = scores.evaluated(run)
    main = sets[0] if sets and sets[0]["name"] == scores.HELD_OUT else NO_SCORES
    sft, grpo = run.rows("sft", "metrics.jsonl"), run.rows("grpo", "metrics.jsonl")
    charts = training.curves(sft, grpo)
    stages = cost.stage_rows(run)
    command, needs_file = origin.command(record)
    return {
        "record": record,
        "ending": ending_of(run),
        **{key: main[key] for key in NO_SCORES},
        "sets": [one for one in sets if one is not main],
        "gate": gate_of(run),
        "charts": charts,
        "not_measured": training.not_measured(charts, grpo, record["config"]),
        "rollouts": training.rollouts(run),
        "checkpoint": training.checkpoint_choice(run),
        "ended_early": training.ended_early(run),
        "groups": groups.groups_of(run),
        "remedies": groups.remedies_of(run),
        "selection": groups.selection_of(run),
        "stages": stages,
        "totals": cost.totals(run, stages),
        "data": data.tables(run),
        "preflight": data.preflight(run),
        "proofs": origin.proofs(run),
        "files": origin.files(run),
        "promotions": origin.promotions(run),
        "notes": [(name, note) for name, manifest in run.manifests.items() for note in manifest.notes],
        "lineage": origin.lineage(run),
        "versions": origin.versions(run),
        "command": command,
        "needs_file": needs_file,
        "store": store_of(run),
    }


def store_of(run: RunFiles) -> str | None:
    """The run's home folder, as a place to look."""
    return str(run.home) if run.home else None
