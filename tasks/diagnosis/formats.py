"""The formats of training logs, each read into rows: trainer_state.json, JSON lines, CSV, captured output, event files, groups."""

from __future__ import annotations

import ast
import csv
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tasks.diagnosis.files import parse_json, read_text
from tasks.diagnosis.keys import canonical, is_metric
from tasks.diagnosis.rows import Row, clean_row, number, number_rows
from tasks.errors import DataError

KINDS = "trainer_state.json, a checkpoint folder, .jsonl, .csv, captured output, or TensorBoard event files"
_BARE = re.compile(r"(?<=[:\s,\[])(-?)(nan|inf)(?=\s*[,}\]])", re.IGNORECASE)


def read_trainer_state(path: str | Path, text: str | None = None) -> list[Row]:
    """Rows under `log_history` of a trainer_state.json (or a JSON list of rows); the bare word NaN is accepted.

    `text`, here and below: what the file holds, if it has been read (a pipe can be read only once).
    """
    path = Path(path)
    try:
        data = parse_json(read_text(path) if text is None else text)
    except ValueError as error:
        raise DataError(
            f"is not valid JSON ({error})",
            where=str(path),
            fix="the file may be half written: try again, or give a .jsonl",
        ) from error
    history = data.get("log_history") if isinstance(data, dict) else data
    if not isinstance(history, list):
        raise DataError("has no list `log_history`", where=str(path), fix="give the trainer_state.json of a checkpoint")
    for index, row in enumerate(history, 1):
        if not isinstance(row, dict):
            raise DataError(f"is {type(row).__name__}, not an object", where=f"{path}, log_history row {index}")
    return number_rows(clean_row(row) for row in history)


def read_jsonl(path: str | Path) -> list[Row]:
    """Rows of a JSON-lines log: `{"step": 5, "reward": ...}` a line. Lines with `prompt_id` and `rewards` are reward groups."""
    path = Path(path)
    raw = _json_lines(path)
    if raw and all("rewards" in row and isinstance(row["rewards"], list) for row in raw):
        return rows_of_groups(raw, path)
    return number_rows(clean_row(row) for row in raw)


def _json_lines(path: Path) -> list[dict[str, Any]]:
    lines = read_text(path).split("\n")
    rows = []
    for number_, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
        except ValueError as error:
            if number_ == len(lines):  # no newline yet: the writer is in the middle of this line
                break
            raise DataError(
                f"is not valid JSON ({error})", where=f"{path}, line {number_}", fix="each line must be one JSON object"
            ) from error
        if not isinstance(row, dict):
            raise DataError(
                f"is {type(row).__name__}, not an object",
                where=f"{path}, line {number_}",
                fix="each line must be one JSON object",
            )
        rows.append(row)
    return rows


def read_groups(path: str | Path) -> list[Row]:
    """Rows made of a reward-groups log: `{"prompt_id", "step", "rewards": [...]}` a line, total rewards of one group."""
    return rows_of_groups(_json_lines(Path(path)), Path(path))


def rows_of_groups(groups: list[dict[str, Any]], path: Path) -> list[Row]:
    """Per step: mean and (sample) standard deviation of all rewards, and the share of groups whose rewards are all equal."""
    steps: dict[int, list[list[float]]] = {}
    for index, group in enumerate(groups, 1):
        rewards = (
            [number(value) for value in group.get("rewards", ())] if isinstance(group.get("rewards"), list) else []
        )
        values = [value for value in rewards if value is not None]
        step = number(group.get("step"))
        if len(values) < 2 or step is None or not math.isfinite(step):
            raise DataError("needs `step` and a list `rewards` of two numbers or more", where=f"{path}, line {index}")
        steps.setdefault(int(step), []).append(values)
    rows: list[Row] = []
    for step_, members in sorted(steps.items()):
        flat = [value for values in members for value in values]
        mean = sum(flat) / len(flat)
        std = math.sqrt(sum((value - mean) ** 2 for value in flat) / (len(flat) - 1))
        dead = sum(max(values) - min(values) == 0 for values in members) / len(members)
        rows.append({"step": step_, "reward": mean, "reward_std": std, "frac_reward_zero_std": dead})
    return rows


def read_csv(path: str | Path, text: str | None = None) -> list[Row]:
    """Rows of a CSV with a header: one column a metric, or the long form with columns for step, name and value."""
    path = Path(path)
    reader = csv.reader((read_text(path) if text is None else text).splitlines())
    try:
        table = [cells for cells in reader if any(cell.strip() for cell in cells)]
    except csv.Error as error:
        raise DataError(f"is not CSV ({error})", where=f"{path}, line {reader.line_num}") from error
    if len(table) < 2:
        raise DataError("has no row below its header", where=str(path), fix="export the metrics with a header line")
    header, body = [cell.strip() for cell in table[0]], table[1:]
    if len(body[-1]) < len(header):
        body = body[:-1]
    for index, cells in enumerate(body, 2):
        if len(cells) != len(header):
            raise DataError(f"has {len(cells)} cells, the header has {len(header)}", where=f"{path}, row {index}")
    lower = [name.lower() for name in header]
    name_column = next((lower.index(name) for name in ("metric", "name", "key", "tag") if name in lower), None)
    if name_column is not None and "value" in lower:
        return _pivot(body, name_column, lower.index("value"), lower.index("step") if "step" in lower else None, path)
    _refuse_several_runs(header, path)
    # An empty cell is a metric that this row does not have: evaluation rows and training rows share one table.
    return number_rows(
        clean_row({key: cell for key, cell in zip(header, cells, strict=True) if cell.strip()}) for cells in body
    )


def _refuse_several_runs(header: list[str], path: Path) -> None:
    """W&B's export of a panel has the columns of all runs shown in it side by side: `<run> - train/reward`."""
    seen: dict[str, str] = {}
    for name in header:
        metric = canonical(name)
        if " - " in name and metric != name and seen.setdefault(metric, name) != name:
            raise DataError(
                f"holds several runs: {seen[metric]!r} and {name!r}", where=str(path), fix="export one run at a time"
            )


def _pivot(body: list[list[str]], name: int, value: int, step: int | None, path: Path) -> list[Row]:
    if step is None:
        raise DataError("has names and values but no column `step`", where=str(path), fix="export the step as well")
    by_step: dict[int, dict[str, str]] = {}
    for index, cells in enumerate(body, 2):
        at = number(cells[step])
        if at is None or not math.isfinite(at):
            raise DataError(f"step {cells[step]!r} is no number", where=f"{path}, row {index}")
        by_step.setdefault(int(at), {})[cells[name]] = cells[value]
    return [{**clean_row(metrics), "step": at} for at, metrics in sorted(by_step.items())]


def read_stdout(path: str | Path, text: str | None = None) -> list[Row]:
    """Rows printed as Python or JSON dicts among other output; numbers may be quoted, missing ones `None`, `nan` bare.

    Dicts without any metric (settings, for example) are left out; so is what cannot be parsed, as output is full of braces.
    """
    path = Path(path)
    rows = []
    for line in (read_text(path) if text is None else text).replace("\r", "\n").split("\n"):
        start, end = line.find("{"), line.rfind("}")
        if start < 0 or end < start:
            continue
        raw = _parse_dict(line[start : end + 1])
        row = clean_row(raw) if raw else {}
        if any(is_metric(key) for key in row):
            rows.append(row)
    if not rows:
        raise DataError(
            "no printed row of a training log found", where=str(path), fix=f"give the whole output, or {KINDS}"
        )
    return number_rows(rows)


def _parse_dict(text: str) -> dict[Any, Any] | None:
    for parse in (parse_json, lambda source: ast.literal_eval(_BARE.sub(r"'\1\2'", source))):
        try:
            value = parse(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        return value if isinstance(value, dict) else None
    return None


def read_event_files(paths: Iterable[Path]) -> list[Row]:
    """Rows of TensorBoard event files: the scalars of one step are one row."""
    from tasks.diagnosis.event_files import read_scalars

    by_step: dict[int, Row] = {}
    for path in paths:
        for step, tag, value in read_scalars(path):
            by_step.setdefault(step, {"step": step}).update(clean_row({tag: value}))
    return [by_step[step] for step in sorted(by_step)]
