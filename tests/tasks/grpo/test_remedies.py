"""The remedy ladder: every rung once, its bounds, and where it ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipeline_config.training import GRPOSettings
from tasks.diagnosis.callback import STARVING
from tasks.diagnosis.findings import VERDICTS
from tasks.grpo.remedies import LADDERS, Failure, Situation, Step, next_step, settings_after, step_from_json

SETTINGS = GRPOSettings(learning_rate=8e-5, per_device_train_batch_size=64, num_generations=8)
AT = Situation(at_step=20, prompts=1000, live=0.3, always_dead=tuple(f"p{i}" for i in range(100)))


def failure(name: str, **more: Any) -> Failure:
    return Failure(name, f"{name} it is", 15, **more)


def climb(name: str, settings: GRPOSettings = SETTINGS, at: Situation = AT, **more: Any) -> list[Step]:
    """Steps until the ladder ends."""
    steps: list[Step] = []
    while (step := next_step(failure(name, **more), steps, settings, at)) is not None:
        steps.append(step)
        assert len(steps) < 30
    return steps


def test_every_verdict_has_a_ladder() -> None:
    assert set(LADDERS) == {*VERDICTS, STARVING}


def test_kl_slower_then_beta_then_sft_then_stop() -> None:
    slower, beta, sft = climb("kl_explosion")
    assert (slower.start, slower.changes) == ("good", {"learning_rate": [8e-5, 4e-5]})
    assert (beta.start, beta.changes) == ("good", {"beta": [0.0, 0.02], "learning_rate": [4e-5, 2e-5]})
    assert (sft.start, sft.changes) == ("sft", {"learning_rate": [2e-5, 1e-5]})
    after = settings_after(SETTINGS, [slower, beta, sft])
    assert (after.learning_rate, after.beta) == (1e-5, 0.02)
    assert SETTINGS.learning_rate == 8e-5  # what was asked for stays as it was


def test_the_learning_rate_stays_within_its_bound() -> None:
    bounded = SETTINGS.model_copy(
        update={"remedy_bounds": SETTINGS.remedy_bounds.model_copy(update={"min_learning_rate_share": 0.5})}
    )
    slower, beta, sft = climb("late_nan", bounded)
    assert "learning_rate" in slower.changes and "learning_rate" not in beta.changes and sft.changes == {}


def test_a_beta_of_the_users_is_tripled_up_to_the_bound() -> None:
    own = SETTINGS.model_copy(update={"beta": 0.03})
    assert climb("kl_explosion", own)[1].changes["beta"] == [0.03, 0.09]
    assert [step.rung for step in climb("kl_explosion", own.model_copy(update={"beta": 0.05}))] == ["slower", "sft"]


def test_dead_groups_refill_narrow_temperature_group() -> None:
    at = AT
    steps = [next_step(failure(STARVING), [], SETTINGS, at)]
    assert steps[0] is not None and steps[0].changes == {"max_refills": [0, 3]} and steps[0].start == "here"
    narrow = next_step(failure(STARVING), [steps[0]], SETTINGS, at)
    assert narrow is not None and narrow.rung == "narrow" and len(narrow.set_aside) == 100
    rest = [step.rung for step in climb(STARVING)]
    assert rest == ["refill", "narrow", "temperature", "temperature"]  # four remedies: max_steps
    more = SETTINGS.model_copy(update={"remedy_bounds": SETTINGS.remedy_bounds.model_copy(update={"max_steps": 20})})
    assert [step.rung for step in climb(STARVING, more)] == [
        *("refill", "narrow", "temperature", "temperature", "group", "group")
    ]
    last = settings_after(more, climb(STARVING, more))
    assert (last.temperature, last.num_generations, last.max_refills) == (1.2, 32, 3)
    assert isinstance(last.num_generations, int)


def test_a_cold_temperature_goes_back_to_one_first() -> None:
    cold = SETTINGS.model_copy(update={"temperature": 0.1})
    first = next_step(failure("entropy_collapse", from_start=True), [], cold, AT)
    assert first is not None and first.changes == {"temperature": [0.1, 1.0]} and first.start == "here"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"live": 0.04}, ["group", "group"]),  # nothing alive to refill with, nor to keep
        ({"can_refill": False}, ["narrow", "group", "group"]),
        ({"always_dead": ("p1",)}, ["refill", "group", "group"]),  # one prompt of a thousand is not worth a restart
        ({"prompts": 110}, ["refill", "group", "group"]),  # ten prompts would be left
    ],
)
def test_a_rung_that_cannot_help_is_passed_over(change: dict[str, Any], expected: list[str]) -> None:
    assert [step.rung for step in climb("all_wrong", at=replace(AT, **change))] == expected


def test_a_group_is_doubled_only_while_the_batch_holds_two() -> None:
    small = SETTINGS.model_copy(update={"per_device_train_batch_size": 16})
    assert [step.rung for step in climb("all_wrong", small, replace(AT, live=0.0))] == []


@pytest.mark.parametrize("name", ["extraction_failed", "truncation_spiral", "length_collapse"])
def test_what_the_policy_never_had_no_remedy_gives_it(name: str) -> None:
    assert climb(name, from_start=True) == []
    assert climb(name)[0].start == "good"


def test_a_hacked_reward_and_problems_that_are_too_easy_have_no_remedy() -> None:
    assert climb("reward_hacking") == climb("all_correct", from_start=True) == []


def test_a_step_survives_json_and_says_what_it_does() -> None:
    (step, *_) = climb(STARVING)
    assert step_from_json(step.to_json()) == step
    assert step.sentence() == "at step 20 (dead_groups): max_refills 0 -> 3"
    narrow = replace(step, rung="narrow", changes={}, set_aside=("a", "b"))
    assert step_from_json(narrow.to_json()) == narrow
    assert narrow.sentence().endswith("2 prompts set aside")
    slower = climb("late_nan")[0]
    assert slower.sentence() == "at step 20 (late_nan): from the last good checkpoint, learning_rate 8e-05 -> 4e-05"
    assert "from step 12" in replace(slower, resumed_from=12).sentence()
    assert "no good checkpoint" in replace(slower, resumed_from=0).sentence()
