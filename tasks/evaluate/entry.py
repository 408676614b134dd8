"""Evaluation: one model on the frozen held-out problems, greedily and, if asked, sampled.

Runs in the stage process, once per model. Output: items.jsonl (one row a problem), scores.json and, when it
samples, samples.parquet (one row a sampled completion).
"""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.contract.prompts import encode_prompt
from tasks.evaluate.items import make_item
from tasks.evaluate.scores import score
from tasks.models import model_folder
from tasks.process.context import StageContext, StageResult
from tasks.sampling.sampler import Sampler, SamplingSettings
from tasks.training.loading import load_tokenizer


def folder_of(ctx: StageContext) -> Path:
    """The one model among the inputs: the base model, or what a training stage merged."""
    for name in ("grpo", "sft"):
        if name in ctx.inputs:
            return ctx.inputs[name] / "model"
    return model_folder(ctx.inputs["model"], ctx.config.model.source, ctx.config.model.revision)


def run(ctx: StageContext) -> StageResult:
    """Complete every problem and score it."""
    config, settings = ctx.config, ctx.config.evaluation
    folder = folder_of(ctx)
    tokenizer = load_tokenizer(folder, config)
    rows = pq.read_table(ctx.inputs["dataset"] / "eval.parquet").to_pylist()[: settings.problems]
    prompts = [encode_prompt(tokenizer, config.contract, row["question"]) for row in rows]
    sampler = Sampler(folder, tokenizer, config)
    limit = settings.max_new_tokens or config.grpo.max_completion_length

    def show(done: int, total: int) -> None:
        ctx.progress(done, total, "evaluating")

    greedy = sampler.sample(prompts, SamplingSettings(0.0, limit, seed=ctx.seed), show)
    sampled = None
    if settings.samples:
        grpo = config.grpo
        sampled = sampler.sample(
            prompts,
            SamplingSettings(
                grpo.temperature, limit, settings.samples, grpo.top_p, grpo.top_k, grpo.min_p, seed=ctx.seed
            ),
            show,
        )
    items, samples = [], []
    for i, row in enumerate(rows):
        item, drawn = make_item(row, greedy[i][0], sampled[i] if sampled else [], config.contract)
        items.append(item)
        samples += drawn
    scores = score(items, settings.samples)
    with (ctx.out / "items.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(item, ensure_ascii=False) + "\n" for item in items)
    if samples:
        pq.write_table(pa.Table.from_pylist(samples), ctx.out / "samples.parquet", compression="zstd")
    (ctx.out / "scores.json").write_text(json.dumps(scores, indent=1), encoding="utf-8")
    return StageResult(metrics=scores, effective_config={"rollout_engine": sampler.name}, notes=[])
