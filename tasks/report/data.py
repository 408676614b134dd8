"""What the dataset and preflight stages found, for the report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.report.run_files import RunFiles, number

TABLES = ("sft", "train", "gate", "eval")


def tables(run: RunFiles) -> dict[str, Any] | None:
    """Rows, distinct problems, prompt lengths per table, what was dropped and why, overlaps; None without statistics."""
    stats = run.json("dataset", "stats.json")
    if not isinstance(stats, Mapping):
        return None
    rows, unique, tokens = (_part(stats, key) for key in ("rows", "unique", "prompt_tokens"))
    shown = [
        {
            "name": name,
            "rows": rows.get(name),
            "unique": unique.get(name),
            "tokens": tokens.get(name) if isinstance(tokens.get(name), Mapping) else None,
            "sources": [str(s["name"]) for s in _list(stats.get("sources")) if s.get("table") == name and "name" in s],
        }
        for name in TABLES
        if number(rows.get(name)) is not None
    ]
    return {
        "tables": shown,
        "dropped": {key: int(count) for key, count in _part(stats, "dropped").items() if number(count)},
        "overlap": {key: int(count) for key, count in _part(stats, "overlap").items() if number(count) is not None},
        "sft_tokens": _part(stats, "sft_tokens") or None,
    }


def preflight(run: RunFiles) -> dict[str, Any] | None:
    """Counts of the preflight's checks, and those that were not ok; None when it did not end."""
    found = run.json("preflight", "findings.json")
    if not isinstance(found, Mapping):
        return None
    findings = [f for f in _list(found.get("findings")) if f.get("status") != "ok"]
    return {"counts": _part(found, "counts"), "findings": findings}


def _part(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = data.get(key)
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []
