"""metrics.jsonl: one row {"step": n, ...} a line, appended as training goes on, the source of truth for all curves."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.process.jsonio import finite


def append_metric(path: Path, step: int, values: Mapping[str, Any]) -> None:
    """Append one row and flush it; the torn last line of a killed attempt is closed first.

    A value that is NaN or infinite (or holds one) is written as null there, and its name added to the row's list
    "nonfinite".
    """
    plain = {str(name): finite(value) for name, value in values.items()}
    bad = sorted(str(name) for name, value in values.items() if _has_lost_number(value, plain[str(name)]))
    row: dict[str, Any] = {**plain, "step": int(step)}
    if bad:
        row["nonfinite"] = bad
    line = _line(row)
    with open(path, "ab+") as file:
        if file.tell() > 0:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                line = b"\n" + line
        file.write(line)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows in file order; torn and foreign lines are passed over, a missing file has no rows."""
    rows: list[dict[str, Any]] = []
    if not path.exists():
        return rows
    # Not splitlines(): a JSON string may hold U+2028, which that takes for the end of a line.
    for line in path.read_bytes().split(b"\n"):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            rows.append(row)
    return rows


def truncate_metrics(path: Path, after_step: int) -> None:
    """Drop the rows whose step is greater than `after_step`, and torn lines; the file is replaced as a whole."""
    if path.exists():
        kept = [row for row in read_metrics(path) if row["step"] <= after_step]
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        part.write_bytes(b"".join(_line(row) for row in kept))
        os.replace(part, path)


def _line(row: dict[str, Any]) -> bytes:
    return (json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8", "replace")


def _has_lost_number(value: Any, plain: Any) -> bool:
    """Whether `finite` turned a number within `value` into None."""
    if plain is None:
        return value is not None
    if isinstance(plain, dict):
        return any(_has_lost_number(item, plain[str(key)]) for key, item in value.items())
    if isinstance(plain, list):
        items = value.tolist() if hasattr(value, "tolist") else value
        return any(_has_lost_number(item, other) for item, other in zip(items, plain, strict=True))
    return False
