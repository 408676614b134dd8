"""Accuracies, intervals and paired comparisons, on numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.evaluate.scores import compare, ks_of, pass_at_1, rate, score, verdict


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
    # Rates 1, 0.5, 0: mean 0.5, variance 0.25, so as sure as 0.25 * 3 / 0.25 = 3 trials; Student's quantile 4.17 at 2.
    # Centre 0.5, half 4.171 / (1 + 17.40 / 3) * sqrt(0.25 / 3 + 17.40 / 36) = 0.6135 * 0.7527 = 0.4618.
    found = pass_at_1([4, 2, 0], 4)
    assert found == pytest.approx({"rate": 0.5, "n": 3, "samples": 4, "low": 0.0382, "high": 0.9618}, abs=1e-4)
    # 40 problems at 1 and 40 at 0.5: mean 0.75, variance 0.0625 * 80 / 79 = 0.063291, as sure as 237 trials; Student's
    # quantile 1.99045 at 79. Centre 0.758358 / 1.016717 = 0.745889, half 1.957723 * sqrt(0.00079114 + 0.00001763).
    found = pass_at_1([8] * 40 + [4] * 40, 8)
    assert (found["low"], found["high"]) == pytest.approx((0.690214, 0.801564), abs=1e-5)
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


def sampled(name: str, right: int, of: int = 4, majority: float = 0.0, **more: Any) -> dict[str, Any]:
    return item(name, right > 0, samples=of, sampled_right=right, sampled_lenient=right, majority=majority, **more)


def test_pass_at_k_and_the_majority() -> None:
    """Of 4 samples 4, 2, 1 and 0 are right: pass@2 is 1, 1 - 1/6, 1 - 3/6 and 0 (C(4, 2) = 6 pairs)."""
    found = score([sampled("a", 4, majority=1.0), sampled("b", 2, majority=0.5), sampled("c", 1), sampled("d", 0)], 4)
    assert {k: v["rate"] for k, v in found["pass_at_k"].items()} == pytest.approx(
        {"1": 7 / 16, "2": (1 + 5 / 6 + 1 / 2) / 4, "4": 3 / 4}
    )
    assert found["pass_at_k"]["1"] == found["pass_at_1"]
    assert (found["maj_at_k"]["k"], found["maj_at_k"]["rate"]) == (4, 0.375)
    assert found["pass_at_1_lenient"]["rate"] == 7 / 16
    assert [ks_of(k) for k in (1, 4, 6, 8)] == [[1], [1, 2, 4], [1, 2, 4, 6], [1, 2, 4, 8]]


def test_accuracy_with_and_without_overlapping_items() -> None:
    """Two of four items occur in training, both right; of the other two one is right."""
    items = [item("a", True, contaminated=True), item("b", True, contaminated=True)]
    items += [item("c", True, contaminated=False), item("d", False, contaminated=False)]
    found = score(items, 0)
    assert found["strict"]["rate"] == 0.75
    assert (found["clean"]["n"], found["clean"]["strict"]["rate"]) == (2, 0.5)
    assert (found["overlapping"]["n"], found["overlapping"]["strict"]["hits"]) == (2, 2)
    none = score([item("a", True, contaminated=False)], 0)
    assert none["overlapping"] == {"n": 0} and "clean" not in none
    assert score([item("a", True, contaminated=True)], 0)["clean"] == {"n": 0}
    assert "overlapping" not in score([item("a", True)], 0)
    # A comparison leaves out what either side marks.
    compared = compare([item(name, False) for name in "abcd"], items)
    assert (compared["gained"], compared["clean"]["gained"], compared["clean"]["n"]) == (3, 1, 2)
    assert compare(items[:2], items[:2])["clean"] == {"n": 0}


def test_intervals_of_the_gain() -> None:
    """12 of 50 gained and 2 lost; Tango's interval of the loss turned round, and a bootstrap around the mean 0.2."""
    before = [item(str(i), i < 2) for i in range(50)]
    after = [item(str(i), 2 <= i < 14) for i in range(50)]
    found = compare(before, after)
    assert found["verdict"] == "better" and found["p"] == pytest.approx(2 * (1 + 14 + 91) / 2**14)
    low, high = found["strict_interval"]
    assert 0 < low < 0.2 < high and (low, high) == found["ability_interval"]
    # Variance of a difference 14 / 50 - 0.04 = 0.24, standard error 0.0693.
    assert found["bootstrap"]["strict_gain"] == pytest.approx((0.2 - 0.136, 0.2 + 0.136), abs=0.03)
    assert found["bootstrap"]["format_gain"] == (0.0, 0.0)
    assert compare(after, before)["verdict"] == "worse"
    assert found["lenient"]["verdict"] == "better"


def test_the_gain_in_pass_at_1() -> None:
    """Ten problems rise by a quarter each: of 1,024 orders of signs two are as extreme."""
    before, after = [sampled(str(i), 1) for i in range(10)], [sampled(str(i), 2) for i in range(10)]
    found = compare(before, after)["pass_at_1"]
    assert (found["gain"], found["low"], found["high"]) == (0.25, 0.25, 0.25)
    assert found["p"] == pytest.approx(2 / 1024, abs=0.0015) and found["verdict"] == "better"
    assert "pass_at_1" not in compare([item("0", True)], after)


def test_a_verdict_needs_p_below_alpha() -> None:
    assert verdict(0.05, 0.1) == "no_difference" and verdict(0.049, 0.1) == "better" and verdict(0.01, -0.1) == "worse"
    assert verdict(0.09, -0.1, alpha=0.1) == "worse" and verdict(0.0, 0.0) == "no_difference"
