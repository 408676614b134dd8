"""Rows of a training log: one dict a logged row, keys as TRL names them, numbers as floats."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any

from tasks.diagnosis.keys import canonical, of_training

Row = dict[str, Any]
"""A logged row: metric -> float, or None when it was logged without a value; `step` is an int."""

STEP_IS_ROW = "_step_is_row"
"""Key of a row whose log has no steps: `step` then counts the logged rows."""

_LARGEST = 3.5e38
"""Just above what float32 holds, in which trainers compute: what is larger has overflowed on its way."""
_DEEPEST = 8
"""Dicts inside dicts that are unpacked."""
_TEXT_NUMBERS = {
    "nan": math.nan,
    "inf": math.inf,
    "+inf": math.inf,
    "infinity": math.inf,
    "-inf": -math.inf,
    "-infinity": -math.inf,
}


def number(value: Any) -> float | None:
    """A logged value as a float; None when it is no number (or none was logged). Beyond float32 it is infinite.

    >>> number("-2"), number("nan"), number(None), number("4.9e-06"), number(True), number(-1e300)
    (-2.0, nan, None, 4.9e-06, None, -inf)
    """
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, str) and value.strip().lower() in _TEXT_NUMBERS:
        return _TEXT_NUMBERS[value.strip().lower()]
    if not isinstance(value, (int, float, str)):
        return None
    try:
        parsed = float(value)
    except ValueError:
        return None
    except OverflowError:
        parsed = math.inf if not isinstance(value, str) and value > 0 else -math.inf
    return math.copysign(math.inf, parsed) if abs(parsed) > _LARGEST else parsed


def clean_row(raw: Mapping[Any, Any], depth: int = 0) -> Row:
    """TRL's names, numbers as floats; texts and lists are left out, a dict inside (`{"metrics": {...}}`) is unpacked.

    Strict JSON has no NaN: our metrics.jsonl writes null and names the metric in the row's list `nonfinite`.
    """
    row: Row = {}
    for key, value in raw.items():
        if isinstance(value, Mapping):
            inner = clean_row(value, depth + 1) if depth < _DEEPEST else {}
            row.update({k: v for k, v in inner.items() if k not in row})
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


def in_order(rows: list[Row]) -> list[Row]:
    """Rows with their steps going up, for logs written in another order. A resumed run, which logs some steps again, is left as it is.

    Newest first: turned round. Steps that were all logged once and go up and down (sorted as text, for example): sorted. One and the
    same step all along says nothing: the rows are counted instead.
    """
    steps = [row["step"] for row in rows if "reward" in row]
    if len(steps) < 3:
        return rows
    if len(set(steps)) == 1:
        return number_rows({key: value for key, value in row.items() if key != "step"} for row in rows)
    pairs = list(itertools.pairwise(steps))
    back = sum(after < before for before, after in pairs)
    if back > len(pairs) / 2:
        rows, steps = rows[::-1], steps[::-1]
    if len(set(steps)) < len(steps):
        return rows
    back = sum(after < before for before, after in itertools.pairwise(steps))
    kept = sum("reward" in row for row in drop_rewound(rows))
    return sorted(rows, key=lambda row: row["step"]) if back > 2 or kept < len(steps) / 2 else rows


def joined(rows: list[Row]) -> list[Row]:
    """Rows in which the reward of a step has beside it what was logged of that step's training in rows of its own.

    Rules look at the rows with a reward: a KL that only ever stands in another row would go unseen.
    """
    by_step = {row["step"]: dict(row) for row in rows if "reward" in row and STEP_IS_ROW not in row}
    for row in rows:
        target = by_step.get(row["step"])
        if target is not None and "reward" not in row:
            target.update({key: row[key] for key in row if of_training(key) and key not in target})
    return [by_step.get(row["step"], row) if "reward" in row else row for row in rows]


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
