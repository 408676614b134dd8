"""Completions that were sampled while a run trained, found beside its log: what the curves are about.

Read are this pipeline's `rollouts.jsonl` (a few completions of each batch) and the parquet files that TRL writes with `log_completions`.
"""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.diagnosis.files import parse_json, read_text
from tasks.diagnosis.rows import number
from tasks.errors import DataError

KEPT = 64
SHOWN = 3
LONGEST = 300

Sample = dict[str, Any]
"""`step`, `prompt`, `completion`, `reward` (None where it is not known)."""


def sampled(log: Path) -> list[Sample]:
    """The last completions beside a log (in its folder, or that of the run above a checkpoint); none where there are none.

    A damaged file is passed over: the log can be judged without it.
    """
    folder = log if log.is_dir() else log.parent
    for place in (folder, folder.parent) if folder.name.startswith("checkpoint-") else (folder,):
        if (place / "rollouts.jsonl").is_file():
            return _from_jsonl(place / "rollouts.jsonl")
        files = sorted((place / "completions").glob("completions_*.parquet"))
        if files:
            return _from_parquet(files[-1])
    return []


def _from_jsonl(path: Path) -> list[Sample]:
    found = []
    try:
        text = read_text(path)
    except DataError:
        return []
    for line in text.split("\n")[-KEPT - 1 :]:
        try:
            row = parse_json(line)
        except ValueError:
            continue
        if isinstance(row, dict) and isinstance(row.get("completion"), str):
            done = row.get("step")  # ours are numbered by the steps done before them, logs by the step itself
            found.append({**row, "prompt": row.get("question"), "step": done + 1 if isinstance(done, int) else done})
    return [_sample(row) for row in found]


def _from_parquet(path: Path) -> list[Sample]:
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError):
        return []
    known = {"step", "prompt", "completion", "advantage"}
    if "completion" not in table.column_names:
        return []
    numbers = [
        field.name
        for field in table.schema
        if field.name not in known and (pa.types.is_floating(field.type) or pa.types.is_integer(field.type))
    ]
    rows = table.slice(max(0, table.num_rows - KEPT)).to_pylist()
    return [_sample({**row, "reward": sum(row[name] or 0.0 for name in numbers) if numbers else None}) for row in rows]


def _sample(row: dict[str, Any]) -> Sample:
    step, reward = number(row.get("step")), number(row.get("reward"))
    return {
        "step": int(step) if step is not None and math.isfinite(step) else None,
        "prompt": str(row.get("prompt")),
        "completion": str(row["completion"]),
        "reward": reward if reward is not None and math.isfinite(reward) else None,
    }


def copies(samples: list[Sample]) -> float | None:
    """Share of completions that repeat another one of the same prompt and step word for word; None without two of one prompt."""
    groups: dict[Any, Counter[str]] = {}
    for sample in samples:
        groups.setdefault((sample["step"], sample["prompt"]), Counter())[sample["completion"]] += 1
    several = [counts for counts in groups.values() if counts.total() > 1]
    if not several:
        return None
    return sum(counts.total() - len(counts) for counts in several) / sum(counts.total() - 1 for counts in several)


def telling(samples: list[Sample], verdict: str) -> list[dict[str, Any]]:
    """At most SHOWN different completions to read for a verdict, newest first: the best paid ones where the reward is in doubt. Of a
    long completion the end is shown."""
    paid = verdict in ("reward_hacking", "length_collapse")
    newest = list(reversed(samples))
    order = sorted(newest, key=lambda s: -(s["reward"] or 0.0)) if paid else newest
    shown: list[dict[str, Any]] = []
    seen: set[str] = set()
    for sample in order:
        text = sample["completion"]
        if text not in seen and len(shown) < SHOWN:
            seen.add(text)
            end = text if len(text) <= LONGEST else "…" + text[-LONGEST:]
            shown.append({"step": sample["step"], "reward": sample["reward"], "completion": end})
    return shown
