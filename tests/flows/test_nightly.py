"""The nightly flow: its window, and the state in which a night ends."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from flows import nightly as module
from flows.retrain import Night
from pipeline_config.pipeline import PipelineConfig


class Bench:
    def __init__(self) -> None:
        self.night = Night("nothing_new", "nothing new since yesterday")
        self.told: list[tuple[str, str]] = []
        self.configs: list[PipelineConfig] = []
        self.forced: list[tuple[str, ...]] = []

    def run(self, **parameters: Any) -> Any:
        return module.nightly.fn(profile="tiny", **parameters)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = Bench()

    def retrain(config: PipelineConfig, choice: Any, *more: Any) -> Night:
        made.configs.append(config)
        made.forced.append(choice.force)
        return made.night

    monkeypatch.setattr(module, "retrain", retrain)
    monkeypatch.setattr(module, "get_run_logger", lambda: logging.getLogger("test"))
    monkeypatch.setattr(module, "announce", lambda kind, text, **facts: made.told.append((kind, text)))
    return made


@pytest.mark.parametrize(
    ("outcome", "name", "told"),
    [
        ("nothing_new", "NothingNew", []),
        ("promoted", "Promoted", [("promoted", "because")]),
        ("not_promoted", "NotPromoted", [("not-promoted", "because")]),
    ],
)
def test_how_a_night_ends(bench: Bench, outcome: Any, name: str, told: list[tuple[str, str]]) -> None:
    bench.night = Night(outcome, "because", "20261130-030000-abcdef")
    state = bench.run(force=["grpo"])
    assert (state.type.value, state.name, state.message) == ("COMPLETED", name, "because")
    assert bench.told == told and bench.forced == [("grpo",)]


def test_the_window_is_the_date_of_the_schedule(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A night that starts after midnight still trains on the day that it was scheduled for."""
    run = SimpleNamespace(expected_start_time=datetime(2026, 11, 30, 23, 59, tzinfo=UTC))
    context = SimpleNamespace(get=lambda: SimpleNamespace(flow_run=run))
    monkeypatch.setattr(module, "FlowRunContext", context)
    bench.run()
    bench.run(window="2026-W48")
    bench.run(data={"window": "monday"})
    assert [config.data.window for config in bench.configs] == ["2026-11-30", "2026-W48", "monday"]


def test_the_window_reaches_the_training_sources_only(bench: Bench) -> None:
    source = {"kind": "file", "url": "s3://bucket/{window}.jsonl", "columns": {"working": "w"}}
    bench.run(window="2026-11-30", data={"train": [source]})
    assert bench.configs[0].data.train[0].url == "s3://bucket/2026-11-30.jsonl"  # type: ignore[union-attr]


def test_a_night_that_is_too_late_is_skipped(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "too_late", lambda config: "started late")
    monkeypatch.setattr(module, "skipped", lambda reason: f"Skipped: {reason}")
    assert bench.run() == "Skipped: started late" and bench.configs == []
