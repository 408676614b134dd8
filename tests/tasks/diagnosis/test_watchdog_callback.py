"""The watchdog as the Trainer sees it."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from tasks.errors import RunStopped

pytest.importorskip("transformers")

from transformers import TrainerControl

from tasks.diagnosis.callback import STARVING, Decision, WatchdogCallback
from tasks.diagnosis.doctor import Diagnosis


def feed(dog: WatchdogCallback, logs: list[dict[str, Any]], first: int = 1) -> list[tuple[int, TrainerControl]]:
    """Log rows one after another until the watchdog stops the run."""
    seen = []
    for step, row in enumerate(logs, first):
        control = TrainerControl()
        dog.on_log(SimpleNamespace(), SimpleNamespace(global_step=step, log_history=[]), control, dict(row))
        seen.append((step, control))
        if control.should_training_stop:
            break
    return seen


FLAT = {"reward": -2.0, "reward_std": 0.0, "frac_reward_zero_std": 1.0, "grad_norm": 0.0, "loss": 0.0}
GOOD = [
    {
        "reward": 0.5 + 0.02 * i + (i % 3) / 50,
        "reward_std": 0.4,
        "frac_reward_zero_std": 0.2,
        "grad_norm": 0.3,
        "entropy": 0.4,
        "kl": 0.01,
    }
    for i in range(30)
]


def test_stops_a_flat_run_in_seven_rows_with_a_checkpoint() -> None:
    dog = WatchdogCallback()
    seen = feed(dog, [FLAT] * 20)
    step, control = seen[-1]
    assert step == 7 and control.should_save  # five rows to judge, three equal verdicts in a row
    with pytest.raises(RunStopped) as error:
        dog.raise_if_stopped()
    assert error.value.cause == "extraction_failed" and error.value.fix


def test_a_healthy_run_is_left_alone() -> None:
    dog = WatchdogCallback()
    assert len(feed(dog, GOOD)) == 30
    assert dog.diagnosis is None and dog.latest is not None and dog.latest.verdict == "healthy"
    dog.raise_if_stopped()


def test_nan_stops_at_once_and_saves_nothing() -> None:
    dog = WatchdogCallback()
    seen = feed(
        dog, [*GOOD[:10], *({**GOOD[10], "grad_norm": math.nan, "kl": None, "entropy": None} for _ in range(5))]
    )
    step, control = seen[-1]
    assert step == 11 and not control.should_save and control.should_training_stop


def test_the_handler_decides_and_hears_a_verdict_once() -> None:
    heard: list[str] = []

    def decide(found: Diagnosis) -> Decision:
        heard.append(found.verdict)
        return "go_on"

    dog = WatchdogCallback(decide)
    assert len(feed(dog, [FLAT] * 20)) == 20
    assert heard == ["extraction_failed"] and dog.diagnosis is None


def test_the_handler_can_stop_without_a_checkpoint() -> None:
    dog = WatchdogCallback(lambda found: "stop")
    step, control = feed(dog, [FLAT] * 20)[-1]
    assert step == 7 and control.should_training_stop and not control.should_save


def test_most_groups_dead_is_told_to_a_handler_and_stops_nothing_by_itself() -> None:
    starving = [{**row, "reward": 0.5 + (i % 5) / 40, "frac_reward_zero_std": 0.75} for i, row in enumerate(GOOD)]
    for row in starving:
        row["outcomes/right"] = 0.5
    heard: list[str] = []

    def decide(found: Diagnosis) -> Decision:
        heard.append(f"{found.verdict}: {found.headline[:3]}")
        return "go_on"

    feed(WatchdogCallback(decide), starving)
    assert heard == [f"{STARVING}: 75%"]
    alone = WatchdogCallback()
    feed(alone, starving)
    assert alone.diagnosis is None


def test_within_a_generation_window_nothing_is_decided() -> None:
    assert feed(WatchdogCallback(window=4), [FLAT] * 20)[-1][0] == 16  # judged at 4, 8, 12, 16; three equal verdicts


def test_rows_before_a_remedy_are_forgotten() -> None:
    dog = WatchdogCallback(forget_before=6)
    history = [{**FLAT, "step": i} for i in range(1, 9)]
    dog.on_train_begin(SimpleNamespace(), SimpleNamespace(global_step=8, log_history=history), TrainerControl())
    assert [row["step"] for row in dog.rows] == [7, 8]


def test_evaluation_and_summary_rows_do_not_count() -> None:
    dog = WatchdogCallback()
    logs: list[dict[str, Any]] = []
    for _ in range(4):
        logs += [FLAT, {"eval_accuracy": 0.4}]
    feed(dog, [*logs, {"train_runtime": 9.0, "train_loss": 0.0}])
    assert dog.diagnosis is None and len(dog.rows) == 8


def test_every_second_row() -> None:
    dog = WatchdogCallback(every=2, persistence=2)
    assert feed(dog, [FLAT] * 20)[-1][0] == 8


def test_a_resumed_run_brings_its_history() -> None:
    dog = WatchdogCallback()
    history = [{**FLAT, "step": i} for i in range(1, 7)]
    dog.on_train_begin(SimpleNamespace(), SimpleNamespace(global_step=6, log_history=history), TrainerControl())
    assert feed(dog, [FLAT] * 5, first=7)[-1][0] == 9
