"""Worked examples: every expected number is computed by hand or taken from a textbook."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.statistics import (
    half_tail,
    mcnemar_exact,
    mcnemar_worse,
    paired_bootstrap,
    paired_loss_interval,
    wilson,
)


def test_wilson_of_8_in_10_by_hand():
    # p = 0.8, z^2 = 3.8415: centre = (0.8 + 0.19207) / 1.38415, half = 1.95996 / 1.38415 * sqrt(0.016 + 0.0096037)
    low, high = wilson(8, 10)
    assert low == pytest.approx(0.49016, abs=1e-5)
    assert high == pytest.approx(0.94331, abs=1e-4)


def test_wilson_at_the_ends_and_without_items():
    assert wilson(0, 0) == (0.0, 1.0)
    low, high = wilson(0, 20)
    assert low == 0.0
    assert high == pytest.approx(3.841459 / 23.841459, abs=1e-6)  # z^2 / (n + z^2)
    assert wilson(20, 20)[1] == 1.0
    with pytest.raises(ValueError, match="k=5"):
        wilson(5, 4)


@given(st.integers(1, 500), st.data())
def test_wilson_holds_the_estimate(n, data):
    k = data.draw(st.integers(0, n))
    low, high = wilson(k, n)
    assert 0.0 <= low <= k / n <= high <= 1.0


def test_binomial_tail_by_hand():
    assert half_tail(3, 4) == (4 + 1) / 16
    assert half_tail(0, 4) == 1.0
    assert half_tail(4, 4) == 1 / 16


def test_mcnemar_by_hand():
    # 1 gained, 5 lost: P(X >= 5 of 6) = (6 + 1) / 64
    assert mcnemar_worse(gained=1, lost=5) == 7 / 64
    assert mcnemar_exact(gained=1, lost=5) == 14 / 64
    assert mcnemar_exact(gained=5, lost=1) == 14 / 64
    assert mcnemar_exact(0, 0) == 1.0
    assert mcnemar_exact(3, 3) == 1.0
    assert mcnemar_worse(gained=5, lost=1) == 63 / 64
    assert mcnemar_worse(gained=0, lost=5) == 1 / 32
    with pytest.raises(ValueError, match="negative"):
        mcnemar_exact(-1, 2)


def test_loss_interval_without_differing_items_has_a_width():
    low, high = paired_loss_interval(0, 0, 64, z=1.6448536)
    assert high == pytest.approx(2.705543 / 66.705543, abs=1e-6)
    assert low == pytest.approx(-high)
    assert paired_loss_interval(0, 0, 0) == (-1.0, 1.0)


def test_loss_interval_is_mirrored_and_solves_its_equation():
    low, high = paired_loss_interval(gained=2, lost=12, n=50)
    mirrored = paired_loss_interval(gained=12, lost=2, n=50)
    assert (low, high) == pytest.approx((-mirrored[1], -mirrored[0]))
    assert low < 0.2 < high
    # The restricted estimate of the gained share at the lower end maximises the likelihood
    # 12 log(q + low) + 2 log(q) + 36 log(1 - 2 q - low); found here by a plain scan.
    share = max(
        (i / 100_000 for i in range(1, 40_000) if 1 - 2 * i / 100_000 - low > 0),
        key=lambda q: 12 * math.log(q + low) + 2 * math.log(q) + 36 * math.log(1 - 2 * q - low),
    )
    score = (12 - 2 - 50 * low) / math.sqrt(50 * (2 * share + low * (1 - low)))
    assert score == pytest.approx(1.959964, abs=1e-3)


@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 200))
def test_loss_interval_holds_the_estimate(gained, lost, agreeing):
    n = gained + lost + agreeing
    low, high = paired_loss_interval(gained, lost, n)
    if n:
        assert -1.0 <= low <= (lost - gained) / n + 1e-12
        assert (lost - gained) / n - 1e-12 <= high <= 1.0


def test_loss_interval_refuses_impossible_counts():
    with pytest.raises(ValueError, match="do not fit"):
        paired_loss_interval(3, 3, 5)


def test_bootstrap():
    assert paired_bootstrap([0.5] * 7, seed=1, n=100) == (0.5, 0.5)
    low, high = paired_bootstrap([1, 0, 0, -1, 1, 0, 1, 0] * 25, seed=3, n=2000)
    # mean 0.25, sd sqrt(4/8 - 1/16) = 0.661, standard error 0.0468
    assert low == pytest.approx(0.25 - 1.96 * 0.0468, abs=0.015)
    assert high == pytest.approx(0.25 + 1.96 * 0.0468, abs=0.015)
    assert paired_bootstrap([0, 1], seed=5, n=100) == paired_bootstrap([0, 1], seed=5, n=100)
    with pytest.raises(ValueError, match="at least one"):
        paired_bootstrap([], seed=1)
