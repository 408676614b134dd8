"""Grading a file of completions, row by row: JSONL or Parquet, each row with a completion and its gold."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline_config.contract import ContractConfig
from tasks.contract.grading import grade
from tasks.errors import DataError

RewardsOf = Callable[[str, str, Mapping[str, Any]], Mapping[str, float | None]]
"""(completion, gold, row) -> reward by name."""
_BATCH_ROWS = 1024


def grade_rows(
    path: str | Path,
    *,
    contract: ContractConfig,
    response_column: str = "response_text",
    gold_column: str = "gold",
    rewards: RewardsOf | None = None,
) -> Iterator[dict[str, Any]]:
    """Grade each row of a JSONL (`.jsonl`, `.json`, `.ndjson`) or Parquet (`.parquet`, `.pq`) file.

    Args:
        response_column: column with the completion: a string, or a chat of which the last message's content counts.
        gold_column: column with the gold: a string or a number.
        rewards: called per row for its rewards by name; a non-finite reward comes out as None.

    Yields:
        One dict a row, JSON-serializable: `row` (0-based), `id` (if the row has one), `span`, `right`, `kind`,
        `well_formed`, `detail`, `gold`, and `rewards` when a reward function is given.

    Raises:
        DataError: the file cannot be read, a row is not a JSON object, or a column is missing or no text; with file and
            row in the message.
    """
    source = Path(path)
    for index, row in enumerate(_rows(source)):
        where = f"{source}, row {index}"
        completion = _completion(_column(row, response_column, where), response_column, where)
        gold = _gold(_column(row, gold_column, where), gold_column, where)
        verdict = grade(completion, gold, contract)
        graded: dict[str, Any] = {"row": index}
        if "id" in row:
            graded["id"] = row["id"] if isinstance(row["id"], str | int) else str(row["id"])
        graded |= {
            "span": verdict.span,
            "right": verdict.right,
            "kind": str(verdict.kind),
            "well_formed": verdict.well_formed,
            "detail": verdict.detail,
            "gold": gold,
        }
        if rewards is not None:
            graded["rewards"] = {name: _finite(value) for name, value in rewards(completion, gold, row).items()}
        yield graded


def _rows(source: Path) -> Iterator[Mapping[str, Any]]:
    if not source.is_file():
        raise DataError("there is no such file", where=str(source), fix="give the path of a JSONL or Parquet file")
    ending = source.suffix.lower()
    if ending in (".parquet", ".pq"):
        return _parquet_rows(source)
    if ending in (".jsonl", ".json", ".ndjson"):
        return _json_rows(source)
    raise DataError(
        f"files ending in {ending or 'nothing'!r} cannot be read",
        where=str(source),
        fix="give a file that ends in .jsonl or .parquet",
    )


def _json_rows(source: Path) -> Iterator[Mapping[str, Any]]:
    index = 0
    with source.open("rb") as lines:
        for number, raw in enumerate(lines, start=1):
            if not raw.strip():
                continue
            where = f"{source}, row {index} (line {number})"
            try:
                row = json.loads(raw.decode("utf-8-sig" if number == 1 else "utf-8"))
            except UnicodeDecodeError as error:
                raise DataError(
                    f"the line is not UTF-8: {error.reason}", where=where, fix="save the file as UTF-8"
                ) from error
            except (ValueError, RecursionError) as error:
                raise DataError(
                    f"the line is not JSON: {error}", where=where, fix="write one JSON object a line"
                ) from error
            if not isinstance(row, dict):
                raise DataError(
                    f"the line holds a {type(row).__name__}, not an object",
                    where=where,
                    fix="write one JSON object a line",
                )
            yield row
            index += 1


def _parquet_rows(source: Path) -> Iterator[Mapping[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(source) as table:
            for batch in table.iter_batches(batch_size=_BATCH_ROWS):
                yield from batch.to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"the file is not readable as Parquet: {error}", where=str(source)) from error


def _column(row: Mapping[str, Any], name: str, where: str) -> Any:
    if name in row:
        return row[name]
    columns = ", ".join(map(str, list(row)[:12])) or "none"
    raise DataError(
        f"there is no column {name!r}; there are: {columns}",
        where=where,
        fix="name the column that holds it: --response-column for the completions, --gold-column for the golds",
    )


def _completion(value: Any, name: str, where: str) -> str:
    if isinstance(value, list) and value and isinstance(value[-1], dict):
        value = value[-1].get("content")
    if isinstance(value, str):
        return value
    raise DataError(
        f"column {name!r} holds {_describe(value)}, not a text",
        where=where,
        fix="the column must hold the model's completion as a string",
    )


def _gold(value: Any, name: str, where: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return str(value)
    raise DataError(
        f"column {name!r} holds {_describe(value)}, not a gold answer",
        where=where,
        fix="the column must hold the gold answer as a string or a number",
    )


def _describe(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None
