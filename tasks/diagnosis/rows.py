"""Rows of a training log: one dict a logged row, keys as TRL names them, numbers as floats."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from tasks.diagnosis.keys import canonical

Row = dict[str, Any]
"""A logged row: metric -> float, or None when it was logged without a value; `step` is an int."""

STEP_IS_ROW = "_step_is_row"
"""Key of a row whose log has no steps: `step` then counts the logged rows."""

_TEXT_NUMBERS = {
    "nan": math.nan,
    "inf": math.inf,
    "+inf": math.inf,
    "infinity": math.inf,
    "-inf": -math.inf,
    "-infinity": -math.inf,
}


def number(value: Any) -> float | None:
    """A logged value as a float; None when it is no number (or none was logged).

    >>> number("-2"), number("nan"), number(None), number("4.9e-06"), number(True)
    (-2.0, nan, None, 4.9e-06, None)
    """
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, (int, float)):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    if isinstance(value, str):
        text = value.strip().lower()
        if text in _TEXT_NUMBERS:
            return _TEXT_NUMBERS[text]
        try:
            return float(text)
        except ValueError:
            return None
    return None


def clean_row(raw: Mapping[Any, Any]) -> Row:
    """TRL's names, numbers as floats; texts and lists are left out, a dict inside (`{"metrics": {...}}`) is unpacked.

    Strict JSON has no NaN: our metrics.jsonl writes null and names the metric in the row's list `nonfinite`.
    """
    row: Row = {}
    for key, value in raw.items():
        if isinstance(value, Mapping):
            row.update({k: v for k, v in clean_row(value).items() if k not in row})
            continue
        name, parsed = canonical(str(key)), number(value)
        empty = value is None or (isinstance(value, str) and value.strip().lower() in ("none", "null"))
        if name == "step":
            if parsed is not None and math.isfinite(parsed):
                row["step"] = int(parsed)
        elif parsed is not None or empty:
            row[name] = parsed
    lost = raw.get("nonfinite")
    for key in lost if isinstance(lost, list) else ():
        row[canonical(str(key))] = math.nan
    return row


def number_rows(rows: Iterable[Row]) -> list[Row]:
    """Give every row a step. Where a log has none, rows that hold a reward or a loss are counted from 1."""
    out, count = [], 0
    for row in rows:
        if "reward" in row or "loss" in row:
            count += 1
        out.append(row if "step" in row else {**row, "step": max(count, 1), STEP_IS_ROW: 1.0})
    return out


def drop_rewound(rows: list[Row]) -> list[Row]:
    """Rows without those that a resumed run has logged again: where the step of the training rows goes back, the later rows count."""
    out: list[Row] = []
    last = -1
    for row in rows:
        if "reward" in row:
            if row["step"] <= last:
                out = [old for old in out if old["step"] < row["step"]]
            last = row["step"]
        out.append(row)
    return out
