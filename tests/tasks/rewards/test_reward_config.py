from __future__ import annotations

import pytest
from pydantic import ValidationError

from pipeline_config.rewards import OverlongPenalty, RewardConfig, RewardFunction


def test_defaults_are_the_sound_preset() -> None:
    config = RewardConfig()
    assert (config.preset, config.format_weight, config.proximity, config.overlong_penalty) == (
        "sound",
        0.25,
        0.0,
        None,
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"format_weight": 0.5}, "less than 0.5"),
        ({"format_weight": 0.4, "proximity": 0.2}, "right one only 0.6"),  # 0.4 + 0.2 = 1 - 0.4
        ({"overlong_penalty": {"max_penalty": 0.7}}, "right one only 0.225"),  # 0.75 * 0.3 <= 0.25
        ({"preset": None}, "no reward at all"),
        ({"functions": [{"path": "mine:sound"}]}, "two reward functions are named sound"),
        ({"preset": None, "functions": [{"path": "mine:f", "weight": 0}]}, "weight 0"),
        ({"functions": [{"path": "mine.f"}]}, "pattern"),
        ({"functions": [{"path": "mine:f", "wieght": 2}]}, "Extra inputs"),
        ({"timeout_s": 0}, "greater than or equal to 0.1"),
    ],
)
def test_what_cannot_be_right_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        RewardConfig.model_validate(settings)


def test_just_below_the_bound_is_accepted() -> None:
    RewardConfig(format_weight=0.4, proximity=0.19)
    RewardConfig(overlong_penalty=OverlongPenalty(max_penalty=0.66))  # 0.75 * 0.34 = 0.255 > 0.25


def test_a_function_is_named_after_itself_unless_named() -> None:
    assert RewardFunction(path="a.b:judge").label == "judge"
    assert RewardFunction(path="a.b:Judge.score").label == "score"
    assert RewardFunction(path="a.b:judge", name="quality").label == "quality"
