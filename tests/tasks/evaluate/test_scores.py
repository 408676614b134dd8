"""Accuracies, intervals and paired comparisons, on numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.evaluate.scores import compare, pass_at_1, rate, score


def item(name: str, right: bool, lenient: bool | None = None, **more: Any) -> dict[str, Any]:
    loose = right if lenient is None else lenient
    return {
        "id": name,
        "right": right,
        "lenient": loose,
        "well_formed": right,
        "truncated": False,
        "tokens": 10,
        **more,
    }


def test_rate() -> None:
    # Wilson, 8 of 10: centre (0.8 + 0.192073) / 1.384146 = 0.716740, half 1.416010 * sqrt(0.016 + 0.009604) = 0.226577.
    found = rate(8, 10)
    assert found["rate"] == 0.8 and (found["hits"], found["n"]) == (8, 10)
    assert (found["low"], found["high"]) == pytest.approx((0.490163, 0.943317), abs=2e-5)


def test_pass_at_1_takes_problems_not_samples_as_independent() -> None:
    # Rates 1, 0.5, 0: mean 0.5, variance 0.25, standard error sqrt(0.25 / 3) = 0.288675, half width 0.565796.
    found = pass_at_1([4, 2, 0], 4)
    assert found == pytest.approx({"rate": 0.5, "n": 3, "samples": 4, "low": 0.0, "high": 1.0}, abs=1e-9)
    # 40 problems at 1 and 40 at 0.5: mean 0.75, variance 0.0625 * 80 / 79, standard error 0.028128, half 0.055130.
    found = pass_at_1([8] * 40 + [4] * 40, 8)
    assert (found["low"], found["high"]) == pytest.approx((0.694870, 0.805130), abs=1e-5)
    # Twice the samples with the same rates say nothing new about other problems.
    assert pass_at_1([16] * 40 + [8] * 40, 16)["low"] == found["low"]


@pytest.mark.parametrize("samples", [1, 8])
def test_pass_at_1_of_equal_rates_is_not_certain(samples: int) -> None:
    """All problems right is no proof of 100 %: Wilson's interval for 100 problems begins at 0.963."""
    found = pass_at_1([samples] * 100, samples)
    assert (found["rate"], found["high"]) == (1.0, 1.0)
    assert found["low"] == pytest.approx(rate(100, 100)["low"]) == pytest.approx(0.963005, abs=1e-5)
    assert pass_at_1([0] * 100, samples)["high"] == pytest.approx(0.036995, abs=1e-5)


def test_one_problem_says_little() -> None:
    found = pass_at_1([3], 4)
    assert found["low"] < 0.25 and found["high"] > 0.95


def test_scores_of_one_model() -> None:
    items = [
        item("a", True, tokens=4, sampled_right=4),
        item("b", False, lenient=True, tokens=8, sampled_right=2),
        item("c", False, truncated=True, tokens=12, sampled_right=0),
        item("d", False, well_formed=True, tokens=8, sampled_right=2),
    ]
    found = score(items, 4)
    assert (found["strict"]["rate"], found["lenient"]["rate"], found["format"]["rate"]) == (0.25, 0.5, 0.5)
    assert (found["truncated"], found["mean_tokens"]) == (0.25, 8.0)
    assert found["pass_at_1"]["rate"] == 0.5
    assert "pass_at_1" not in score(items, 0)


def test_a_paired_comparison_splits_the_gain() -> None:
    """Ten problems. Four become strictly right, one is lost; in two of the four the answer was there before, untagged."""
    before = [item(name, name in "abc", lenient=name in "abcde") for name in "abcdefghij"]
    after = [item(name, name in "abdefg") for name in "abcdefghij"]
    found = compare(before, after)
    assert (found["n"], found["gained"], found["lost"]) == (10, 4, 1)
    assert found["strict_gain"] == pytest.approx(0.3)
    # Lenient: 5 before, 6 after.
    assert found["ability_gain"] == pytest.approx(0.1)
    assert found["format_gain"] == pytest.approx(0.2)
    # 5 differing items, 4 one way: two-sided 2 * (5 + 1) / 32.
    assert found["p"] == pytest.approx(0.375)


def test_only_common_problems_are_compared() -> None:
    found = compare([item("a", False), item("b", True)], [item("b", True), item("c", True)])
    assert (found["n"], found["gained"], found["lost"], found["p"]) == (1, 0, 0, 1.0)
    assert compare([item("a", True)], [item("b", True)]) == {"n": 0}
    assert compare([], []) == {"n": 0}


@given(st.integers(1, 16), st.data())
def test_intervals_hold_the_rate(samples: int, data: st.DataObject) -> None:
    hits = data.draw(st.lists(st.integers(0, samples), min_size=1, max_size=40))
    found = pass_at_1(hits, samples)
    assert 0.0 <= found["low"] <= found["rate"] + 1e-12 and found["rate"] - 1e-12 <= found["high"] <= 1.0


FLAGS = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=30)


@given(FLAGS, st.randoms())
def test_a_comparison_turned_round_changes_sign(flags: list[tuple[bool, bool]], shuffler: Any) -> None:
    before = [item(str(i), a) for i, (a, _) in enumerate(flags)]
    after = [item(str(i), b) for i, (_, b) in enumerate(flags)]
    forth = compare(before, after)
    shuffler.shuffle(after)
    back = compare(after, before)
    assert (forth["gained"], forth["lost"], forth["p"]) == (back["lost"], back["gained"], back["p"])
    assert forth["strict_gain"] == -back["strict_gain"] and forth["format_gain"] == pytest.approx(0.0)
