"""Dynamic sampling inside TRL's own trainer: what is dropped and refilled, what is logged, and that a resumed run goes on exactly."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tasks.errors import Interrupted
from tasks.grpo.ledger import read_groups
from tasks.process.context import StageContext
from tasks.process.metrics import read_metrics

pytest.importorskip("trl")

RunGRPO = Callable[..., Any]

# Odd questions are dead: whatever is written gets the same. Even ones are paid by length, which random weights vary.
REWARD = """
def by_length(completions, answer, **kwargs):
    return [float(len(c[-1]["content"])) if int(a) % 2 == 0 else 0.5 for c, a in zip(completions, answer)]
"""
SETTINGS = [
    "grpo.num_generations=4",
    "grpo.per_device_train_batch_size=8",
    "grpo.gradient_accumulation_steps=2",
    "grpo.num_iterations=2",
    "grpo.max_steps=6",
    "grpo.save_steps=2",
    "grpo.checkpoint_choice.enabled=false",
    "grpo.max_completion_length=6",
    "grpo.watchdog=off",
    "grpo.rewards.preset=null",
    'grpo.rewards.functions=[{path: "reward_by_length:by_length"}]',
]


@pytest.fixture
def run(run_grpo: RunGRPO, tmp_path: Path) -> RunGRPO:
    (tmp_path / "reward_by_length.py").write_text(REWARD)
    return partial(run_grpo, SETTINGS)


def test_dead_groups_are_refilled_counted_and_logged(run: RunGRPO) -> None:
    ctx, result = run("on", "grpo.max_refills=3", "grpo.eval_steps=4", "grpo.eval_problems=8")
    tried = read_groups(ctx.out / "groups.jsonl")
    assert {row["step"] for row in tried} == {1, 3, 5}  # six steps of two iterations: three windows
    for step in (1, 3, 5):
        window = [row for row in tried if row["step"] == step]
        first = [row for row in window if row["round"] == 0]
        assert len(first) == 4 and sum(row["used"] for row in window) == 4  # 8 x 2 completions in groups of 4
        assert len({row["prompt_id"] for row in window}) == len(window)  # no prompt twice in a step
        for row in window:
            odd = int(row["prompt_id"][1:]) % 2 == 1
            assert not odd or row["kind"] != "live"
            assert row["used"] or row["kind"] != "live"
        assert len([row for row in window if row["round"] == 1]) == sum(row["kind"] != "live" for row in first)
    logged = [row for row in read_metrics(ctx.metrics_path) if "reward" in row]
    for row in logged[::2]:
        window = [r for r in tried if r["step"] == row["step"]]
        first = [r for r in window if r["round"] == 0]
        assert row["groups/live"] == row["refill/live_before"] == sum(r["kind"] == "live" for r in first) / 4
        assert row["refill/live_after"] == sum(r["used"] and r["kind"] == "live" for r in window) / 4
        assert row["frac_reward_zero_std"] == pytest.approx(
            1 - row["refill/live_after"]
        )  # of the batch that is trained on
        assert row["refill/extra_rollouts"] == 4 * (len(window) - 4) == 4 * row["refill/tried"]
        paid = [value for r in first for value in r["rewards"]]
        assert row["reward"] == pytest.approx(sum(paid) / 16, abs=1e-4)  # of the first draw
    totals = result.metrics["groups"]
    assert totals["groups_tried"] == len(tried) and totals["groups_used"] == 12
    assert totals["extra_rollouts"] == 4 * (len(tried) - 12) > 0
    assert [row["step"] for row in read_metrics(ctx.metrics_path) if "eval_outcomes/right" in row] == [4, 6]
    questions = [json.loads(line)["step"] for line in (ctx.out / "rollouts.jsonl").read_text().splitlines()]
    assert max(questions) < 6  # held-out completions are not shown as rollouts


@pytest.mark.parametrize(
    ("settings", "rows", "step"),
    [
        # Asked to stop in the middle of the second window of two steps: its end is waited for.
        (["grpo.max_refills=2"], 3, 4),
        # Five steps are a pass over the prompts: the second pass has an order of its own.
        (["grpo.num_iterations=1", "grpo.per_device_train_batch_size=16", "grpo.max_steps=7"], 5, 6),
        # Stopped at the very end: nothing is left to train.
        (["grpo.max_steps=2", "grpo.num_iterations=1"], 1, 2),
    ],
)
def test_a_resumed_run_goes_on_exactly(
    run: RunGRPO, monkeypatch: pytest.MonkeyPatch, settings: list[str], rows: int, step: int
) -> None:
    straight, _ = run("straight", *settings)
    with monkeypatch.context() as patched:
        patched.setattr(StageContext, "stop_requested", lambda ctx: len(read_metrics(ctx.metrics_path)) >= rows)
        with pytest.raises(Interrupted):
            run("stopped", *settings)
    resumed, result = run("stopped", *settings)
    assert result.metrics["resumed_from_step"] == step
    for name in ("model/model.safetensors", "groups.jsonl", "ledger.jsonl"):
        assert (resumed.out / name).read_bytes() == (straight.out / name).read_bytes(), name


def test_off_is_trls_own_training_with_a_ledger(run: RunGRPO, monkeypatch: pytest.MonkeyPatch) -> None:
    import trl

    from tasks.grpo import chunked, entry

    # In chunks the sums are rounded elsewhere: test_chunked.py compares those.
    monkeypatch.setattr(chunked.ChunkedTrainer, "_head", lambda self, model: None)
    ours, result = run("off")

    def plain(*args: Any, grader: Any, groups_file: Any, rule: str, max_refills: int, **kwargs: Any) -> Any:
        return trl.GRPOTrainer(*args, **kwargs)

    monkeypatch.setattr(entry, "LedgerTrainer", plain)
    theirs, without = run("trl")
    name = "model/model.safetensors"
    assert (ours.out / name).read_bytes() == (theirs.out / name).read_bytes()
    assert result.metrics["groups"]["groups_tried"] == 12 and without.metrics["groups"]["groups_tried"] == 0
    assert result.metrics["groups"]["extra_rollouts"] == 0
