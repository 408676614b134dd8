"""Which runs come too late, and how they end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from flows import pipeline
from pipeline_config.loading import load_config

LIMIT = load_config("tiny", overrides=["run.max_lateness_s=3600"])


@pytest.mark.parametrize(
    ("late_s", "changed", "skipped"),
    [
        (3500, {}, False),
        (3700, {}, True),
        (3700, {"auto_scheduled": False}, False),  # started by hand
        (3700, {"run_count": 2}, False),  # retried by hand
        (3700, {"expected_start_time": None}, False),
    ],
)
def test_only_a_run_of_a_schedule_can_be_too_late(
    late_s: float, changed: dict[str, Any], skipped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = {"auto_scheduled": True, "run_count": 1, "expected_start_time": datetime.now(UTC) - timedelta(seconds=late_s)}
    context = SimpleNamespace(flow_run=SimpleNamespace(**{**run, **changed}))
    monkeypatch.setattr(pipeline, "FlowRunContext", SimpleNamespace(get=lambda: context))
    reason = pipeline.too_late(LIMIT)
    assert bool(reason) == skipped
    if skipped:
        assert reason == "started 3700 s after its scheduled time, more than run.max_lateness_s = 3600"
    assert pipeline.too_late(load_config("tiny")) == ""


def test_outside_a_flow_run_nothing_is_late() -> None:
    assert pipeline.too_late(LIMIT) == ""


def test_a_run_that_is_too_late_ends_as_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Any] = []
    monkeypatch.setattr(pipeline, "too_late", lambda config: "started late")
    monkeypatch.setattr(pipeline, "get_run_logger", lambda: SimpleNamespace(warning=lambda *text: said.append(text)))
    state = pipeline.grpo_pipeline.fn(profile="tiny")
    assert (state.type.value, state.name, state.message) == ("COMPLETED", "Skipped", "started late")
    assert said == [("skipped: %s", "started late")]
