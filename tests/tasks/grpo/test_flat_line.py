"""The flat line, reproduced with the real trainer through the real GRPO stage: never silent, stopped by its name, checkpoint kept.

The preflight names the same faults before a chain comes so far (`tests/tasks/preflight/test_preflight_stage.py`), and the gate
those that only a trained model shows: tags never emitted, no end (`tests/tasks/format_gate/test_measure.py`).
"""

from __future__ import annotations

from pathlib import Path

import flat_lines
import pytest
from flat_lines import BARE_TEMPLATE, TAGGED, grpo, logged, sums, with_tokenizer

from tasks.errors import RunStopped
from tasks.models.tiny import build_tiny
from tasks.process.context import StageContext
from tasks.training import loading

pytest.importorskip("trl")


@pytest.fixture(scope="module")
def never_stops(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What an SFT stage that taught nothing would leave: random weights."""
    folder = tmp_path_factory.mktemp("random")
    build_tiny(folder / "model", seed=0)
    return folder


@pytest.fixture(scope="module")
def without_tags(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return flat_lines.without_tags(tmp_path_factory.mktemp("digits"))


@pytest.fixture(scope="module")
def with_tags(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return flat_lines.with_tags(tmp_path_factory.mktemp("tags"))


def stopped(ctx: StageContext) -> RunStopped:
    """Run the stage; it must be stopped within ten steps, with a checkpoint."""
    from tasks.grpo.entry import run

    with pytest.raises(RunStopped) as caught:
        run(ctx)
    assert len(logged(ctx)) < 10
    assert ctx.newest_checkpoint() is not None
    return caught.value


def test_tags_that_are_never_emitted(without_tags: Path, tmp_path: Path) -> None:
    ctx = grpo(without_tags, tmp_path)
    assert stopped(ctx).cause == "extraction_failed"
    assert set(logged(ctx)) == {0.0}  # the flat line


def test_a_model_that_never_stops(never_stops: Path, tmp_path: Path) -> None:
    ctx = grpo(never_stops, tmp_path)
    assert stopped(ctx).cause == "truncation_spiral"
    assert set(logged(ctx)) == {0.0}


def test_a_reward_that_pays_everything_alike(
    without_tags: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "flat_reward.py").write_text("def flat(completions, **kwargs):\n    return [-2.0] * len(completions)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    functions = ["grpo.rewards.preset=null", 'grpo.rewards.functions=[{path: "flat_reward:flat"}]']
    ctx = grpo(without_tags, tmp_path / "work", *functions)
    assert stopped(ctx).cause == "extraction_failed"
    assert set(logged(ctx)) == {-2.0}


def test_tags_registered_as_special_tokens(with_tags: Path, tmp_path: Path) -> None:
    # The model writes every tag, and the trainer's decode takes each away.
    tokenizer, contract = flat_lines.load(with_tags)
    tokenizer.add_special_tokens({"additional_special_tokens": list(contract.tags)})
    ctx = grpo(with_tokenizer(with_tags, tmp_path / "sft", tokenizer), tmp_path / "work", *TAGGED, rows=sums("1234"))
    error = stopped(ctx)
    assert error.cause == "extraction_failed" and "registered as special tokens" in error.fix
    assert set(logged(ctx)) == {0.0}


def test_a_template_without_a_generation_prompt(
    with_tags: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in the story: nothing opens the model's turn, so that it goes on as the user would.
    tokenizer, _ = flat_lines.load(with_tags)
    tokenizer.chat_template = BARE_TEMPLATE
    monkeypatch.setattr(loading, "trained_template", lambda template, contract: template)
    ctx = grpo(with_tokenizer(with_tags, tmp_path / "sft", tokenizer), tmp_path / "work", *TAGGED, rows=sums("1234"))
    assert stopped(ctx).cause == "extraction_failed"
    assert max(logged(ctx)) < 0.05


def test_zero_golds(with_tags: Path, tmp_path: Path) -> None:
    ctx = grpo(with_tags, tmp_path, *TAGGED, rows=sums("0"))
    error = stopped(ctx)
    assert error.cause == "all_wrong" and "gold" in error.fix
    assert max(logged(ctx)) <= 0.25  # what the format alone is worth


def test_grouped_golds_under_the_tutorials_rewards(with_tags: Path, tmp_path: Path) -> None:
    ctx = grpo(with_tags, tmp_path, *TAGGED, "grpo.rewards.preset=self_llm", rows=sums("1,234"))
    error = stopped(ctx)
    assert error.cause == "extraction_failed" and "right and wrong answers are there" in error.message
    assert 0.2 < logged(ctx, "outcomes/right")[0] < 0.8  # half of the answers are right, and all are paid alike


def test_grouped_golds_under_the_default_reward(with_tags: Path, tmp_path: Path) -> None:
    from tasks.grpo.entry import run

    ctx = grpo(with_tags, tmp_path, *TAGGED, "grpo.max_steps=2", rows=sums("1,234"))
    run(ctx)
    assert min(logged(ctx)) > 0.4 and min(logged(ctx, "reward_std")) > 0.2
