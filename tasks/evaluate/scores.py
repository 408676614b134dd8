"""Accuracies with their intervals, and paired comparisons of two models on the same items. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.statistics import Z_95, mcnemar_exact, wilson


def rate(hits: int, n: int) -> dict[str, Any]:
    """A proportion with its Wilson 95 % interval."""
    low, high = wilson(hits, n)
    return {"hits": hits, "n": n, "rate": hits / n, "low": low, "high": high}


def pass_at_1(hits: Sequence[int], samples: int) -> dict[str, Any]:
    """Mean pass rate over problems, with a 95 % interval that treats problems, not samples, as independent.

    The standard error is that of the mean of per-problem rates (Miller 2024, arXiv 2411.00640, clustered by problem).
    Where all problems have one rate it is 0 and says nothing; then the interval is Wilson's for as many problems.
    """
    n = len(hits)
    rates = [h / samples for h in hits]
    mean = sum(rates) / n
    # z grows by sqrt(samples) so that n x samples trials count as n.
    low, high = wilson(sum(hits), n * samples, Z_95 * samples**0.5)
    if len(set(rates)) > 1:
        half = Z_95 * (sum((r - mean) ** 2 for r in rates) / (n - 1) / n) ** 0.5
        low, high = max(0.0, mean - half), min(1.0, mean + half)
    return {"rate": mean, "n": n, "samples": samples, "low": low, "high": high}


def score(items: Sequence[Mapping[str, Any]], samples: int) -> dict[str, Any]:
    """Scores of one model: strict (the format contract), lenient (any final answer), format, truncation, length."""
    n = len(items)
    scores: dict[str, Any] = {
        "strict": rate(sum(bool(item["right"]) for item in items), n),
        "lenient": rate(sum(bool(item["lenient"]) for item in items), n),
        "format": rate(sum(bool(item["well_formed"]) for item in items), n),
        "truncated": sum(bool(item["truncated"]) for item in items) / n,
        "mean_tokens": sum(item["tokens"] for item in items) / n,
    }
    if samples:
        scores["pass_at_1"] = pass_at_1([item["sampled_right"] for item in items], samples)
    return scores


def compare(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Paired strict comparison on the items that both have, with McNemar's exact two-sided p.

    The strict gain is split: what lenient scoring also shows is *ability*, the rest is *format*.
    """
    old = {item["id"]: item for item in before}
    pairs = [(old[item["id"]], item) for item in after if item["id"] in old]
    if not pairs:
        return {"n": 0}
    gained = sum(not a["right"] and b["right"] for a, b in pairs)
    lost = sum(a["right"] and not b["right"] for a, b in pairs)
    n = len(pairs)
    strict = (gained - lost) / n
    ability = sum(int(b["lenient"]) - int(a["lenient"]) for a, b in pairs) / n
    return {
        "n": n,
        "gained": gained,
        "lost": lost,
        "p": mcnemar_exact(gained, lost),
        "strict_gain": strict,
        "ability_gain": ability,
        "format_gain": strict - ability,
    }
