"""Short runs of the real GRPO stage from a stored SFT model, for the benchmarks: the stage's own entry, in this process."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402

from artifacts.store import open_store  # noqa: E402
from pipeline_config.loading import load_config  # noqa: E402
from tasks.errors import PipelineError, StartAgain  # noqa: E402
from tasks.process.context import StageContext, StageResult  # noqa: E402
from tasks.process.metrics import read_metrics  # noqa: E402


def inputs_of(home: Path) -> dict[str, Path]:
    """Folders of the SFT model and the dataset of a `tiny` run that is stored under `home` (benchmarks/tiny_seeds.py makes them)."""
    store = open_store(str(home / "store"))
    return {name: store.local_folder(store.find(f"{name}:latest")) for name in ("sft", "dataset")}


def rows_of(inputs: dict[str, Path], table: str) -> list[dict[str, Any]]:
    """Rows of one table of the dataset."""
    rows: list[dict[str, Any]] = pq.read_table(inputs["dataset"] / f"{table}.parquet").to_pylist()
    return rows


def run_grpo(
    inputs: dict[str, Path], work: Path, overrides: list[str], train: list[dict[str, Any]] | None = None, seed: int = 1
) -> dict[str, Any]:
    """Run GRPO, with whatever remedies it takes, until it ends.

    Returns:
        error (its cause, or None), message, rows (metrics.jsonl), before (the logs that remedies ended), steps (remedies), metrics
        (of the manifest, empty after an error), model (folder), seconds are the caller's to take.
    """
    shutil.rmtree(work, ignore_errors=True)
    (work / "out").mkdir(parents=True)
    (work / "checkpoints").mkdir()
    folders = dict(inputs)
    if train is not None:
        folders["dataset"] = work / "dataset"
        folders["dataset"].mkdir()
        pq.write_table(pa.Table.from_pylist(train), folders["dataset"] / "train.parquet")
        for other in ("gate", "eval"):
            shutil.copyfile(inputs["dataset"] / f"{other}.parquet", folders["dataset"] / f"{other}.parquet")
    config = load_config("tiny", overrides=overrides)
    from tasks.grpo.entry import run

    error, result = None, StageResult()
    while True:
        try:
            result = run(StageContext(config, folders, work, seed=seed))
        except StartAgain as again:
            print(f"  {again.message}", flush=True)
            continue
        except PipelineError as stopped:
            error = stopped
        break
    kept = work / "remedies.json"
    return {
        "error": error.cause if error else None,
        "message": str(error or ""),
        "rows": read_metrics(work / "metrics.jsonl"),
        "before": [read_metrics(path) for path in sorted(work.glob("before-remedy-*.jsonl"))],
        "steps": json.loads(kept.read_text(encoding="utf-8"))["steps"] if kept.exists() else [],
        "metrics": result.metrics,
        "notes": result.notes,
        "model": work / "out" / "model",
    }


def right_counts(
    folder: Path, rows: list[dict[str, Any]], overrides: list[str], samples: int = 8, seed: int = 0
) -> list[int]:
    """Right completions per held-out problem, of `samples` each, at temperature 1."""
    from tasks.contract.grading import grade
    from tasks.contract.prompts import encode_prompt
    from tasks.sampling.sampler import Sampler, SamplingSettings
    from tasks.training.loading import load_tokenizer

    config = load_config("tiny", overrides=overrides)
    tokenizer = load_tokenizer(folder, config)
    prompts = [encode_prompt(tokenizer, config.contract, row["question"]) for row in rows]
    settings = SamplingSettings(1.0, config.grpo.max_completion_length, n=samples, seed=seed)
    tokens = len(prompts) * settings.n * settings.max_new_tokens
    found = Sampler(folder, tokenizer, config, tokens).sample(prompts, settings)
    return [
        sum(grade(c.text, row["answer"], config.contract, truncated=c.truncated).right for c in group)
        for row, group in zip(rows, found, strict=True)
    ]
