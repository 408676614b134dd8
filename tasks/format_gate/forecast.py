"""How many groups would be dead (all right or all wrong) at another group size G, from few completions per prompt.

With pass rate p a group of G is dead with probability p^G + (1-p)^G. Putting the measured r/n in the place of p is wrong: at n = 8 a
prompt of p = 0.1 shows r = 0 in 43 % of the cases and would then count as dead for ever. So:

- G <= n: the share of the G-subsets of the n completions that are all right or all wrong,
  (C(r,G) + C(n-r,G)) / C(n,G), averaged over prompts. It is unbiased (a U-statistic, Hoeffding 1948), as pass@k is (arXiv 2107.03374).
- G > n: no unbiased estimator exists (the target is a polynomial in p of a degree above n). A beta distribution of pass rates is fitted
  by maximum likelihood to the counts (beta-binomial), and E[p^G + (1-p)^G] under it is given.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

SIZES = (2, 4, 8, 16, 32, 64)
"""Group sizes for which a forecast is made, beside the configured one."""
STRENGTHS = (0.02, 2000.0)
"""Bounds of a + b in the fit: below, all pass rates are 0 or 1; above, they are all equal."""


def dead_in_subsets(right: int, n: int, size: int) -> float:
    """Probability that `size` of the `n` completions of a prompt, `right` of which are right, are all right or all wrong."""
    if not 1 <= size <= n or not 0 <= right <= n:
        raise ValueError(f"needs 1 <= size <= n and 0 <= right <= n, got right={right}, n={n}, size={size}")
    return (math.comb(right, size) + math.comb(n - right, size)) / math.comb(n, size)


def dead_under_beta(a: float, b: float, size: int) -> float:
    """E[p^size + (1-p)^size] for p ~ Beta(a, b)."""
    return _moment(a, b, size) + _moment(b, a, size)


def _moment(a: float, b: float, size: int) -> float:
    """E[p^size] for p ~ Beta(a, b): B(a + size, b) / B(a, b)."""
    return math.exp(math.lgamma(a + size) - math.lgamma(a) + math.lgamma(a + b) - math.lgamma(a + b + size))


def fit_beta(counts: Mapping[int, int], n: int) -> tuple[float, float]:
    """(a, b) of the beta-binomial that makes the observed counts likeliest.

    Args:
        counts: right completions of a prompt (0 to n) -> number of such prompts.
        n: completions per prompt.

    With nothing right (or all), the mean is held half a completion away from the edge.
    """
    total = sum(counts.values()) * n
    edge = 1 / (2 * total)

    def likelihood(mean: float, strength: float) -> float:
        a, b = mean * strength, (1 - mean) * strength
        constant = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) - math.lgamma(a + b + n)
        return sum(m * (math.lgamma(a + r) + math.lgamma(b + n - r) + constant) for r, m in counts.items())

    def best_mean(strength: float) -> float:
        logit = _maximum(lambda x: likelihood(_share(x), strength), _logit(edge), _logit(1 - edge))
        return _share(logit)

    def profile(log_strength: float) -> float:
        strength = math.exp(log_strength)
        return likelihood(best_mean(strength), strength)

    low, high = (math.log(bound) for bound in STRENGTHS)
    # The profile may have a flat far end, so the best of a grid is refined, not the whole range.
    grid = [low + (high - low) * i / 24 for i in range(25)]
    peak = max(range(25), key=lambda i: profile(grid[i]))
    strength = math.exp(_maximum(profile, grid[max(0, peak - 1)], grid[min(24, peak + 1)]))
    mean = best_mean(strength)
    return mean * strength, (1 - mean) * strength


def _logit(share: float) -> float:
    return math.log(share / (1 - share))


def _share(logit: float) -> float:
    return 1 / (1 + math.exp(-logit))


def _maximum(function: Callable[[float], float], low: float, high: float, steps: int = 40) -> float:
    """Where a function with one peak between `low` and `high` is largest (golden section)."""
    ratio = (math.sqrt(5) - 1) / 2
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    at_left, at_right = function(left), function(right)
    for _ in range(steps):
        if at_left < at_right:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = function(right)
        else:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = function(left)
    return (low + high) / 2


def forecast(rights: Sequence[int], n: int, sizes: Sequence[int] = SIZES) -> dict[str, dict[str, Any]]:
    """Forecast share of dead groups per group size.

    Args:
        rights: right completions of each prompt, out of `n`.
        sizes: group sizes.

    Returns:
        size (as text) -> `dead` and how it was worked out: `subsets` with the standard error over prompts, or `beta_binomial`.
    """
    if not rights:
        return {}
    found: dict[str, dict[str, Any]] = {}
    beta: tuple[float, float] | None = None
    for size in sorted(set(sizes)):
        if size <= n:
            shares = [dead_in_subsets(right, n, size) for right in rights]
            mean = sum(shares) / len(shares)
            spread = sum((share - mean) ** 2 for share in shares) / max(1, len(shares) - 1)
            found[str(size)] = {
                "dead": mean,
                "method": "subsets",
                "standard_error": math.sqrt(spread / len(shares)) if len(shares) > 1 else None,
            }
        else:
            beta = beta or fit_beta(Counter(rights), n)
            found[str(size)] = {
                "dead": min(1.0, dead_under_beta(*beta, size)),
                "method": "beta_binomial",
                "standard_error": None,
            }
    return found


def serving_size(found: Mapping[str, Mapping[str, Any]], wanted: float) -> int | None:
    """The smallest group size whose forecast share of dead groups is at most `wanted`; None when none is."""
    return min((int(size) for size, item in found.items() if item["dead"] <= wanted), default=None)
