"""Intervals of accuracies, and tests on paired items.

Paired means: the same problems answered by two models. `lost` counts problems that only the first model got right,
`gained` those that only the second got right; problems on which both agree carry no information about a difference.
`benchmarks/power.py` measures how often the tests err and how much they see.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

Z_95 = 1.959964
"""Two-sided 95 % quantile of the standard normal distribution."""
RESAMPLES = 10_000
"""Of a bootstrap or a sign-flip test: the error of a 5 % tail is then 0.2 points (one standard error)."""


def wilson(k: float, n: int, z: float = Z_95) -> tuple[float, float]:
    """Wilson score interval of a proportion `k / n` (Wilson 1927); (0, 1) when `n` is 0. `k` may be a sum of shares.

    Raises:
        ValueError: unless 0 <= k <= n.
    """
    if not 0 <= k <= n:
        raise ValueError(f"a proportion needs 0 <= k <= n, got k={k}, n={n}")
    if n == 0:
        return 0.0, 1.0
    return _wilson_of_rate(k / n, n, z)


def _wilson_of_rate(p: float, n: float, z: float) -> tuple[float, float]:
    zz = z * z
    centre = (p + zz / (2 * n)) / (1 + zz / n)
    half = z / (1 + zz / n) * math.sqrt(p * (1 - p) / n + zz / (4 * n * n))
    # At 0 and 1 one end is exactly that, which rounding would miss by 1e-17.
    low = 0.0 if p == 0 else max(0.0, centre - half)
    high = 1.0 if p == 1 else min(1.0, centre + half)
    return low, high


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the mean of per-problem values in [0, 1], such as pass rates over k samples of each problem.

    Problems, not samples, are independent. Wilson's interval for as many trials as would give the mean the standard
    error that the values show, with Student's quantile (Korn & Graubard 1998, Survey Methodology 24:193; compared by
    Dean & Pagano 2015, J. Surv. Stat. Methodol. 3:484). With 15 to 64 problems and rates near 0 or 1 the plain
    mean +- 1.96 standard errors holds the truth in 75 to 93 % of cases, this one in 92 to 98 % (`benchmarks/power.py`); with
    hundreds of problems the two agree. Values that are all equal show no error:
    then it is Wilson's interval for as many problems.

    Raises:
        ValueError: without values, or with one outside [0, 1].
    """
    n = len(values)
    if not n or min(values) < 0 or max(values) > 1:
        raise ValueError("an interval of a mean needs values, all between 0 and 1")
    mean = min(1.0, math.fsum(values) / n)
    variance = math.fsum((v - mean) ** 2 for v in values) / (n - 1) if n > 1 else 0.0
    if variance < 1e-18 or not 0 < mean < 1:
        return _wilson_of_rate(mean, n, Z_95)
    return _wilson_of_rate(mean, mean * (1 - mean) * n / variance, _student_95(n - 1))


def _student_95(degrees: int) -> float:
    """Two-sided 95 % quantile of Student's t; from 3 degrees of freedom within 2 % (Abramowitz & Stegun 26.7.5)."""
    z = Z_95
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / degrees ** (i + 1) for i, term in enumerate(terms))


def pass_at_k(n: int, right: int, k: int) -> float:
    """Probability that at least one of k samples is right, unbiased, from `right` of n samples (Chen et al. 2021,
    arXiv 2107.03374, eq. 1): 1 - C(n - right, k) / C(n, k).

    Raises:
        ValueError: unless 0 <= right <= n and 1 <= k <= n.
    """
    if not (0 <= right <= n and 1 <= k <= n):
        raise ValueError(f"pass@{k} needs 1 <= k <= n and 0 <= right <= n, got n={n}, right={right}")
    return 1 - math.comb(n - right, k) / math.comb(n, k)


def half_tail(k: int, n: int) -> float:
    """P(X >= k) for X ~ Binomial(n, 1/2), exact; 1 when k <= 0."""
    if k <= 0:
        return 1.0
    return sum(math.comb(n, i) for i in range(k, n + 1)) / (1 << n)


def mcnemar_exact(gained: int, lost: int) -> float:
    """Two-sided exact p of "the two models are equally good" on paired items (McNemar 1947, binomial form).

    Under it each of the `gained + lost` differing items falls either way with probability 1/2. 1 when none differ.
    """
    _check_counts(gained, lost)
    return min(1.0, 2 * half_tail(max(gained, lost), gained + lost))


def mcnemar_worse(gained: int, lost: int) -> float:
    """One-sided exact p of "the second model is not worse": P(at least `lost` of the differing items are lost)."""
    _check_counts(gained, lost)
    return half_tail(lost, gained + lost)


def paired_loss_interval(gained: int, lost: int, n: int, z: float = Z_95) -> tuple[float, float]:
    """Score interval of the loss `(lost - gained) / n` on `n` paired items (Tango 1998, Stat. Med. 17:891).

    Unlike a normal or bootstrap interval it has a width when no item differs: its ends are then +-z^2 / (n + z^2).

    Raises:
        ValueError: negative counts, or more differing items than items.
    """
    _check_counts(gained, lost)
    if gained + lost > n:
        raise ValueError(f"{gained} gained and {lost} lost items do not fit into {n}")
    if n == 0:
        return -1.0, 1.0
    return _tango_end(gained, lost, n, z), -_tango_end(lost, gained, n, z)


def paired_bootstrap(differences: Sequence[float], seed: int, n: int = RESAMPLES) -> tuple[float, float]:
    """95 % percentile bootstrap interval of the mean of per-item differences (Efron & Tibshirani 1993, ch. 13).

    Args:
        differences: one number per item, for instance right(second) - right(first).
        seed: fixes the resampling.
        n: resamples.

    Raises:
        ValueError: without differences, or with fewer than 40 resamples (a 2.5 % tail needs one of them).
    """
    if not differences:
        raise ValueError("a bootstrap needs at least one difference")
    if n < 40:
        raise ValueError(f"a 95 % interval needs at least 40 resamples, got {n}")
    values, counts = np.unique(np.asarray(differences, dtype=float), return_counts=True)
    # How often each distinct value is drawn is all that its mean depends on.
    drawn = np.random.default_rng(seed).multinomial(len(differences), counts / counts.sum(), size=n)
    means = np.sort(drawn @ values / len(differences))
    tail = int(0.025 * n)
    return float(means[tail]), float(means[n - 1 - tail])


def sign_flip(differences: Sequence[float], seed: int, n: int = RESAMPLES) -> tuple[float, float]:
    """(two-sided p of "no difference", one-sided p of "the mean is not above 0"), by flipping signs at random.

    If two models are alike, every per-item difference could as well have the other sign. For right-or-wrong items this
    is McNemar's test; it also takes differences of pass rates. The observed order counts among the n + 1, so that the
    error rate holds for any n (Phipson & Smyth 2010, arXiv 1603.05766).

    Raises:
        ValueError: without differences.
    """
    if not differences:
        raise ValueError("a sign-flip test needs at least one difference")
    sizes, counts = np.unique(np.abs(np.asarray(differences, dtype=float)).round(12), return_counts=True)
    observed = math.fsum(differences)
    flips = np.random.default_rng(seed).binomial(counts, 0.5, size=(n, len(counts)))
    sums = (2 * flips - counts) @ sizes
    slack = 1e-9 * len(differences)
    two = (1 + int(np.sum(np.abs(sums) >= abs(observed) - slack))) / (n + 1)
    one = (1 + int(np.sum(sums >= observed - slack))) / (n + 1)
    return two, one


def detectable_gain(n: int, differing: float, alpha: float = 0.05, power: float = 0.8) -> float:
    """The smallest true gain in accuracy that a two-sided paired test on n items finds with this power.

    Args:
        n: items.
        differing: share of the items on which exactly one of the two models is right. The more alike the models, the
            smaller it is and the smaller the gain that shows. A gain cannot be larger than this share, so where it is
            too small for any, it is taken to be the gain itself.

    Formula of Connor 1987 (Biometrics 43:207) with a correction for continuity, one item, since the test is exact; solved
    for the gain. 1.0 when not even that would be found.
    """
    if n < 1:
        return 1.0
    upper, beta = NormalDist().inv_cdf(1 - alpha / 2), NormalDist().inv_cdf(power)

    def found(gain: float) -> bool:
        share = max(differing, gain)
        return (gain - 1 / n) * math.sqrt(n) >= upper * math.sqrt(share) + beta * math.sqrt(
            max(0.0, share - gain * gain)
        )

    if not found(1.0):
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if found(middle) else (middle, high)
    return high


def _tango_end(gained: int, lost: int, n: int, z: float) -> float:
    """The lower end of Tango's interval: the smallest loss that a score test with quantile `z` does not reject."""
    estimate = (lost - gained) / n
    low, high = -1.0, estimate
    for _ in range(60):
        middle = (low + high) / 2
        if _tango_score(gained, lost, n, middle) > z:
            low = middle
        else:
            high = middle
    return high


def _tango_score(gained: int, lost: int, n: int, loss: float) -> float:
    """Score statistic of "the true loss is `loss`": distance over its standard error at the restricted estimate."""
    a = 2 * n
    b = -lost - gained + (2 * n - lost + gained) * loss
    c = -gained * loss * (1 - loss)
    gained_share = (math.sqrt(max(0.0, b * b - 4 * a * c)) - b) / (2 * a)
    variance = n * (2 * gained_share + loss * (1 - loss))
    distance = lost - gained - n * loss
    if variance <= 0:
        return 0.0 if distance == 0 else math.copysign(math.inf, distance)
    return distance / math.sqrt(variance)


def _check_counts(gained: int, lost: int) -> None:
    if gained < 0 or lost < 0:
        raise ValueError(f"counts cannot be negative: gained={gained}, lost={lost}")
