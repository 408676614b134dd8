"""The selection stage on tables: what is written, in which order, and what a table that keeps all looks like."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_config.loading import load_config
from tasks.pass_rates.columns import COLUMNS
from tasks.process.context import StageContext
from tasks.selection.entry import run


def stage(tmp_path: Path, rights: list[int], *overrides: str, repeat: bool = False) -> StageContext:
    for name in ("dataset", "pass_rates", "work/out"):
        (tmp_path / name).mkdir(parents=True)
    rows = [
        {"id": f"p{i}", "question": f"What is {i} + 1?", "answer": str(i + 1), "source": "sum"}
        for i in range(len(rights))
    ]
    pq.write_table(pa.Table.from_pylist(rows + rows[:1] * repeat), tmp_path / "dataset" / "train.parquet")
    rates = [
        {"id": f"p{i}", "samples": 4, "right": right, "well_formed": 4, "truncated": 0, "tokens": 40}
        for i, right in enumerate(rights)
    ]
    table = pa.Table.from_pylist(rates, schema=pa.schema(list(COLUMNS.items())))
    pq.write_table(table, tmp_path / "pass_rates" / "rates.parquet")
    config = load_config("tiny", overrides=["grpo.per_device_train_batch_size=8", "pass_rates.min_kept=2", *overrides])
    return StageContext(config, {name: tmp_path / name for name in ("dataset", "pass_rates")}, tmp_path / "work")


def test_what_is_kept_and_what_is_set_aside(tmp_path: Path) -> None:
    ctx = stage(tmp_path, [0, 1, 2, 4, 3], repeat=True)
    result = run(ctx)
    kept = pq.read_table(ctx.out / "train.parquet")
    assert kept.column("id").to_pylist() == ["p1", "p2", "p4"]
    assert kept.schema == pq.read_table(tmp_path / "dataset" / "train.parquet").schema
    table = {row["id"]: row for row in pq.read_table(ctx.out / "selection.parquet").to_pylist()}
    assert table["p0"] == {"id": "p0", "samples": 4, "right": 0, "rate": 0.0, "kept": False, "why": "too_hard"}
    assert table["p3"]["why"] == "too_easy" and table["p4"]["rate"] == 0.75
    assert json.loads((ctx.out / "selection.json").read_text()) == result.metrics
    assert result.metrics["kept"] == 3 and result.notes == []


def test_a_widened_band_is_said(tmp_path: Path) -> None:
    result = run(stage(tmp_path, [0, 0, 0, 2, 4]))
    assert result.metrics["widened"] and result.metrics["kept"] == 5
    assert result.notes == ["Too few prompts were within the pass-rate band, so it was widened to 0 - 1; 5 are kept."]


def test_a_table_of_which_all_is_kept_is_the_same_file(tmp_path: Path) -> None:
    """Then GRPO's fingerprint is that of a run without the selection."""
    ctx = stage(tmp_path, [1, 2, 3, 2], repeat=True)
    run(ctx)
    assert (ctx.out / "train.parquet").read_bytes() == (tmp_path / "dataset" / "train.parquet").read_bytes()


@pytest.mark.parametrize("limit", [2, 3])
def test_prompts_that_were_not_measured(tmp_path: Path, limit: int) -> None:
    ctx = stage(tmp_path, [1, 2, 3, 2])
    table = pq.read_table(tmp_path / "pass_rates" / "rates.parquet").slice(0, limit)
    pq.write_table(table, tmp_path / "pass_rates" / "rates.parquet")
    metrics = run(ctx).metrics
    assert (metrics["measured"], metrics["kept"], metrics["reasons"]["not_measured"]) == (limit, limit, 4 - limit)
