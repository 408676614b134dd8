"""Writing the tables. Columns: id (content digest), question, answer, source; in sft.parquet also working."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.dataset.build import Built
from tasks.dataset.pools import Entry
from tasks.dataset.report import ROLES


def write(built: Built, out: Path) -> None:
    """Write the four tables and stats.json; the same tables give the same bytes."""
    out.mkdir(parents=True, exist_ok=True)
    for role in ROLES:
        write_table(built.tables[role], out / f"{role}.parquet", working=role == "sft")
    (out / "stats.json").write_text(json.dumps(built.stats, indent=1) + "\n", encoding="utf-8")


def write_table(rows: list[Entry], path: Path, *, working: bool = False) -> None:
    """Write one table; `working` adds the worked solutions."""
    columns: dict[str, list[str]] = {"id": [digest for digest, _ in rows]}
    columns["question"] = [problem.question for _, problem in rows]
    if working:
        columns["working"] = [problem.working for _, problem in rows]
    columns["answer"] = [problem.gold for _, problem in rows]
    columns["source"] = [problem.kind for _, problem in rows]
    schema = pa.schema([(name, pa.string()) for name in columns])
    pq.write_table(pa.table(columns, schema=schema), path)
