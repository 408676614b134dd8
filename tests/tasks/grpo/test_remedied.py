"""A remedy as the work directory holds it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline_config.loading import load_config
from tasks.errors import StartAgain, StoreError
from tasks.grpo.remedied import good_checkpoint, load_steps, publish, take
from tasks.grpo.remedies import Step
from tasks.process.checkpoints import mark_complete
from tasks.process.context import StageContext


@pytest.fixture
def ctx(tmp_path: Path) -> StageContext:
    """A run at step 9 with complete checkpoints at 3 and 6, and half of one at 9."""
    for step in (3, 6, 9):
        folder = tmp_path / "checkpoints" / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        (folder / "trainer_state.json").write_text("{}")
        if step < 9:
            mark_complete(folder)
    (tmp_path / "out").mkdir()
    (tmp_path / "metrics.jsonl").write_text(
        "".join(json.dumps({"step": i, "reward": 1.0}) + "\n" for i in range(1, 10))
    )
    return StageContext(load_config("tiny"), {}, tmp_path)


def step(**more: object) -> Step:
    return Step(**{"rung": "slower", "because": "late_nan", "headline": "NaN", "at_step": 9, "onset": 6, **more})  # type: ignore[arg-type]


def left(ctx: StageContext) -> list[str]:
    return sorted(path.name for path in ctx.checkpoints.iterdir())


def test_the_newest_complete_checkpoint_up_to_a_step(ctx: StageContext) -> None:
    found = [good_checkpoint(ctx, limit) for limit in (9, 5, 2)]
    assert [path.name if path else None for path in found] == ["checkpoint-6", "checkpoint-3", None]


def test_back_to_the_last_good_checkpoint(ctx: StageContext) -> None:
    again = take(ctx, [], step(start="good", changes={"learning_rate": [2e-4, 1e-4]}))
    assert isinstance(again, StartAgain) and again.cause == "late_nan" and "from step 3" in again.message
    assert left(ctx) == ["checkpoint-3"]  # the row of step 6 was bad: the checkpoint of step 6 may hold what made it so
    (done,) = load_steps(ctx.work_dir)
    assert done.resumed_from == 3 and done.changes == {"learning_rate": [2e-4, 1e-4]}
    take(ctx, [done], step(at_step=8, start="sft"))
    assert left(ctx) == []
    assert [s.resumed_from for s in load_steps(ctx.work_dir)] == [3, 0]
    shown = publish(ctx, load_steps(ctx.work_dir))
    assert [item["set_aside"] for item in shown] == [0, 0]
    assert {path.name for path in ctx.out.iterdir()} == {
        "remedies.json",
        "before-remedy-1.jsonl",
        "before-remedy-2.jsonl",
    }
    assert len((ctx.out / "before-remedy-1.jsonl").read_text().splitlines()) == 9


def test_on_from_here(ctx: StageContext) -> None:
    take(ctx, [], step(start="here", set_aside=("a",)))
    assert left(ctx) == ["checkpoint-3", "checkpoint-6"]  # 9 was never whole
    (done,) = load_steps(ctx.work_dir)
    assert done.set_aside == ("a",) and done.resumed_from == 6


def test_a_run_without_remedies_leaves_nothing(ctx: StageContext) -> None:
    assert load_steps(ctx.work_dir) == [] and publish(ctx, []) == [] and not any(ctx.out.iterdir())


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"steps": 1}', '{"steps": [{"rung": 1}]}', '{"steps": [1]}'])
def test_a_damaged_list_of_remedies_is_not_taken_for_none(tmp_path: Path, text: str) -> None:
    assert load_steps(tmp_path) == []
    (tmp_path / "remedies.json").write_text(text)
    with pytest.raises(StoreError, match=r"remedies\.json: the list of remedies that this run took is damaged"):
        load_steps(tmp_path)
