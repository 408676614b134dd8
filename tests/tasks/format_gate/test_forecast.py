"""Dead groups at other group sizes: hand-computed, exact cases of the fit, and no bias on simulated prompts."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.format_gate.forecast import dead_in_subsets, dead_under_beta, fit_beta, forecast, serving_size


def test_subsets_by_hand() -> None:
    """Of 4 completions with 1 right, 3 of the 6 pairs hold only wrong ones; with 2 right, 1 + 1 pairs are alike."""
    assert [dead_in_subsets(right, 4, 2) for right in range(5)] == [1.0, 0.5, 1 / 3, 0.5, 1.0]
    assert dead_in_subsets(3, 4, 4) == 0.0 and dead_in_subsets(4, 4, 4) == 1.0
    found = forecast([0, 1, 2, 4], 4, (2, 4))
    assert found["2"]["dead"] == pytest.approx((1 + 1 / 2 + 1 / 3 + 1) / 4)
    assert found["4"]["dead"] == 0.5 and found["4"]["method"] == "subsets"
    # Shares 1, 0, 0, 1 at G = 4: standard deviation sqrt(1/3), standard error half of it.
    assert found["4"]["standard_error"] == pytest.approx((1 / 3) ** 0.5 / 2)
    with pytest.raises(ValueError, match="size <= n"):
        dead_in_subsets(1, 4, 5)


@given(st.integers(1, 8), st.floats(0.0, 1.0))
def test_subsets_are_unbiased(size: int, p: float) -> None:
    """The expectation over r ~ Binomial(8, p) is exactly p^G + (1-p)^G, which the plugged-in r/8 overestimates."""
    from math import comb

    weights = [comb(8, r) * p**r * (1 - p) ** (8 - r) for r in range(9)]
    expected = sum(w * dead_in_subsets(r, 8, size) for r, w in enumerate(weights))
    assert expected == pytest.approx(p**size + (1 - p) ** size, abs=1e-9)
    plugged = sum(w * ((r / 8) ** size + (1 - r / 8) ** size) for r, w in enumerate(weights))
    assert plugged >= expected - 1e-9


def test_beta_by_hand() -> None:
    """Under a uniform p, E[p^G] = 1/(G+1). Beta(1/2, 1/2): E[p^2] = 1/2 * 3/2 / (1 * 2) = 3/8."""
    assert dead_under_beta(1, 1, 16) == pytest.approx(2 / 17)
    assert dead_under_beta(0.5, 0.5, 2) == pytest.approx(3 / 4)


def test_the_fit_finds_what_made_the_counts() -> None:
    """Every count equally often is the beta-binomial of Beta(1, 1) itself."""
    assert fit_beta(dict.fromkeys(range(9), 5), 8) == pytest.approx((1, 1), rel=1e-3)
    a, b = fit_beta({4: 30}, 8)
    assert a / (a + b) == pytest.approx(0.5) and a + b > 100  # one pass rate
    a, b = fit_beta({0: 20, 8: 20}, 8)
    assert a / (a + b) == pytest.approx(0.5) and a + b < 0.1  # never or always
    assert forecast([0] * 40, 8, (64,))["64"]["dead"] > 0.99


def test_sizes_above_the_samples_are_not_biased() -> None:
    """60 gates of 64 prompts of 8 with p ~ Beta(0.6, 1.2): the mean forecast for 32 against the truth, and against r/n plugged in."""
    rng = random.Random(0)
    fitted = plugged = 0.0
    for _ in range(60):
        rights = [sum(rng.random() < p for _ in range(8)) for p in (rng.betavariate(0.6, 1.2) for _ in range(64))]
        fitted += forecast(rights, 8, (32,))["32"]["dead"] / 60
        plugged += sum((r / 8) ** 32 + (1 - r / 8) ** 32 for r in rights) / 64 / 60
    truth = dead_under_beta(0.6, 1.2, 32)
    assert truth == pytest.approx(0.134, abs=0.001)
    assert abs(fitted - truth) < 0.02
    assert plugged - truth > 0.15


@given(st.lists(st.integers(0, 8), min_size=1, max_size=40))
def test_larger_groups_are_dead_less_often(rights: list[int]) -> None:
    found = forecast(rights, 8)
    within = [found[size]["dead"] for size in ("2", "4", "8")]
    beyond = [found[size]["dead"] for size in ("16", "32", "64")]
    assert within == sorted(within, reverse=True) and beyond == sorted(beyond, reverse=True)
    assert all(0.0 <= item["dead"] <= 1.0 for item in found.values())


def test_the_size_that_serves() -> None:
    found = {"2": {"dead": 0.9}, "16": {"dead": 0.5}, "4": {"dead": 0.6}}
    assert serving_size(found, 0.5) == 16
    assert serving_size(found, 0.7) == 4
    assert serving_size(found, 0.4) is None
    assert forecast([], 8) == {}
