"""The flat line, reproduced with the real trainer through the real GRPO stage: never silent, stopped by its name, checkpoint kept."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_config.loading import load_config
from tasks.errors import RunStopped
from tasks.models.tiny import build_tiny
from tasks.process.context import StageContext

pytest.importorskip("trl")

QUICK = [
    "grpo.max_steps=15",
    "grpo.per_device_train_batch_size=16",
    "grpo.max_completion_length=6",
    "grpo.save_steps=5",
]


@pytest.fixture(scope="module")
def never_stops(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What an SFT stage that taught nothing would leave: random weights."""
    folder = tmp_path_factory.mktemp("random")
    build_tiny(folder / "model", seed=0)
    return folder


@pytest.fixture(scope="module")
def without_tags(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that answers with a digit and ends its turn: no tag, as in the story."""
    import torch
    from transformers import AutoModelForCausalLM

    from tasks.contract.prompts import encode_prompt
    from tasks.training.loading import load_tokenizer

    folder = tmp_path_factory.mktemp("digits")
    build_tiny(folder / "model", seed=0)
    config = load_config("tiny")
    tokenizer = load_tokenizer(folder / "model", config)
    model = AutoModelForCausalLM.from_pretrained(str(folder / "model"), dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(60):
        number = step % 10
        prompt = encode_prompt(tokenizer, config.contract, f"What is {number} + 3?")
        reply = tokenizer(str(number), add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
        ids = torch.tensor([prompt + reply])
        labels = torch.tensor([[-100] * len(prompt) + reply])
        model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(str(folder / "model"))
    return folder


def grpo(sft: Path, work: Path, *overrides: str) -> StageContext:
    dataset = work / "dataset"
    dataset.mkdir(parents=True)
    rows = [{"id": f"p{i}", "question": f"What is {i} + 3?", "answer": str(i + 3), "source": "sum"} for i in range(64)]
    pq.write_table(pa.Table.from_pylist(rows), dataset / "train.parquet")
    (work / "out").mkdir()
    (work / "checkpoints").mkdir()
    return StageContext(load_config("tiny", overrides=[*QUICK, *overrides]), {"sft": sft, "dataset": dataset}, work)


def rewards_logged(ctx: StageContext) -> list[float]:
    rows = [json.loads(line) for line in ctx.metrics_path.read_text(encoding="utf-8").splitlines()]
    return [row["reward"] for row in rows]


def test_tags_that_are_never_emitted(without_tags: Path, tmp_path: Path) -> None:
    from tasks.grpo.entry import run

    ctx = grpo(without_tags, tmp_path)
    with pytest.raises(RunStopped) as caught:
        run(ctx)
    assert set(rewards_logged(ctx)) == {0.0}  # the flat line
    assert caught.value.cause == "extraction_failed"
    assert len(rewards_logged(ctx)) < 10
    assert ctx.newest_checkpoint() is not None


def test_a_model_that_never_stops(never_stops: Path, tmp_path: Path) -> None:
    from tasks.grpo.entry import run

    ctx = grpo(never_stops, tmp_path)
    with pytest.raises(RunStopped) as caught:
        run(ctx)
    assert set(rewards_logged(ctx)) == {0.0}
    assert caught.value.cause == "truncation_spiral"


def test_a_reward_that_pays_everything_alike(
    without_tags: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks.grpo.entry import run

    (tmp_path / "flat_reward.py").write_text("def flat(completions, **kwargs):\n    return [-2.0] * len(completions)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    ctx = grpo(
        without_tags,
        tmp_path / "work",
        "grpo.rewards.preset=null",
        'grpo.rewards.functions=[{path: "flat_reward:flat"}]',
    )
    with pytest.raises(RunStopped) as caught:
        run(ctx)
    assert set(rewards_logged(ctx)) == {-2.0}
    assert caught.value.cause == "extraction_failed"
