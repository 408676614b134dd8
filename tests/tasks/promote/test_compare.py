"""The promotion rule on hand-made answers."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline_config.promotion import PromotionConfig
from tasks.promote.compare import Answers, comparable, compare, judge


def answers(both: int, only_first: int, only_second: int, neither: int) -> tuple[Answers, Answers]:
    """(first, second) with so many problems that both, one or none got right."""
    first = [True] * both + [True] * only_first + [False] * only_second + [False] * neither
    second = [True] * both + [False] * only_first + [True] * only_second + [False] * neither
    return of(first), of(second)


def of(right: list[bool], spec: str = "spec") -> Answers:
    return Answers(spec, {str(i): value for i, value in enumerate(right)})


def test_a_comparison_by_hand() -> None:
    before, after = answers(300, 3, 12, 85)
    found = compare(before, after, alpha=0.05)
    assert (found.n, found.gained, found.lost, found.gain) == (400, 12, 3, 9 / 400)
    # P(X >= 12), X ~ Binomial(15, 1/2) = (455 + 105 + 15 + 1) / 32768
    assert found.p_better == pytest.approx(576 / 32768)
    assert found.p == pytest.approx(2 * 576 / 32768)
    assert found.low < found.gain < found.high
    # The interval of the gain is that of the loss turned round.
    back = compare(after, before, alpha=0.05)
    assert (back.low, back.high) == pytest.approx((-found.high, -found.low))


def test_answers_that_agree_rule_out_only_what_n_allows() -> None:
    """No problem differs: the loss is at most z^2 / (n + z^2) with z = 1.6449, 2.7055 / 402.7055 for n = 400."""
    found = compare(*answers(350, 0, 0, 50), alpha=0.05)
    assert found.worst_loss == pytest.approx(2.7055 / 402.7055, rel=1e-3)


@pytest.mark.parametrize(
    ("counts", "rule", "want", "reason"),
    [
        ((300, 3, 12, 85), "superiority", True, "better"),
        ((300, 4, 8, 88), "superiority", False, "not_better"),  # P(X >= 8 of 12) = 0.194
        ((300, 0, 4, 96), "superiority", False, "not_better"),  # 1/16
        ((300, 0, 5, 95), "superiority", True, "better"),  # 1/32
        ((350, 0, 0, 50), "non_inferiority", True, "not_worse"),  # at most 0.7 points
        ((300, 4, 8, 88), "non_inferiority", True, "not_worse"),
        ((300, 8, 4, 88), "non_inferiority", False, "may_be_worse"),
        ((20, 0, 0, 5), "non_inferiority", False, "may_be_worse"),  # 25 problems cannot rule out 2 points
    ],
)
def test_rules(counts: tuple[int, int, int, int], rule: str, want: bool, reason: str) -> None:
    before, after = answers(*counts)
    good, named, text, evidence = judge(after, before, None, PromotionConfig(rule=rule))
    assert (good, named) == (want, reason)
    assert str(counts[2]) in text and evidence["comparison"]["lost"] == counts[1]
    assert evidence["accuracy"]["n"] == evidence["production_accuracy"]["n"] == sum(counts)


@pytest.mark.parametrize(("right", "want"), [(28, True), (27, False)])
def test_a_first_model_must_be_above_the_floor(right: int, want: bool) -> None:
    """Wilson's lower bounds for 28 and 27 of 100: 20.14 % and 19.27 %."""
    after = of([True] * right + [False] * (100 - right))
    good, reason, text, evidence = judge(after, None, None, PromotionConfig(floor=0.20))
    assert (good, reason) == (want, "above_floor" if want else "below_floor")
    assert evidence["rule"] == "floor" and f"{right}.0% on 100 problems" in text


def test_a_row_of_small_losses_is_measured_from_the_last_clear_gain() -> None:
    anchor = of([True] * 400)
    before = of([True] * 394 + [False] * 6)
    after = of([True] * 393 + [False] * 7)
    assert judge(after, before, None, PromotionConfig(rule="non_inferiority"))[:2] == (True, "not_worse")
    good, reason, text, evidence = judge(after, before, anchor, PromotionConfig(rule="non_inferiority"))
    assert (good, reason) == (False, "drifted")
    assert evidence["anchor_comparison"]["lost"] == 7 and "last clear gain" in text


def test_other_problems_or_another_spec_are_not_compared() -> None:
    first = of([True, False])
    assert comparable(first, of([False, False]))
    assert not comparable(first, of([True, False], spec="other"))
    assert not comparable(first, of([True, False, True]))
    assert not comparable(of([]), of([]))
    with pytest.raises(ValueError, match="not asked the same problems"):
        compare(first, of([True]), 0.05)


@settings(deadline=None)
@given(st.integers(1, 80), st.floats(0.001, 0.3))
def test_equal_models_are_promoted_less_often_than_alpha(differing: int, alpha: float) -> None:
    """Exact size: over all ways in which equally good models can differ."""
    promoted = sum(
        math.comb(differing, gained) / 2**differing
        for gained in range(differing + 1)
        if compare(*answers(0, differing - gained, gained, 0), alpha=alpha).p_better < alpha
    )
    assert promoted < alpha


def test_a_loss_of_the_margin_is_seldom_called_non_inferior() -> None:
    """Score interval: 2,000 pairs of models of which the second truly loses 2 points at n = 800; about 5 % pass."""
    rng, passed = random.Random(0), 0
    for _ in range(2000):
        lost = sum(rng.random() < 0.05 for _ in range(800))
        gained = sum(rng.random() < 0.03 / 0.95 for _ in range(800 - lost))
        found = compare(*answers(800 - lost - gained, lost, gained, 0), alpha=0.05)
        passed += found.worst_loss <= 0.02
    assert 0.03 < passed / 2000 < 0.07
