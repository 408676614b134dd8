"""Pass rates: how often the SFT model solves each training prompt, from a few samples with GRPO's sampler and verifier.

Runs in the stage process. Output: rates.parquet (one row a prompt, in the order of the training table), pass_rates.json. What to do with
them is decided by the stage `selection`, so that another band samples nothing again.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.contract.grading import grade
from tasks.contract.prompts import encode_prompt
from tasks.pass_rates.columns import COLUMNS
from tasks.process.context import StageContext, StageResult
from tasks.sampling.sampler import Sampler, rollout_settings
from tasks.training.loading import load_tokenizer

BLOCK = 256
"""Prompts between two saves: what a killed stage loses at most."""
PARTIAL = "rates.jsonl"


def run(ctx: StageContext) -> StageResult:
    """Sample the first `pass_rates.max_prompts` training prompts, and count."""
    config, settings = ctx.config, ctx.config.pass_rates
    folder = ctx.inputs["sft"] / "model"
    tokenizer = load_tokenizer(folder, config)
    train = pq.read_table(ctx.inputs["dataset"] / "train.parquet").to_pylist()
    # A prompt that repeats is measured once.
    problems = list({row["id"]: row for row in train}.values())[: settings.max_prompts]
    measured = saved_rows(ctx, [row["id"] for row in problems])
    if measured:
        ctx.log(f"{len(measured)} of {len(problems)} prompts were measured before the stage was stopped")
    # Of all prompts, also of those that are measured: a resumed stage goes on with the engine that it began with.
    new_tokens = len(problems) * settings.samples * config.grpo.max_completion_length
    sampler = Sampler(folder, tokenizer, config, new_tokens) if len(measured) < len(problems) else None
    with (ctx.work_dir / PARTIAL).open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in measured)
        while sampler is not None and len(measured) < len(problems):
            start = len(measured)
            block = problems[start : start + BLOCK]
            sampled = sampler.sample(
                [encode_prompt(tokenizer, config.contract, row["question"]) for row in block],
                rollout_settings(config, settings.samples, ctx.seed + start),
                progress=lambda done, total, start=start: ctx.progress(  # type: ignore[misc]
                    start * settings.samples + done, len(problems) * settings.samples, "sampling"
                ),
            )
            for row, completions in zip(block, sampled, strict=True):
                grades = [grade(c.text, row["answer"], config.contract, truncated=c.truncated) for c in completions]
                counted = {
                    "id": row["id"],
                    "samples": len(grades),
                    "right": sum(g.right for g in grades),
                    "well_formed": sum(g.well_formed for g in grades),
                    "truncated": sum(c.truncated for c in completions),
                    "tokens": sum(c.tokens for c in completions),
                }
                measured.append(counted)
                file.write(json.dumps(counted) + "\n")
            file.flush()
            ctx.progress(len(measured) * settings.samples, len(problems) * settings.samples, "sampling")
    schema = pa.schema(list(COLUMNS.items()))
    pq.write_table(pa.Table.from_pylist(measured, schema=schema), ctx.out / "rates.parquet")
    numbers = totals(measured, settings.samples)
    (ctx.out / "pass_rates.json").write_text(json.dumps(numbers, indent=1), encoding="utf-8")
    return StageResult(
        metrics=numbers, effective_config={"rollout_engine": sampler.name if sampler else "none"}, notes=[]
    )


def saved_rows(ctx: StageContext, ids: list[str]) -> list[dict[str, Any]]:
    """Whole blocks that an earlier attempt has measured; what does not fit to these prompts is left out."""
    path = ctx.work_dir / PARTIAL
    if not ctx.resume or not path.is_file():
        return []
    rows: list[dict[str, Any]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            break
        if len(rows) >= len(ids) or row["id"] != ids[len(rows)]:
            break
        rows.append(row)
    return rows if len(rows) == len(ids) else rows[: len(rows) // BLOCK * BLOCK]


def totals(measured: list[dict[str, Any]], samples: int) -> dict[str, Any]:
    """What the manifest keeps: sums over the prompts, and how many prompts have 0, 1, ... samples right."""
    right = [int(row["right"]) for row in measured]
    completions = max(1, len(measured) * samples)
    return {
        "prompts": len(measured),
        "samples": samples,
        "pass_at_1": sum(right) / completions,
        "format_rate": sum(row["well_formed"] for row in measured) / completions,
        "truncation_rate": sum(row["truncated"] for row in measured) / completions,
        "sampled_tokens": sum(row["tokens"] for row in measured),
        "prompts_by_right": [right.count(count) for count in range(samples + 1)],
    }
