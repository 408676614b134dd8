"""Windows, checkpoints and dead groups, by hand; and the sample of rollouts that is kept."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline_config.training import GRPOSettings
from tasks.grpo import rollouts
from tasks.grpo.arithmetic import aligned_save_steps, plain_head, steps_per_window
from tasks.grpo.rollouts import KEPT_PER_CALL, logging_rollouts, text_of


@pytest.mark.parametrize(
    ("more", "plain"),
    [
        ({}, True),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, True),
        ({"rope_parameters": {"rope_type": "longrope", "long_factor": [1.0]}}, False),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, False),
        ({"model_type": "gemma2"}, False),
        ({"auto_map": {"AutoModelForCausalLM": "modeling.Own"}}, False),
    ],
)
def test_models_whose_logits_are_the_head_of_their_states(more: dict[str, object], plain: bool) -> None:
    assert plain_head(SimpleNamespace(**{"model_type": "phi3", **more})) is plain


@pytest.mark.parametrize(
    ("save_steps", "iterations", "expected"),
    [(20, 1, 20), (20, 4, 20), (20, 3, 21), (1, 4, 4), (5, 5, 5), (6, 5, 10), (1, 1, 1)],
)
def test_checkpoints_fall_between_windows(save_steps: int, iterations: int, expected: int) -> None:
    settings = GRPOSettings(save_steps=save_steps, num_iterations=iterations)
    assert steps_per_window(settings) == iterations
    assert aligned_save_steps(settings) == expected


@given(st.integers(1, 10_000), st.integers(1, 64))
def test_alignment_rounds_up_by_less_than_a_window(save_steps: int, iterations: int) -> None:
    found = aligned_save_steps(GRPOSettings(save_steps=save_steps, num_iterations=iterations))
    assert found % iterations == 0 and save_steps <= found < save_steps + iterations


def test_accumulation_does_not_change_the_window() -> None:
    """A window is sampled for one optimizer step, however many forward passes that takes."""
    settings = GRPOSettings(per_device_train_batch_size=4, gradient_accumulation_steps=8, num_iterations=2)
    assert steps_per_window(settings) == 2


# -- rollouts -----------------------------------------------------------------------------------------------------


def reward(prompts: list[Any], completions: list[Any], **columns: Any) -> list[Any]:
    """Counts the letters."""
    return [float(len(text_of(completion))) for completion in completions]


def rows_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_the_first_completions_of_every_batch_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    logged = logging_rollouts(reward, path)
    assert logged.__name__ == "reward"  # TRL names the metric after it
    prompts = [[{"role": "system", "content": "s"}, {"role": "user", "content": f"q{i}"}] for i in range(6)]
    completions = [[{"role": "assistant", "content": "é" * i}] for i in range(6)]
    state = SimpleNamespace(global_step=3)
    values = logged(prompts=prompts, completions=completions, answer=list("abcdef"), trainer_state=state)
    assert values == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    rows = rows_in(path)
    assert len(rows) == KEPT_PER_CALL
    assert rows[2] == {"step": 3, "question": "q2", "answer": "c", "completion": "éé", "reward": 2.0}
    logged(prompts=["plain"], completions=["text"])
    assert rows_in(path)[-1] == {"step": None, "question": "plain", "answer": None, "completion": "text", "reward": 4.0}


def test_rewards_that_json_has_no_word_for(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    odd = [float("nan"), None, SimpleNamespace(tolist=lambda: 0.5)]
    logging_rollouts(lambda **_: odd, path)(prompts=["a"] * 3, completions=["b"] * 3)
    assert [row["reward"] for row in rows_in(path)] == [None, None, 0.5]


def test_the_file_stops_growing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollouts, "MAX_BYTES", 500)
    path = tmp_path / "rollouts.jsonl"
    logged = logging_rollouts(reward, path)
    for _ in range(50):
        assert logged(prompts=["q"], completions=["c" * 50]) == [50.0]
    assert 500 <= path.stat().st_size < 700
