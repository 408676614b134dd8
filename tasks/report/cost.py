"""What a run cost: time per stage, tokens, GPU-hours, and which stages were taken from the store."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from tasks.chain import CHAIN
from tasks.report.run_files import RunFiles, number
from tasks.report.training import last_value

TRAINED = ("sft", "grpo")
COMPUTING = {stage.name for stage in CHAIN if stage.computes}


def stage_rows(run: RunFiles) -> list[dict[str, Any]]:
    """One row per stage of the record: what happened, why, how long, how many tokens, how many GPU-hours.

    `seconds` is this run's wall time, `made_in_s` that of the attempt that made the artifact, maybe in an earlier run.
    """
    rows = []
    for item in run.record["stages"]:
        name = item["stage"]
        manifest = run.manifests.get(name)
        made = number(item.get("made_in_s"))
        count = tokens(run, name)
        rows.append(
            {
                "stage": name,
                "action": item["action"],
                "reason": item.get("reason", ""),
                "seconds": number(item.get("seconds")),
                "made_in_s": made,
                "took_s": made if made is not None else number(item.get("seconds")),
                "resumed_from_step": item.get("resumed_from_step"),
                "attempt": manifest.attempt if manifest else None,
                "size": manifest.size_bytes if manifest else None,
                "tokens": count,
                # Evaluation samples too, which is not counted: its rate would say nothing.
                "tokens_per_s": count / made if count and made and name in TRAINED else None,
                "gpu_hours": gpu_hours(manifest.hardware, manifest.duration_s)
                if manifest and name in COMPUTING
                else None,
            }
        )
    return rows


def gpu_hours(hardware: Mapping[str, Any], seconds: float) -> float | None:
    """GPUs held times hours; 0 on a CPU, None when the hardware was not recorded."""
    gpus = hardware.get("gpus")
    return len(gpus) * seconds / 3600 if isinstance(gpus, list) else None


def tokens(run: RunFiles, stage: str) -> int | None:
    """Tokens that went through the model, as the trainer counted them (SFT, GRPO: with prompts), or greedy completion tokens
    (evaluation); None where nothing was counted."""
    if stage in TRAINED:
        count = last_value(run.rows(stage, "metrics.jsonl"), "num_tokens")
        return int(count) if count else None
    if stage.startswith("evaluate"):
        total = sum(number(item.get("tokens")) or 0.0 for item in run.rows(stage, "items.jsonl"))
        return int(total) or None
    return None


def totals(run: RunFiles, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Sums over the stages: of this run, and of everything that its results were made with.

    `gpu_hours` and `gpu_hours_all` are None when a computing stage did not record its hardware.
    """
    own = [row for row in rows if row["action"] == "made"]
    known = [row for row in rows if row["stage"] in COMPUTING and row["stage"] in run.manifests]
    hardware = [run.manifests[row["stage"]].hardware for row in known]
    gpus = sorted({str(name) for item in hardware for name in _names(item.get("gpus"))})
    cores = [int(cpus) for item in hardware if (cpus := number(item.get("cpus")))]
    return {
        "wall_s": wall_seconds(run.record),
        "stages_s": sum(row["seconds"] or 0.0 for row in rows),
        "made_s": sum(row["made_in_s"] or 0.0 for row in rows),
        "longest_s": max((row["took_s"] or 0.0 for row in rows), default=0.0),
        "reused": sum(row["action"] in ("reused", "given") for row in rows),
        "tokens": sum(row["tokens"] or 0 for row in rows),
        "gpu_hours": _sum([row["gpu_hours"] for row in own if row["stage"] in COMPUTING]),
        "gpu_hours_all": _sum([row["gpu_hours"] for row in known]),
        "computed": bool(known),
        "gpus": gpus,
        "cpus": max(cores, default=None),
    }


def _names(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _sum(values: list[float | None]) -> float | None:
    return None if any(value is None for value in values) else sum(value for value in values if value is not None)


def wall_seconds(record: Mapping[str, Any]) -> float | None:
    """From the start of the run to its end; None while it has none."""
    try:
        began = datetime.fromisoformat(record["started_at"])
        return (datetime.fromisoformat(record["finished_at"]) - began).total_seconds()
    except (KeyError, TypeError, ValueError):
        return None
