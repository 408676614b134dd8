"""Evaluation: one model on every set of problems, greedily and, if asked, sampled, under a frozen spec.

Runs in the stage process, once per model. Output for the held-out set: items.jsonl (one row a problem) and, when it
samples, samples.parquet (one row a sampled completion); the same below sets/<name>/ for the other sets; scores.json for
all. What an earlier artifact of the same stage holds for the same model and spec is taken over, not sampled again.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline_config.evaluation import HELD_OUT
from pipeline_config.pipeline import PipelineConfig
from tasks.contract.prompts import encode_prompt
from tasks.evaluate.items import make_item
from tasks.evaluate.plan import SetPlan, plan_of
from tasks.evaluate.scores import score
from tasks.evaluate.spec import make_spec
from tasks.models import model_folder
from tasks.process.context import StageContext, StageResult
from tasks.process.jsonio import read_rows
from tasks.sampling.sampler import Sampler, SamplingSettings
from tasks.training.loading import load_tokenizer


def folder_of(ctx: StageContext) -> Path:
    """The one model among the inputs: the base model, or what a training stage merged."""
    for name in ("grpo", "sft"):
        if name in ctx.inputs:
            return ctx.inputs[name] / "model"
    return model_folder(ctx.inputs["model"], ctx.config.model.source, ctx.config.model.revision)


@dataclass
class Model:
    """The model under evaluation; its weights are loaded when the first completion is asked for."""

    folder: Path
    config: PipelineConfig
    new_tokens: int  # at most, over all sets

    @cached_property
    def tokenizer(self) -> Any:
        return load_tokenizer(self.folder, self.config)

    @cached_property
    def sampler(self) -> Sampler:
        return Sampler(self.folder, self.tokenizer, self.config, self.new_tokens)


def run(ctx: StageContext) -> StageResult:
    """Complete and score every problem of every set."""
    sets = plan_of(ctx.config)
    rows = {one.name: rows_of(ctx, one.name) for one in sets}
    # Of all sets, also of those that are taken over below: every model is then sampled by the same engine.
    new_tokens = sum(len(rows[one.name]) * (1 + one.samples) * one.max_new_tokens for one in sets)
    model = Model(folder_of(ctx), ctx.config, new_tokens)
    scores: dict[str, Any] = {}
    taken: list[str] = []
    for one in sets:
        scores[one.name], taken_over = evaluate_set(ctx, model, one, rows[one.name])
        taken += [one.name] * taken_over
    engines = {name: found["engine"] for name, found in scores.items()}
    result = {**scores.pop(HELD_OUT), "sets": scores}
    (ctx.out / "scores.json").write_text(json.dumps(result, indent=1), encoding="utf-8")
    notes = [f"{', '.join(taken)}: taken over from an earlier evaluation of this model"] if taken else []
    return StageResult(metrics=result, effective_config={"rollout_engine": engines}, notes=notes)


def rows_of(ctx: StageContext, name: str) -> list[dict[str, Any]]:
    """The problems of one set."""
    rows: list[dict[str, Any]] = pq.read_table(ctx.inputs["evaluation_sets"] / "sets" / f"{name}.parquet").to_pylist()
    return rows


def evaluate_set(
    ctx: StageContext, model: Model, one: SetPlan, rows: list[dict[str, Any]]
) -> tuple[dict[str, Any], bool]:
    """(scores with their spec and the engine that wrote the completions, whether they were taken over) of one set."""
    config, sets = ctx.config, ctx.inputs["evaluation_sets"]
    overlap = {row["id"]: row for row in read_rows(sets / "overlap" / f"{one.name}.jsonl")}
    spec = make_spec(
        rows,
        config.contract,
        model.tokenizer.chat_template or "",
        max_new_tokens=one.max_new_tokens,
        max_context=config.model.max_context,
        samples=one.samples,
        sampler=one.sampler,
        seed=config.evaluation.seed,
    )
    out = ctx.out if one.name == HELD_OUT else ctx.out / "sets" / one.name
    out.mkdir(parents=True, exist_ok=True)
    earlier = take_over(ctx, one.name, spec["digest"], out)
    if earlier:
        items, engine = earlier
    else:
        items, samples = complete(ctx, model, one, rows)
        engine = model.sampler.name
        if samples:
            pq.write_table(pa.Table.from_pylist(samples), out / "samples.parquet", compression="zstd")
    for item in items:
        found = overlap[item["id"]]
        item |= {"overlap": found["overlap"], "contaminated": found["contaminated"]}
    with (out / "items.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(item, ensure_ascii=False) + "\n" for item in items)
    scores = {**score(items, one.samples), "spec": spec, "engine": engine}
    strict = scores["strict"]
    ctx.log(f"{one.name}: strict {strict['rate']:.1%} [{strict['low']:.1%}, {strict['high']:.1%}], n = {strict['n']}")
    return scores, earlier is not None


def complete(
    ctx: StageContext, model: Model, one: SetPlan, rows: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(items, rows of sampled completions) of one set, by the model."""
    prompts = [encode_prompt(model.tokenizer, ctx.config.contract, row["question"]) for row in rows]
    seed = ctx.config.evaluation.seed

    def show(done: int, total: int) -> None:
        ctx.progress(done, total, f"evaluating {one.name}")

    greedy = model.sampler.sample(prompts, SamplingSettings(0.0, one.max_new_tokens, seed=seed), show)
    sampled = None
    if one.samples:
        settings = SamplingSettings(**one.sampler, max_new_tokens=one.max_new_tokens, n=one.samples, seed=seed)
        sampled = model.sampler.sample(prompts, settings, show)
    items, samples = [], []
    for i, row in enumerate(rows):
        item, drawn = make_item(row, greedy[i][0], sampled[i] if sampled else [], ctx.config.contract)
        items.append(item)
        samples += drawn
    return items, samples


def take_over(ctx: StageContext, name: str, digest: str, out: Path) -> tuple[list[dict[str, Any]], str] | None:
    """(items, engine) of an earlier artifact, if it scored this model on this set under this very spec."""
    earlier = ctx.inputs.get(f"earlier/{name}")
    if earlier is None:
        return None
    scores = json.loads((earlier / "scores.json").read_text(encoding="utf-8"))
    found = scores if name == HELD_OUT else scores["sets"][name]
    folder = earlier if name == HELD_OUT else earlier / "sets" / name
    if found["spec"]["digest"] != digest:
        return None
    if (folder / "samples.parquet").exists():
        shutil.copyfile(folder / "samples.parquet", out / "samples.parquet")
    return read_rows(folder / "items.jsonl"), str(found["engine"])
