"""Format gate: sample GRPO prompts that SFT has not seen, at GRPO's settings, and measure what GRPO would see.

Runs in the stage process. Output: gate.json (everything measured, with examples), samples.jsonl. It decides nothing but when to stop
sampling: `verdict.decide` acts in the flow.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import pyarrow.parquet as pq
from transformers import PreTrainedTokenizerBase

from pipeline_config.pipeline import PipelineConfig
from tasks.contract.grading import grade
from tasks.contract.prompts import encode_example, encode_prompt, messages
from tasks.dataset.report import spread
from tasks.format_gate.measure import Rollout, measure, without_examples
from tasks.format_gate.stopping import looks, settled
from tasks.process.context import StageContext, StageResult
from tasks.rewards.build import Rewards, build_rewards
from tasks.sampling.sampler import Completion, Sampler, rollout_settings
from tasks.training.loading import load_tokenizer

TAUGHT_ROWS = 512
"""SFT traces whose length is measured."""


def run(ctx: StageContext) -> StageResult:
    """Sample in blocks of prompts, grade, reward and measure; stop early when the samples decide."""
    config, group = ctx.config, ctx.config.grpo.num_generations
    folder = ctx.inputs["sft"] / "model"
    tokenizer = load_tokenizer(folder, config)
    tables = {
        name: pq.read_table(ctx.inputs["dataset"] / f"{name}.parquet").to_pylist() for name in ("train", "sft", "gate")
    }
    rows, trained_on = choose_prompts(**tables, count=config.gate.prompts)
    traces = tables["sft"][:TAUGHT_ROWS]
    facts = {
        "prompts_asked": len(rows),
        "prompts_of_grpo": trained_on,
        "max_completion_length": config.grpo.max_completion_length,
        "taught_tokens": spread(completion_lengths(tokenizer, config, traces)),
        "tags_lost_in_decode": lost_in_decode(tokenizer, config),
    }
    sampler = Sampler(folder, tokenizer, config, len(rows) * group * config.grpo.max_completion_length)
    plan = looks(len(rows), group) if config.gate.early_stop and not ctx.options.get("whole") else [len(rows)]
    groups: list[list[Rollout]] = []
    measured: dict[str, Any] = {}
    eos_ids = sorted({int(tokenizer.eos_token_id), int(tokenizer.pad_token_id)})
    with (
        build_rewards(
            config.grpo.rewards,
            config.contract,
            max_completion_length=config.grpo.max_completion_length,
            work_dir=ctx.work_dir,
            eos_ids=eos_ids,
        ) as rewards,
        (ctx.out / "samples.jsonl").open("w", encoding="utf-8") as file,
    ):
        for number, end in enumerate(plan):
            block = rows[len(groups) : end]
            start = len(groups) * group
            sampled = sampler.sample(
                [encode_prompt(tokenizer, config.contract, row["question"]) for row in block],
                rollout_settings(config, group, ctx.seed + number),
                progress=lambda done, total, start=start: ctx.progress(start + done, len(rows) * group, "sampling"),  # type: ignore[misc]
            )
            hidden = frozenset(tokenizer.all_special_ids) - frozenset(eos_ids)
            new = rollouts(rewards, config, block, sampled, hidden)
            file.writelines(
                json.dumps(sample_row(row, c, r), ensure_ascii=False) + "\n"
                for row, completions, some in zip(block, sampled, new, strict=True)
                for c, r in zip(completions, some, strict=True)
            )
            groups += new
            measured = measure(groups, config.contract)
            if end < len(rows) and settled(measured, config.gate, len(plan)):
                break
    stopped = len(groups) < len(rows)
    measured = {**measured, **facts, "looks": len(plan), "stopped_early": stopped}
    (ctx.out / "gate.json").write_text(json.dumps(measured, indent=1, ensure_ascii=False), encoding="utf-8")
    notes = (
        [f"The first {len(groups)} of {len(rows)} prompts already decided; the others were not sampled."]
        if stopped
        else []
    )
    return StageResult(
        metrics=without_examples(measured), effective_config={"rollout_engine": sampler.name}, notes=notes
    )


def choose_prompts(
    train: Sequence[dict[str, Any]], sft: Sequence[dict[str, Any]], gate: Sequence[dict[str, Any]], count: int
) -> tuple[list[dict[str, Any]], int]:
    """`count` different problems that GRPO trains on and SFT has not seen, in the order of the training table; where these are too few,
    followed by some of the gate's own table, which neither trains on. Returns the rows, and how many of them GRPO trains on."""
    taught = {row["id"] for row in sft}
    unseen = {row["id"]: row for row in train if row["id"] not in taught}
    chosen = list(unseen.values())[:count]
    return [*chosen, *gate[: count - len(chosen)]], len(chosen)


def rollouts(
    rewards: Rewards,
    config: PipelineConfig,
    rows: Sequence[dict[str, Any]],
    sampled: Sequence[Sequence[Completion]],
    hidden: frozenset[int] = frozenset(),
) -> list[list[Rollout]]:
    """Completions graded, and paid by the run's own reward functions, called as the trainer calls them; shape (prompts, n).

    `hidden`: ids of special tokens that have no place in a completion; the trainer's decode leaves them out of the text.
    """
    contract = config.contract
    flat = [(row, completion) for row, group in zip(rows, sampled, strict=True) for completion in group]
    paid: dict[str, list[float]] = {}
    totals = [math.nan] * len(flat)
    prompts = [messages(contract, row["question"]) for row, _ in flat]
    completions = [[{"role": "assistant", "content": c.text}] for _, c in flat]
    ids, answers = [list(c.ids) for _, c in flat], [row["answer"] for row, _ in flat]
    for function, weight in zip(rewards.functions, rewards.weights, strict=True):
        values = function(prompts=prompts, completions=completions, completion_ids=ids, answer=answers)
        scored = [math.nan if v is None else float(v) for v in values]
        paid[str(function.__name__)] = scored
        # As the trainer sums: functions that did not score a completion are left out.
        totals = [
            t if math.isnan(v) else weight * v + (0.0 if math.isnan(t) else t)
            for t, v in zip(totals, scored, strict=True)
        ]
    made = [
        Rollout(
            c.text,
            grade(c.text, row["answer"], contract, truncated=c.truncated),
            totals[i],
            {name: values[i] for name, values in paid.items()},
            c.truncated,
            not hidden.isdisjoint(c.ids),
        )
        for i, (row, c) in enumerate(flat)
    ]
    size = len(sampled[0])
    return [made[i : i + size] for i in range(0, len(made), size)]


def sample_row(row: dict[str, Any], completion: Completion, rollout: Rollout) -> dict[str, Any]:
    """What samples.jsonl keeps of one completion."""

    def number(value: float) -> float | None:
        return None if math.isnan(value) else value

    return {
        "id": row["id"],
        "question": row["question"],
        "answer": row["answer"],
        "completion": rollout.text,
        "tokens": completion.tokens,
        "kind": str(rollout.grade.kind),
        "right": rollout.grade.right,
        "well_formed": rollout.grade.well_formed,
        "truncated": rollout.truncated,
        "reward": number(rollout.total),
        "rewards": {name: number(value) for name, value in rollout.rewards.items()},
    }


def completion_lengths(
    tokenizer: PreTrainedTokenizerBase, config: PipelineConfig, traces: Sequence[dict[str, Any]]
) -> list[int]:
    """Tokens of the completions that SFT teaches, EOS included."""
    examples = (
        encode_example(tokenizer, config.contract, row["question"], row["working"], row["answer"]) for row in traces
    )
    return [sum(mask) for _, mask in examples]


def lost_in_decode(tokenizer: PreTrainedTokenizerBase, config: PipelineConfig) -> list[str]:
    """Tags that do not come back from the decode that the trainer uses (registered special tokens do not)."""
    lost = []
    for tag in config.contract.tags:
        ids = tokenizer(tag, add_special_tokens=False)["input_ids"]
        if tag not in str(tokenizer.decode(ids, skip_special_tokens=True)):
            lost.append(tag)
    return lost
