"""The selection's numbers as rows for people: a table in Prefect. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.selection.choose import IN_BAND, NOT_MEASURED, TOO_EASY, TOO_HARD, WIDENED

COLUMNS = ("what", "prompts", "note")
WORDS = {
    IN_BAND: "kept, in the band",
    WIDENED: "kept, outside the band as configured",
    TOO_HARD: "set aside: solved too seldom",
    TOO_EASY: "set aside: solved too often",
    NOT_MEASURED: "set aside: not measured",
}


def rows(m: Mapping[str, Any]) -> list[dict[str, str]]:
    """One row per reason and per number of right samples; every row has all COLUMNS. `m` is what `choose.summary` gives."""
    low, high = m["band_used"]
    found = [
        ("training prompts", str(m["prompts"]), f"{m['measured']} measured, {m['samples']} samples each"),
        ("kept", str(m["kept"]), f"pass rate {low:g} to {high:g}" + (", widened" if m["widened"] else "")),
    ]
    found += [(WORDS[reason], str(count), "") for reason, count in m["reasons"].items() if count]
    found += [
        (f"{right} of {m['samples']} right", f"{before} -> {after}", "before -> after")
        for right, (before, after) in enumerate(
            zip(m["prompts_by_right_before"], m["prompts_by_right_after"], strict=True)
        )
    ]
    if m["dead_groups_before"] is not None and m["dead_groups_after"] is not None:
        dead = f"{m['dead_groups_before']:.0%} -> {m['dead_groups_after']:.0%}"
        found.append((f"forecast of dead groups, G = {m['group_size']}", dead, "share of groups, before -> after"))
    return [dict(zip(COLUMNS, row, strict=True)) for row in found]
