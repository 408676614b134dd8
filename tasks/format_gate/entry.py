"""Format gate: sample held-out GRPO prompts from the SFT model at GRPO's settings and measure what GRPO would see.

Runs in the stage process. Output: gate.json (rates), samples.jsonl. It decides nothing: `measure.decide` does, in the flow.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow.parquet as pq

from tasks.contract.grading import grade
from tasks.contract.prompts import encode_prompt, messages
from tasks.format_gate.measure import measure
from tasks.process.context import StageContext, StageResult
from tasks.rewards.build import build_rewards
from tasks.sampling.sampler import Sampler, SamplingSettings
from tasks.training.loading import load_tokenizer


def run(ctx: StageContext) -> StageResult:
    """Sample, grade, reward, measure."""
    config, settings = ctx.config, ctx.config.grpo
    folder = ctx.inputs["sft"] / "model"
    tokenizer = load_tokenizer(folder, config)
    rows = pq.read_table(ctx.inputs["dataset"] / "gate.parquet").to_pylist()[: config.gate.prompts]
    prompts = [encode_prompt(tokenizer, config.contract, row["question"]) for row in rows]
    sampler = Sampler(folder, tokenizer, config)
    sampled = sampler.sample(
        prompts,
        SamplingSettings(
            temperature=settings.temperature,
            top_p=settings.top_p,
            top_k=settings.top_k,
            min_p=settings.min_p,
            max_new_tokens=settings.max_completion_length,
            n=settings.num_generations,
            seed=ctx.seed,
        ),
        progress=lambda done, total: ctx.progress(done, total, "sampling"),
    )
    grades = [
        [grade(c.text, row["answer"], config.contract, truncated=c.truncated) for c in group]
        for row, group in zip(rows, sampled, strict=True)
    ]
    totals = total_rewards(ctx, rows, sampled, tokenizer.eos_token_id)
    measured = measure(grades, totals, sum(c.truncated for group in sampled for c in group))
    with (ctx.out / "samples.jsonl").open("w", encoding="utf-8") as file:
        for row, group, marks, values in zip(rows, sampled, grades, totals, strict=True):
            for completion, mark, value in zip(group, marks, values, strict=True):
                record = {
                    "question": row["question"],
                    "answer": row["answer"],
                    "completion": completion.text,
                    "kind": str(mark.kind),
                    "right": mark.right,
                    "well_formed": mark.well_formed,
                    "truncated": completion.truncated,
                    "reward": value,
                }
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
    (ctx.out / "gate.json").write_text(json.dumps(measured, indent=1), encoding="utf-8")
    return StageResult(metrics=measured, effective_config={"rollout_engine": sampler.name}, notes=[])


def total_rewards(ctx: StageContext, rows: list[dict[str, Any]], sampled: Any, eos: int) -> list[list[float]]:
    """The run's own weighted rewards of every completion, called as the trainer calls them; shape (prompts, G)."""
    settings, contract = ctx.config.grpo, ctx.config.contract
    functions, weights = build_rewards(
        settings.rewards,
        contract,
        max_completion_length=settings.max_completion_length,
        work_dir=ctx.work_dir,
        eos_ids=[eos],
    )
    flat = [(row, completion) for row, group in zip(rows, sampled, strict=True) for completion in group]
    totals = [0.0] * len(flat)
    for function, weight in zip(functions, weights, strict=True):
        values = function(
            prompts=[messages(contract, row["question"]) for row, _ in flat],
            completions=[[{"role": "assistant", "content": c.text}] for _, c in flat],
            # Only length and last id are read: a full-length completion without EOS is a truncated one.
            completion_ids=[[0] * (c.tokens - 1) + [-1 if c.truncated else eos] for _, c in flat],
            answer=[row["answer"] for row, _ in flat],
        )
        totals = [t + weight * (v if v is not None and v == v else 0.0) for t, v in zip(totals, values, strict=True)]
    group = settings.num_generations
    return [totals[i : i + group] for i in range(0, len(totals), group)]
