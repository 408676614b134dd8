"""The gate's numbers as rows for people: a table in Prefect. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline_config.gate import GateSettings

COLUMNS = ("what", "value", "95 % interval", "needed")


def rows(m: Mapping[str, Any], gate: GateSettings) -> list[dict[str, str]]:
    """One row per number; every row has all COLUMNS.

    Args:
        m: what `measure.measure` measured, as in the manifest.
    """
    found = [
        ("completions", f"{m['prompts']} prompts x {m['group_size']}", "", ""),
        (
            "whole format",
            _percent(m["format_rate"]),
            _interval(m, "format_rate"),
            f"low end >= {gate.min_format_rate:.0%}",
        ),
        (
            "truncated",
            _percent(m["truncation_rate"]),
            _interval(m, "truncation_rate"),
            f"<= {gate.max_truncation_rate:.0%}",
        ),
        ("pass@1", _percent(m["pass_at_1"]), _interval(m, "pass_at_1"), ""),
        (f"pass@{m['group_size']}", _percent(m["pass_at_group"]), "", ""),
        ("groups without spread", _percent(m["dead_groups"]), "", f"<= {gate.max_dead_groups:.0%}"),
        ("of these all right / all wrong", f"{m['dead_all_right']:.0%} / {m['dead_all_wrong']:.0%}", "", ""),
    ]
    found += [
        (f"forecast of dead groups, G = {size}", _percent(item["dead"]), "", item["method"].replace("_", "-"))
        for size, item in m["forecast"].items()
    ]
    found += [
        (f"reward {name}", f"{item['mean']:.3g}", "", f"within groups +-{item['std_within']:.3g}")
        for name, item in m["components"].items()
        if item["mean"] is not None
    ]
    for item in m["tags"].values():
        found += [
            (f"{form['form']} for {item['tag']}", f"{form['count']} x {form['kind']}", "", "")
            for form in item["forms"][:3]
        ]
    return [dict(zip(COLUMNS, row, strict=True)) for row in found]


def _percent(share: float) -> str:
    return f"{share:.1%}"


def _interval(m: Mapping[str, Any], key: str) -> str:
    return f"{m[key + '_low']:.1%} to {m[key + '_high']:.1%}"
