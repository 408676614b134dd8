"""What the watchdog makes of a verdict: a remedy, a suggestion, a stop, or nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from pipeline_config.loading import load_config
from tasks.diagnosis.callback import STARVING
from tasks.diagnosis.doctor import Diagnosis
from tasks.errors import NonFinite, RunStopped, StartAgain
from tasks.grpo.guards import Watchdog, situation
from tasks.grpo.remedied import load_steps
from tasks.grpo.remedies import Situation, Step
from tasks.process.context import StageContext

AT = Situation(at_step=20, prompts=100, live=0.2)


def watchdog(folder: Path, *overrides: str, steps: list[Step] | None = None) -> Watchdog:
    ctx = StageContext(load_config("tiny", overrides=list(overrides)), {}, folder)
    return Watchdog(ctx, steps or [], 1, lambda at: AT)


def found(verdict: str, *, onset: int = 15, from_start: bool = False) -> Diagnosis:
    return Diagnosis(
        verdict, f"{verdict} it is", onset_step=onset, from_start=from_start, first_step="Look.", last_step=20
    )


def test_a_remedy_that_goes_on_from_here_saves_first(tmp_path: Path) -> None:
    dog = watchdog(tmp_path)
    assert dog.callback.on_verdict is not None and dog.callback.on_verdict(found(STARVING)) == "save_and_stop"
    with pytest.raises(StartAgain, match="max_refills 0 -> 3"):
        dog.settle()
    assert load_steps(tmp_path)[0].because == STARVING


def test_a_remedy_that_goes_back_saves_nothing(tmp_path: Path) -> None:
    dog = watchdog(tmp_path)
    assert dog._on_verdict(found("kl_explosion")) == "stop"
    with pytest.raises(StartAgain):
        dog.settle()


@pytest.mark.parametrize(
    ("verdict", "from_start", "decision"),
    [
        ("reward_hacking", False, "save_and_stop"),  # no remedy; the policy is what it is
        ("extraction_failed", True, "save_and_stop"),
        ("kl_explosion", False, "stop"),
        ("truncation_spiral", False, "stop"),  # saving it could push the last good checkpoint out
    ],
)
def test_a_stop_by_name(tmp_path: Path, verdict: str, from_start: bool, decision: str) -> None:
    dog = watchdog(tmp_path, "grpo.remedies=off")
    assert dog._on_verdict(found(verdict, from_start=from_start)) == decision
    with pytest.raises(RunStopped) as stopped:
        dog.settle()
    assert stopped.value.cause == verdict and stopped.value.fix == "Look"
    assert dog.notes == [f"{verdict}: {verdict} it is"]


def test_suggest_says_what_it_would_do_once_and_stops_as_ever(tmp_path: Path) -> None:
    dog = watchdog(tmp_path, "grpo.remedies=suggest")
    assert dog._on_verdict(found("kl_explosion")) == "stop"
    assert dog.notes[1].startswith("suggested remedy at step 20 (kl_explosion): from the last good checkpoint")
    with pytest.raises(RunStopped, match=r"grpo\.remedies=act would do it"):
        dog.settle()


def test_dead_groups_alone_stop_nothing(tmp_path: Path) -> None:
    dog = watchdog(tmp_path, "grpo.remedies=suggest")
    assert dog._on_verdict(found(STARVING)) == "go_on"
    dog.settle()
    assert len(dog.notes) == 2


def test_warn_only_warns(tmp_path: Path) -> None:
    dog = watchdog(tmp_path, "grpo.watchdog=warn")
    assert dog._on_verdict(found("kl_explosion")) == "go_on"
    dog.settle()
    assert "suggested remedy" in dog.notes[1]


def test_the_end_of_learning_is_no_failure(tmp_path: Path) -> None:
    dog = watchdog(tmp_path)
    dog.callback.rows = [{"step": 1, "outcomes/right": 0.4}]
    assert dog._on_verdict(found("all_correct")) == "save_and_stop"
    dog.settle()
    assert "ended early" in dog.notes[-1]


def test_steps_taken_before_are_notes_and_settings_of_this_run(tmp_path: Path) -> None:
    step = Step("temperature", "entropy_collapse", "copies", 9, 1, {"temperature": [0.1, 1.0]}, resumed_from=9)
    dog = watchdog(tmp_path, "grpo.temperature=0.1", steps=[step])
    assert dog.notes == ["remedy 1 at step 9 (entropy_collapse): temperature 0.1 -> 1"]
    assert dog.callback.info is not None and dog.callback.info.temperature == 1.0
    assert dog.callback.forget_before == 9


def test_other_errors_are_not_the_watchdogs(tmp_path: Path) -> None:
    dog = watchdog(tmp_path)
    with pytest.raises(RuntimeError, match="shape"):
        dog.training_failed(RuntimeError("shape mismatch"), 3)
    dog.training_failed(NonFinite("the weight x holds NaN or infinity"), 7)
    assert dog.step is not None and (dog.step.because, dog.step.onset) == ("late_nan", 7)


def test_where_a_run_stands() -> None:
    tried: list[dict[str, Any]] = [
        {"step": step, "prompt_id": name, "kind": kind, "right": right, "rewards": [0.0] * 4}
        for step, name, kind, right in (
            (1, "a", "all_wrong", 0),
            (1, "b", "live", 2),
            (2, "c", "all_right", 4),
            (3, "b", "form_only", 0),
            (4, "a", "truncated", 0),
        )
    ]
    assert situation(50, lambda: tried, [], True)(4) == Situation(4, 50, 1 / 5, ("a", "c"), True)
    done = Step("refill", STARVING, "", 2, 1, resumed_from=2)
    assert situation(50, lambda: tried, [done], False)(4) == Situation(4, 50, 0.0, ("a", "c"), False)
    assert situation(50, list, [], True)(4).live == 1.0  # no ledger: nothing is known against refilling
