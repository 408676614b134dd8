"""Worked examples: every expected number is computed by hand or taken from a textbook."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.statistics import (
    detectable_gain,
    half_tail,
    mcnemar_exact,
    mcnemar_worse,
    mean_interval,
    paired_bootstrap,
    paired_loss_interval,
    pass_at_k,
    sign_flip,
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


def test_interval_of_a_mean_that_is_a_proportion_is_nearly_wilsons():
    """For values of 0 and 1 the trials are n - 1 and the quantile Student's: a little wider."""
    low, high = mean_interval([1.0] * 80 + [0.0] * 20)
    wide, narrow = (low, high), wilson(80, 100)
    assert wide[0] < narrow[0] < 0.8 < narrow[1] < wide[1]
    assert wide == pytest.approx(narrow, abs=0.002)


def test_interval_of_a_mean_at_the_ends():
    assert mean_interval([1.0] * 100) == wilson(100, 100)
    assert mean_interval([0.0] * 7) == wilson(0, 7)
    assert mean_interval([0.5] * 10) == wilson(5, 10)
    assert mean_interval([0.25])[0] < 0.05 and mean_interval([0.25])[1] > 0.75
    for values in ([], [1.5], [-0.1, 0.5]):
        with pytest.raises(ValueError, match="between 0 and 1"):
            mean_interval(values)


@given(st.lists(st.integers(0, 8), min_size=1, max_size=50))
def test_interval_of_a_mean_holds_it(hits):
    low, high = mean_interval([h / 8 for h in hits])
    assert 0.0 <= low <= sum(hits) / 8 / len(hits) + 1e-12
    assert sum(hits) / 8 / len(hits) - 1e-12 <= high <= 1.0


def test_pass_at_k_by_hand():
    # 5 samples, 2 right: both of a pair are wrong in C(3, 2) = 3 of C(5, 2) = 10 pairs.
    assert pass_at_k(5, 2, 2) == pytest.approx(0.7)
    assert pass_at_k(5, 2, 1) == pytest.approx(0.4)
    assert (pass_at_k(5, 2, 4), pass_at_k(5, 0, 3), pass_at_k(5, 5, 1)) == (1.0, 0.0, 1.0)
    for n, right, k in ((4, 5, 1), (4, 1, 5), (4, 1, 0)):
        with pytest.raises(ValueError, match="pass@"):
            pass_at_k(n, right, k)


@given(st.integers(1, 12), st.data())
def test_pass_at_k_is_the_mean_over_all_choices_of_samples(n, data):
    right, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    chosen = [any(i < right for i in some) for some in itertools.combinations(range(n), k)]
    assert pass_at_k(n, right, k) == pytest.approx(sum(chosen) / len(chosen))


def test_sign_flip_by_hand():
    # 1, 1, -1: sums 3, 1, -1, -3 with weights 1, 3, 3, 1 of 8. At least 1 in size: all. At least 1: half.
    two, one = sign_flip([1, 1, -1], seed=0)
    assert two == 1.0
    assert one == pytest.approx(0.5, abs=0.02)
    # 1 and 0.5: sums +-1.5 and +-0.5; one of four is 1.5 or more.
    two, one = sign_flip([1, 0.5, 0, 0], seed=0)
    assert (two, one) == (pytest.approx(0.5, abs=0.02), pytest.approx(0.25, abs=0.02))
    assert sign_flip([0.0, 0.0], seed=0) == (1.0, 1.0)
    assert sign_flip([1.0] * 40, seed=0) == (1 / 10_001, 1 / 10_001)  # never 0
    with pytest.raises(ValueError, match="at least one"):
        sign_flip([], seed=0)


@given(st.integers(0, 12), st.integers(0, 12))
def test_sign_flip_of_right_and_wrong_is_mcnemar(gained, lost):
    two, one = sign_flip([1] * gained + [-1] * lost + [0] * 5, seed=0)
    assert two == pytest.approx(mcnemar_exact(gained, lost), abs=0.025)
    assert one == pytest.approx(half_tail(gained, gained + lost), abs=0.025)


def test_detectable_gain_solves_its_formula():
    # 20 % of 1,319 items differ: 1.95996 sqrt(0.2) + 0.84162 sqrt(0.2 - d^2) = (d - 1 / 1319) sqrt(1319)
    gain = detectable_gain(1319, 0.2)
    right = 1.959964 * 0.2**0.5 + 0.841621 * (0.2 - gain**2) ** 0.5
    assert (gain - 1 / 1319) * 1319**0.5 == pytest.approx(right, abs=1e-5)
    assert gain == pytest.approx(0.0352, abs=1e-4)
    assert detectable_gain(400, 0.2) > gain > detectable_gain(1319, 0.05)
    assert detectable_gain(1, 0.0) == detectable_gain(0, 0.5) == 1.0
    # Where nothing differed a gain would itself be what differs: 1.96 sqrt(d) + 0.84 sqrt(d - d^2) = (d - 0.01) 10.
    gain = detectable_gain(100, 0.0)
    assert (gain - 0.01) * 10 == pytest.approx(1.959964 * gain**0.5 + 0.841621 * (gain - gain**2) ** 0.5, abs=1e-5)
