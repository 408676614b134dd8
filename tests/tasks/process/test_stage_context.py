"""What a stage sees: metrics, progress, stopping, the spec file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tasks.errors import Interrupted
from tasks.process.context import StageContext, StageSpec, last_activity, read_progress, write_spec
from tasks.process.metrics import append_metric, read_metrics


@pytest.fixture
def ctx(tmp_path: Path) -> StageContext:
    return StageContext(config=None, inputs={}, work_dir=tmp_path)


def test_metric_rows(ctx: StageContext) -> None:
    ctx.metric(1, {"loss": 0.5, "lr": np.float32(0.25), "name": "ä"})
    ctx.metric(2, {"loss": float("nan"), "grad_norm": float("inf"), "rates": [0.5, float("-inf")], "kl": None})
    assert ctx.metrics_path.read_text().splitlines() == [
        '{"loss": 0.5, "lr": 0.25, "name": "ä", "step": 1}',
        '{"loss": null, "grad_norm": null, "rates": [0.5, null], "kl": null, "step": 2, '
        '"nonfinite": ["grad_norm", "loss", "rates"]}',
    ]


def test_a_torn_line_of_a_killed_attempt_spoils_no_other(ctx: StageContext) -> None:
    ctx.metric(1, {"loss": 1})
    with open(ctx.metrics_path, "a") as file:
        file.write('{"step": 2, "lo')
    ctx.metric(2, {"loss": 2})
    assert [(row["step"], row["loss"]) for row in read_metrics(ctx.metrics_path)] == [(1, 1), (2, 2)]


def test_truncation_at_the_resumed_step(ctx: StageContext) -> None:
    for step in (1, 2, 3, 4):
        ctx.metric(step, {"x": step * 10})
    ctx.truncate_metrics(2)
    ctx.metric(3, {"x": 31})
    assert [(row["step"], row["x"]) for row in read_metrics(ctx.metrics_path)] == [(1, 10), (2, 20), (3, 31)]


def test_truncation_without_a_file(ctx: StageContext) -> None:
    ctx.truncate_metrics(0)
    assert not ctx.metrics_path.exists()


@given(st.dictionaries(st.text(max_size=8), st.one_of(st.floats(), st.text(), st.integers(), st.none(), st.booleans())))
def test_every_row_is_one_line_of_strict_json(tmp_path_factory: pytest.TempPathFactory, values: dict) -> None:
    path = tmp_path_factory.mktemp("metrics") / "metrics.jsonl"
    append_metric(path, 7, values)
    append_metric(path, 8, values)

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    lines = path.read_bytes().split(b"\n")
    assert len(lines) == 3
    assert json.loads(lines[0], parse_constant=refuse)["step"] == 7
    assert [row["step"] for row in read_metrics(path)] == [7, 8]


def test_progress_is_throttled_but_never_loses_the_end(ctx: StageContext, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("tasks.process.context.time.monotonic", lambda: now[0])
    seen = []
    for done, at in [(1, 0.0), (2, 0.5), (3, 1.2), (4, 1.4), (10, 1.5)]:
        now[0] = at
        ctx.progress(done, 10, "steps")
        seen.append((read_progress(ctx.work_dir) or {})["done"])
    assert seen == [1, 1, 3, 3, 10]
    now[0] = 1.6
    ctx.progress(0, 5, "saving")
    progress = read_progress(ctx.work_dir) or {}
    assert (progress["done"], progress["total"], progress["label"]) == (0, 5, "saving")


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"done": 1, "total": "x", "label": "a"}', '{"done": 1, "total": 2}', "{"]
)
def test_a_damaged_progress_file_is_no_progress(ctx: StageContext, text: str) -> None:
    (ctx.work_dir / "progress.json").write_text(text)
    assert read_progress(ctx.work_dir) is None


def test_last_activity(ctx: StageContext) -> None:
    assert last_activity(ctx.work_dir) == 0
    ctx.metric(1, {})
    os.utime(ctx.metrics_path, (50, 50))
    assert last_activity(ctx.work_dir) == 50
    ctx.progress(1, 2)
    assert last_activity(ctx.work_dir) > 50


def test_a_stop_raises_at_once_and_again_when_swallowed(ctx: StageContext) -> None:
    with pytest.raises(Interrupted):
        ctx.request_stop()
    for call in (lambda: ctx.log("x"), lambda: ctx.metric(1, {}), lambda: ctx.progress(1, 2)):
        with pytest.raises(Interrupted):
            call()


def test_a_stage_that_saves_on_stop_is_only_told(ctx: StageContext) -> None:
    ctx.saves_on_stop = True
    assert not ctx.stop_requested()
    ctx.request_stop()
    ctx.request_stop()
    ctx.log("saving")
    assert ctx.stop_requested()


def test_resume_can_be_turned_off(tmp_path: Path) -> None:
    from tasks.process.checkpoints import mark_complete

    folder = tmp_path / "checkpoints" / "checkpoint-3"
    folder.mkdir(parents=True)
    (folder / "trainer_state.json").write_text("{}")
    mark_complete(folder)
    assert StageContext(None, {}, tmp_path).newest_checkpoint() == folder
    assert StageContext(None, {}, tmp_path, resume=False).newest_checkpoint() is None


def test_spec_file_round_trip_and_a_clean_start(tmp_path: Path) -> None:
    spec = StageSpec(stage="sft", fingerprint="ab" * 32, config={"seed": 1}, work_dir=tmp_path, attempt=2)
    for name in ("result.json", "error.json", "progress.json", "metrics.jsonl"):
        (tmp_path / name).write_text("{}")
    path = write_spec(spec)
    assert StageSpec.model_validate(json.loads(path.read_text())) == spec
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoints", "metrics.jsonl", "out", "spec.json"]
    with pytest.raises(ValidationError):
        StageSpec.model_validate({**spec.model_dump(), "stages": "sft"})
