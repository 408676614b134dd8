"""Remedies with TRL's own trainer: a run that meets NaN goes back, trains on more slowly, and says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tasks.errors import NonFinite, RunStopped, StartAgain
from tasks.grpo.remedied import load_steps
from tasks.process.metrics import read_metrics

pytest.importorskip("trl")

REWARD = """
def by_length(completions, **kwargs):
    return [float(len(c[-1]["content"])) for c in completions]
"""
SETTINGS = [
    "grpo.num_generations=4",
    "grpo.per_device_train_batch_size=8",
    "grpo.max_steps=5",
    "grpo.save_steps=1",
    "grpo.checkpoint_choice.enabled=false",
    "grpo.max_completion_length=6",
    "grpo.learning_rate=2e-5",
    "grpo.warmup_steps=0",
    "grpo.rewards.preset=null",
    'grpo.rewards.functions=[{path: "reward_by_length:by_length"}]',
]
RunGRPO = Callable[..., Any]


@pytest.fixture
def run(run_grpo: RunGRPO, tmp_path: Path) -> RunGRPO:
    (tmp_path / "reward_by_length.py").write_text(REWARD)
    return partial(run_grpo, SETTINGS)


@pytest.fixture
def nan_at_step_4(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Put NaN into one gradient at step 4, as many times as `times` says."""
    import torch

    from tasks.grpo import entry
    from tasks.grpo.guards import OwnLearningRate

    left = {"times": 1}

    class Planted(OwnLearningRate):
        hook: Any = None

        def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            if state.global_step == 3 and left["times"]:
                left["times"] -= 1
                self.hook = next(model.parameters()).register_hook(lambda grad: grad * torch.nan)

        def on_step_end(self, *_: Any, **__: Any) -> None:
            if self.hook is not None:
                self.hook.remove()

    monkeypatch.setattr(entry, "OwnLearningRate", Planted)
    return left


def test_nan_back_to_the_last_good_checkpoint_with_half_the_learning_rate(
    run: RunGRPO, nan_at_step_4: dict[str, int], tmp_path: Path
) -> None:
    with pytest.raises(StartAgain, match=r"remedy 1 at step 4 \(late_nan\): from step 3, learning_rate 2e-05 -> 1e-05"):
        run("nan")
    (step,) = load_steps(tmp_path / "nan")
    assert (step.rung, step.onset, step.resumed_from) == ("slower", 4, 3)
    ctx, result = run("nan")  # what the next process of the stage does
    rates = {row["step"]: row["learning_rate"] for row in read_metrics(ctx.metrics_path)}
    assert rates == {1: 2e-5, 2: 2e-5, 3: 2e-5, 4: 1e-5, 5: 1e-5}
    (shown,) = result.metrics["remedies"]
    assert shown["because"] == "late_nan" and shown["changes"] == {"learning_rate": [2e-5, 1e-5]}
    assert result.effective_config["arguments"]["learning_rate"] == 1e-5
    assert any(note.startswith("remedy 1 at step 4 (late_nan)") for note in result.notes)
    assert json.loads((ctx.out / "remedies.json").read_text())["steps"][0]["rung"] == "slower"
    before = read_metrics(ctx.out / "before-remedy-1.jsonl")
    assert before[-1]["step"] == 4 and "grad_norm" in before[-1]["nonfinite"]


def test_nan_again_and_again_ends_by_name(run: RunGRPO, nan_at_step_4: dict[str, int], tmp_path: Path) -> None:
    nan_at_step_4["times"] = 9
    rungs = []
    for _ in range(3):
        with pytest.raises(StartAgain):
            run("nan")
        rungs = [step.rung for step in load_steps(tmp_path / "nan")]
    assert rungs == ["slower", "beta", "sft"]
    with pytest.raises(RunStopped, match=r"remedies already tried: at step 4 \(late_nan\): from step 3") as stopped:
        run("nan")
    assert stopped.value.cause == "late_nan" and "the last good checkpoint is" in stopped.value.fix
    assert (tmp_path / "nan" / "checkpoints" / "checkpoint-3").is_dir()


def test_suggest_names_the_remedy_and_stops(run: RunGRPO, nan_at_step_4: dict[str, int], tmp_path: Path) -> None:
    with pytest.raises(
        RunStopped, match=r"suggested \(grpo\.remedies=act would do it\): .*learning_rate 2e-05 -> 1e-05"
    ):
        run("nan", "grpo.remedies=suggest")
    assert load_steps(tmp_path / "nan") == []


def test_weights_that_break_the_next_rollout_before_anything_is_logged(
    run: RunGRPO, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The gradient was finite, the update was not; its checkpoint is passed over."""
    import torch

    from tasks.grpo import entry
    from tasks.grpo.guards import OwnLearningRate

    class Planted(OwnLearningRate):
        def on_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            if state.global_step == 2:
                next(model.parameters()).data.fill_(torch.nan)

    monkeypatch.setattr(entry, "OwnLearningRate", Planted)
    with pytest.raises(StartAgain, match=r"at step 3 \(late_nan\): from step 2"):
        run("nan")


def test_without_a_watchdog_nan_is_an_error(run: RunGRPO, nan_at_step_4: dict[str, int], tmp_path: Path) -> None:
    with pytest.raises((NonFinite, RuntimeError)):
        run("nan", "grpo.watchdog=off")
    assert load_steps(tmp_path / "nan") == []
