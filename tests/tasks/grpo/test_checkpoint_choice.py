"""The choice inside the real stage: what is measured, and whose weights end up in the artifact."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")
torch = pytest.importorskip("torch")

from safetensors.torch import load_file  # noqa: E402

from tasks.errors import Interrupted, ModelError  # noqa: E402
from tasks.grpo import checkpoint_choice  # noqa: E402
from tasks.grpo.choice import Candidate  # noqa: E402

RunGRPO = Callable[..., Any]

REWARD = """
def by_length(completions, **kwargs):
    return [float(len(c[-1]["content"])) for c in completions]
"""
SETTINGS = [
    "grpo.num_generations=4",
    "grpo.per_device_train_batch_size=8",
    "grpo.max_steps=3",
    "grpo.save_steps=1",
    "grpo.learning_rate=1e-2",
    "grpo.warmup_steps=0",
    "grpo.max_completion_length=4",
    "grpo.watchdog=off",
    "grpo.rewards.preset=null",
    'grpo.rewards.functions=[{path: "reward_for_choice:by_length"}]',
    "grpo.checkpoint_choice.samples=2",
]


@pytest.fixture
def run(run_grpo: RunGRPO, tmp_path: Path) -> RunGRPO:
    (tmp_path / "reward_for_choice.py").write_text(REWARD)
    return partial(run_grpo, SETTINGS)


def test_candidates_are_measured_and_the_last_is_kept_without_a_better_one(run: RunGRPO) -> None:
    ctx, result = run("plain")
    choice = result.metrics["checkpoint_choice"]
    assert choice == json.loads((ctx.out / "checkpoints.json").read_text())
    # Random weights answer nothing rightly, at any step.
    assert [(c["step"], c["rate"], c["n"], c["samples"]) for c in choice["candidates"]] == [
        (1, 0.0, 8, 2), (2, 0.0, 8, 2), (3, 0.0, 8, 2)
    ]  # fmt: skip
    assert (choice["chosen"], choice["kept_last"]) == (3, True) and result.notes == []
    assert same_weights(ctx.out / "model", ctx.checkpoints / "checkpoint-3", "model.safetensors")


@pytest.mark.parametrize("method", ["full", "lora"])
def test_the_chosen_weights_are_saved(run: RunGRPO, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """Measurements that say that training lost everything after its first step."""
    seen: list[int] = []

    def measured(ctx: Any, policy: Any, tokenizer: Any, settings: Any, rows: list[Any], step: int) -> Candidate:
        seen.append(step)
        return Candidate(step, (float(step == 1),) * len(rows))

    monkeypatch.setattr(checkpoint_choice, "_measure", measured)
    ctx, result = run(method, f"grpo.method={method}")
    assert seen == [1, 2, 3]
    choice = result.metrics["checkpoint_choice"]
    assert (choice["chosen"], choice["kept_last"], choice["last"]) == (1, False, 3)
    assert result.notes == [choice["reason"]] and "step 1 was kept instead of the last step 3" in choice["reason"]
    name, folder = ("model.safetensors", "model") if method == "full" else ("adapter_model.safetensors", "adapter")
    assert same_weights(ctx.out / folder, ctx.checkpoints / "checkpoint-1", name)
    assert not same_weights(ctx.out / folder, ctx.checkpoints / "checkpoint-3", name)


@pytest.mark.parametrize("error", [KeyError("no such weight"), ModelError("a sharded checkpoint")])
def test_a_failed_measurement_costs_the_choice_and_not_the_training(
    run: RunGRPO, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def damaged(policy: Any, checkpoint: Path) -> None:
        for parameter in policy.parameters():
            parameter.data.zero_()
        raise error

    monkeypatch.setattr(checkpoint_choice, "load_weights", damaged)
    ctx, result = run("damaged")
    choice = result.metrics["checkpoint_choice"]
    assert choice["kept_last"] and f"measuring failed with {type(error).__name__}" in choice["reason"]
    assert same_weights(ctx.out / "model", ctx.checkpoints / "checkpoint-3", "model.safetensors")


def test_a_stop_during_the_choice_ends_the_stage_and_the_next_attempt_makes_it(
    run: RunGRPO, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = checkpoint_choice._measure

    def stopping(ctx: Any, *arguments: Any) -> Candidate:
        ctx.request_stop()
        return measure(ctx, *arguments)

    monkeypatch.setattr(checkpoint_choice, "_measure", stopping)
    with pytest.raises(Interrupted):
        run("stopped")
    monkeypatch.setattr(checkpoint_choice, "_measure", measure)
    _, result = run("stopped")
    assert len(result.metrics["checkpoint_choice"]["candidates"]) == 3


def test_off(run: RunGRPO) -> None:
    ctx, result = run("off", "grpo.checkpoint_choice.enabled=false", "grpo.max_steps=1")
    assert result.metrics["checkpoint_choice"] is None and not (ctx.out / "checkpoints.json").exists()


def same_weights(folder: Path, checkpoint: Path, name: str) -> bool:
    saved, kept = load_file(folder / name), load_file(checkpoint / name)
    return all(torch.equal(saved[key], kept[key].to(saved[key].dtype)) for key in saved.keys() & kept.keys()) and bool(
        saved.keys() & kept.keys()
    )
