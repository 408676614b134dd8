"""The evaluation's sets, run in the stage process: which problems every model answers, and which of them training holds.

Output: sets/<name>.parquet (id, question, answer, source), overlap/<name>.jsonl (one row a problem), sets.json. It comes
before training, so that a set that cannot be read stops the run early; training does not depend on it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline_config.evaluation import HELD_OUT, EvaluationSet
from pipeline_config.pipeline import PipelineConfig
from tasks.dataset.build import build_set
from tasks.dataset.ruler import Limits, limits_of, ruler_for
from tasks.dataset.tables import write_table
from tasks.evaluation_sets.overlap import Overlap, overlaps, scan_tables
from tasks.models import model_folder
from tasks.process.context import StageContext, StageResult
from tasks.training.loading import load_tokenizer

TRAINING_TABLES = ("sft", "train")


def run(ctx: StageContext) -> StageResult:
    """Write every set, then its overlap with the training tables.

    Raises:
        DataError: a source cannot be read, has a bad row or too few rows, or a prompt does not fit.
    """
    config: PipelineConfig = ctx.config
    dataset = ctx.inputs["dataset"]
    for folder in ("sets", "overlap"):
        (ctx.out / folder).mkdir(exist_ok=True)
    held_out = pq.read_table(dataset / "eval.parquet").slice(0, config.evaluation.problems)
    pq.write_table(held_out, ctx.out / "sets" / f"{HELD_OUT}.parquet")
    tables: dict[str, pa.Table] = {HELD_OUT: held_out}
    counts: dict[str, Any] = {HELD_OUT: {}}
    if config.evaluation.sets:
        base = model_folder(ctx.inputs["model"], config.model.source, config.model.revision)
        ruler = ruler_for(load_tokenizer(base, config), config.contract)
    for i, one in enumerate(config.evaluation.sets):
        place = f"evaluation.sets[{i}]"
        rows, counts[one.name] = build_set(
            one.source, one.problems, place, config.data, ruler, _limits(config, one), _teller(ctx, one.name)
        )
        path = ctx.out / "sets" / f"{one.name}.parquet"
        write_table(rows, path)
        tables[one.name] = pq.read_table(path)
    report = measure_overlap(ctx, tables, dataset)
    for name, found in report.items():
        found |= counts[name]
        ctx.log(f"{name}: {found['rows']} problems, {found['contaminated']} of them in the training data")
    (ctx.out / "sets.json").write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    metrics = {f"{key}/{name}": report[name][key] for name in report for key in ("rows", "contaminated")}
    notes = [
        f"{name}: {found['contaminated']} of {found['rows']} problems occur in the training data"
        for name, found in report.items()
        if found["contaminated"]
    ]
    return StageResult(metrics=metrics, effective_config={}, notes=notes)


def measure_overlap(ctx: StageContext, tables: dict[str, pa.Table], dataset: Path) -> dict[str, dict[str, Any]]:
    """Write overlap/<name>.jsonl of every set; returns the counts of each."""
    settings = ctx.config.evaluation.overlap
    index = Overlap(settings.ngram)
    sets = {name: table.to_pylist() for name, table in tables.items()}
    for rows in sets.values():
        for row in rows:
            index.add(row["question"])
    files = {name: pq.ParquetFile(dataset / f"{name}.parquet") for name in TRAINING_TABLES}
    total = sum(file.metadata.num_rows for file in files.values())
    scanned = 0

    def rows_of(file: pq.ParquetFile) -> Iterator[dict[str, Any]]:
        nonlocal scanned
        for batch in file.iter_batches(batch_size=512):
            yield from batch.to_pylist()
            scanned += batch.num_rows
            ctx.progress(scanned, total, "looking for the problems in the training data")

    scan_tables(index, {name: rows_of(file) for name, file in files.items()})
    report = {}
    for name, rows in sets.items():
        found = overlaps(rows, index, settings.share)
        with (ctx.out / "overlap" / f"{name}.jsonl").open("w", encoding="utf-8") as stream:
            stream.writelines(json.dumps(row) + "\n" for row in found)
        report[name] = {
            "rows": len(rows),
            "contaminated": sum(row["contaminated"] for row in found),
            "any_overlap": sum(row["overlap"] > 0 for row in found),
            "training_rows": scanned,
        }
    return report


def _limits(config: PipelineConfig, one: EvaluationSet) -> Limits:
    usual = limits_of(config)
    longest = one.max_new_tokens or usual.eval_completion
    return Limits(usual.context, usual.completion, longest, usual.sft_length)


def _teller(ctx: StageContext, name: str) -> Any:
    return lambda done, total: ctx.progress(done, total, f"collecting {name}")
