"""Small exact statistics, standard library only: intervals of a proportion, and tests on paired items.

Paired means: the same problems answered by two models. `lost` counts problems that only the first model got right,
`gained` those that only the second got right; problems on which both agree carry no information about a difference.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

Z_95 = 1.959964
"""Two-sided 95 % quantile of the standard normal distribution."""


def wilson(k: int, n: int, z: float = Z_95) -> tuple[float, float]:
    """Wilson score interval of a proportion `k / n` (Wilson 1927); (0, 1) when `n` is 0.

    Raises:
        ValueError: unless 0 <= k <= n.
    """
    if not 0 <= k <= n:
        raise ValueError(f"a proportion needs 0 <= k <= n, got k={k}, n={n}")
    if n == 0:
        return 0.0, 1.0
    p, zz = k / n, z * z
    centre = (p + zz / (2 * n)) / (1 + zz / n)
    half = z / (1 + zz / n) * math.sqrt(p * (1 - p) / n + zz / (4 * n * n))
    # At k = 0 and k = n one end is exactly 0 or 1, which rounding would miss by 1e-17.
    low = 0.0 if k == 0 else max(0.0, centre - half)
    high = 1.0 if k == n else min(1.0, centre + half)
    return low, high


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


def paired_bootstrap(differences: Sequence[float], seed: int, n: int = 10_000) -> tuple[float, float]:
    """95 % percentile bootstrap interval of the mean of per-item differences.

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
    generator = random.Random(seed)
    size = len(differences)
    means = sorted(sum(generator.choices(differences, k=size)) / size for _ in range(n))
    tail = int(0.025 * n)
    return means[tail], means[n - 1 - tail]


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
