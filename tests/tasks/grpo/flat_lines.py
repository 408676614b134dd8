"""What the flat lines are made of: models that were taught one thing in a few steps, and a GRPO stage on 64 sums."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline_config.loading import load_config
from tasks.contract.prompts import completion_text, encode_prompt
from tasks.models.tiny import build_tiny
from tasks.process.context import StageContext

QUICK = [
    "grpo.max_steps=15",
    "grpo.per_device_train_batch_size=16",
    "grpo.max_completion_length=6",
    "grpo.save_steps=5",
    "grpo.checkpoint_choice.enabled=false",
]
TAGGED = ["grpo.max_completion_length=16", "grpo.temperature=0.7"]
"""Room for a whole tagged completion (13 tokens), sampled a little below 1 after so short a training."""

BARE_TEMPLATE = (
    "{%- for message in messages -%}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{%- endfor -%}"
)
"""tiny's chat template without its generation prompt."""

Lesson = tuple[list[int], list[int]]
"""Token ids of a prompt, and of what is to follow."""


def teach(folder: Path, lessons: Sequence[Lesson], steps: int) -> Path:
    """Train the tiny model in `folder/model` on all lessons at every step, and leave it there as an SFT stage would."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(str(folder / "model"), dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    longest = max(len(prompt) + len(reply) for prompt, reply in lessons)
    ids = torch.full((len(lessons), longest), 3)
    labels = torch.full((len(lessons), longest), -100)
    for row, (prompt, reply) in enumerate(lessons):
        whole = torch.tensor(prompt + reply)
        ids[row, : len(whole)] = whole
        labels[row, len(prompt) : len(whole)] = whole[len(prompt) :]
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 2e-3 * (1 - step / steps)
        model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(str(folder / "model"))
    return folder


def without_tags(folder: Path) -> Path:
    """A model that answers with a digit and ends its turn: no tag, as in the story."""
    tokenizer, contract = fresh(folder)
    lessons = []
    for number in (3, 17):
        reply = [*tokenizer(str(number), add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        lessons.append((encode_prompt(tokenizer, contract, f"What is {number} + 3?"), reply))
    return teach(folder, lessons, steps=30)


def with_tags(folder: Path) -> Path:
    """A model that keeps the whole format and answers 1234 or 1235 by chance; asked without the generation prompt, it
    goes on as the user would."""
    tokenizer, contract = fresh(folder)
    eos = tokenizer.eos_token_id
    lessons = []
    for number in (3, 17):
        question = f"What is {number} + 3?"
        prompt = encode_prompt(tokenizer, contract, question)
        for answer in ("1234", "1235"):
            text = completion_text(contract, "1", answer)
            lessons.append((prompt, [*tokenizer(text, add_special_tokens=False)["input_ids"], eos]))
        bare = f"<|im_start|>user\n{question}<|im_end|>\n"
        reply = tokenizer("What is", add_special_tokens=False)["input_ids"]
        lessons.append((tokenizer(bare, add_special_tokens=False)["input_ids"], [*reply, eos]))
    return teach(folder, lessons, steps=60)


def fresh(folder: Path) -> tuple[Any, Any]:
    """A new tiny model in `folder/model`: its tokenizer with the trained template, and the contract."""
    build_tiny(folder / "model", seed=0)
    return load(folder)


def load(folder: Path) -> tuple[Any, Any]:
    """The tokenizer in `folder/model` with the trained template, and the contract."""
    from tasks.training.loading import load_tokenizer

    config = load_config("tiny")
    return load_tokenizer(folder / "model", config), config.contract


def with_tokenizer(sft: Path, folder: Path, tokenizer: Any) -> Path:
    """A copy of a model with another tokenizer."""
    shutil.copytree(sft / "model", folder / "model")
    tokenizer.save_pretrained(str(folder / "model"))
    return folder


def sums(answer: str | None = None, count: int = 64) -> list[dict[str, str]]:
    """Problems `What is i + 3?`, with their own answers or all with one."""
    return [
        {"id": f"p{i}", "question": f"What is {i} + 3?", "answer": answer or str(i + 3), "source": "sum"}
        for i in range(count)
    ]


def grpo(sft: Path, work: Path, *overrides: str, rows: Sequence[dict[str, str]] = ()) -> StageContext:
    """The context of a GRPO stage that starts from the model in `sft`."""
    dataset = work / "dataset"
    dataset.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(list(rows or sums())), dataset / "train.parquet")
    (work / "out").mkdir()
    (work / "checkpoints").mkdir()
    return StageContext(load_config("tiny", overrides=[*QUICK, *overrides]), {"sft": sft, "dataset": dataset}, work)


def logged(ctx: StageContext, key: str = "reward") -> list[float]:
    """The values of a metric, a row a step."""
    rows = [json.loads(line) for line in ctx.metrics_path.read_text(encoding="utf-8").splitlines()]
    return [row[key] for row in rows if key in row]
