"""The default reward: right is worth more than wrong, and wrong in the right format more than no format.

GRPO sees little but the order of the rewards within a group, so the values matter less than that no trick changes it.
With format share f, proximity share p and overlong share o (`RewardConfig`), in shares of `right`:

    right, well-formed                       1
    right, text around the answer            1 - f
    wrong, well-formed                       f + p * nearness
    wrong, text around the answer            f / 2
    a list, a hedge, an unfinished or empty answer, well-formed   f / 2
    anything else, truncated included        0
    the gold itself is unusable              None: no reward at all

and all of it times 1 - o * overshoot. (1 - f)(1 - o) > f + p is required, so that no wrong completion reaches a
right one.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from pipeline_config.rewards import OverlongPenalty, RewardConfig
from tasks.contract.answers import parse_answer
from tasks.contract.golds import read_gold
from tasks.contract.grading import Grade
from tasks.contract.kinds import ANSWERED, Kind
from tasks.rewards.grader import Grader
from tasks.rewards.spec import GOLD_COLUMN, RewardSpec

NEAR = 0.2
"""Relative distance at which proximity pays nothing any more; the tutorial's outer band."""


def value(grade: Grade, config: RewardConfig, *, nearness: float = 0.0, overshoot: float = 0.0) -> float | None:
    """Reward of one graded completion; see the table above.

    Args:
        grade: verdict on the completion.
        config: shares.
        nearness: 0 (far) to 1 (equal) for a wrong number.
        overshoot: 0 (up to the soft cap) to 1 (full length).
    """
    if grade.kind is Kind.BAD_GOLD:
        return None
    form = config.format_weight
    if grade.kind is Kind.RIGHT:
        share = 1.0 if grade.well_formed else 1.0 - form
    elif grade.kind is Kind.WRONG and grade.well_formed:
        share = form + config.proximity * nearness
    elif grade.kind is Kind.WRONG or (grade.kind in ANSWERED and grade.well_formed):
        share = form / 2
    else:
        share = 0.0
    penalty = config.overlong_penalty.max_penalty * overshoot if config.overlong_penalty else 0.0
    return config.right * share * (1.0 - penalty)


def overshoot(length: int, cap: int | None, penalty: OverlongPenalty | None) -> float:
    """How far a completion of `length` tokens is past the soft cap: 0 up to it, 1 at `cap`."""
    if penalty is None or cap is None:
        return 0.0
    soft = penalty.start * cap
    return min(1.0, max(0.0, (length - soft) / (cap - soft)))


def nearness(span: str | None, gold: str) -> float:
    """1 - distance / NEAR for a number within NEAR of the gold, relative to max(|gold|, 1); else 0."""
    answer, wanted = parse_answer(span or ""), read_gold(gold).value
    if answer is None or wanted is None or answer.fraction is None or wanted.fraction is None:
        return 0.0
    distance = abs(answer.fraction - wanted.fraction) / max(abs(wanted.fraction), Fraction(1))
    return 1.0 - float(distance) / NEAR if distance < NEAR else 0.0


def sound_spec(config: RewardConfig, grader: Grader) -> RewardSpec:
    """The reward as a function with TRL's signature, and its declared outcomes."""

    def sound(completions: Sequence[Any], completion_ids: Any = None, **columns: Any) -> list[float | None]:
        offered = {**columns, "completions": completions, "completion_ids": completion_ids}
        grades = grader.grades(offered)
        lengths = [len(ids) for ids in completion_ids] if completion_ids else [0] * len(grades)
        cap, penalty = grader.max_completion_length, config.overlong_penalty
        return [
            value(
                grade,
                config,
                nearness=nearness(grade.span, str(gold)) if config.proximity and grade.kind is Kind.WRONG else 0.0,
                overshoot=overshoot(length, cap, penalty),
            )
            for grade, gold, length in zip(grades, columns[GOLD_COLUMN], lengths, strict=True)
        ]

    form = config.format_weight
    shares = {
        "right": 1.0,
        "right_with_text_around": 1.0 - form,
        "wrong": form,
        "half_formed": form / 2,
        "malformed": 0.0,
    }
    outcomes = {name: config.right * share for name, share in shares.items()}
    constant = not config.proximity and config.overlong_penalty is None
    return RewardSpec("sound", sound, outcomes if constant else None, maximum=config.right, minimum=0.0)
