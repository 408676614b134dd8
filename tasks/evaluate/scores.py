"""Accuracies with their intervals, and paired comparisons of two models on the same items. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pipeline_config.evaluation import HELD_OUT
from tasks.evaluate.behaviour import totals
from tasks.statistics import (
    detectable_gain,
    mcnemar_exact,
    mean_interval,
    paired_bootstrap,
    paired_loss_interval,
    pass_at_k,
    sign_flip,
    wilson,
)

Verdict = Literal["better", "worse", "no_difference"]
Item = Mapping[str, Any]

ALPHA = 0.05
"""Two-sided error rate of a comparison: how often two models that do not differ are called different, at most."""
SEED = 0
"""Of the bootstrap and the sign-flip test, so that the same items always give the same numbers."""


def rate(hits: int, n: int) -> dict[str, Any]:
    """A proportion with its Wilson 95 % interval."""
    low, high = wilson(hits, n)
    return {"hits": hits, "n": n, "rate": hits / n, "low": low, "high": high}


def mean_rate(values: Sequence[float], samples: int) -> dict[str, Any]:
    """Mean of per-problem values in [0, 1] with its 95 % interval; problems, not samples, are independent."""
    low, high = mean_interval(values)
    return {"rate": sum(values) / len(values), "n": len(values), "samples": samples, "low": low, "high": high}


def pass_at_1(hits: Sequence[int], samples: int) -> dict[str, Any]:
    """Mean pass rate over problems (Miller 2024, arXiv 2411.00640, clusters samples by problem in the same way)."""
    return mean_rate([h / samples for h in hits], samples)


def ks_of(samples: int) -> list[int]:
    """The k of pass@k that are reported: powers of two below the number of samples, and that number."""
    return sorted({1 << i for i in range(samples.bit_length()) if 1 << i < samples} | {samples})


def score(items: Sequence[Item], samples: int) -> dict[str, Any]:
    """Scores of one model on one set.

    Returns:
        `strict` (the format contract), `lenient` (any final answer), `format`: with Wilson intervals. `truncated` and
        `mean_tokens`: plain numbers; `truncation`: with its interval. With samples: `pass_at_1` (strict),
        `pass_at_1_lenient`, `pass_at_k` by k and `maj_at_k`. When items carry `behaviour`: its totals. When items carry
        `contaminated`: `overlapping`, the same accuracies on only those that are, and `clean`, on the others; `clean` is
        left out when it would be everything.
    """
    n = len(items)
    scores = _accuracies(items, samples)
    scores |= {
        "format": rate(sum(bool(item["well_formed"]) for item in items), n),
        "truncated": sum(bool(item["truncated"]) for item in items) / n,
        "truncation": rate(sum(bool(item["truncated"]) for item in items), n),
        "mean_tokens": sum(item["tokens"] for item in items) / n,
    }
    if all("behaviour" in item for item in items):
        scores["behaviour"] = totals(items)
    if all("contaminated" in item for item in items):
        dirty = [item for item in items if item["contaminated"]]
        scores["overlapping"] = {"n": len(dirty), **(_accuracies(dirty, samples) if dirty else {})}
        if dirty:
            clean = [item for item in items if not item["contaminated"]]
            scores["clean"] = {"n": len(clean), **(_accuracies(clean, samples) if clean else {})}
    return scores


def _accuracies(items: Sequence[Item], samples: int) -> dict[str, Any]:
    n = len(items)
    found: dict[str, Any] = {
        "strict": rate(sum(bool(item["right"]) for item in items), n),
        "lenient": rate(sum(bool(item["lenient"]) for item in items), n),
    }
    if samples:
        found["pass_at_1"] = pass_at_1([item["sampled_right"] for item in items], samples)
        if all("majority" in item for item in items):
            found["pass_at_1_lenient"] = pass_at_1([item["sampled_lenient"] for item in items], samples)
            found["maj_at_k"] = {"k": samples, **mean_rate([item["majority"] for item in items], samples)}
        found["pass_at_k"] = {
            str(k): mean_rate([pass_at_k(samples, item["sampled_right"], k) for item in items], samples)
            for k in ks_of(samples)
        }
    return found


def sets_of(scores: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Scores by name of the set, the held-out one first, of what an evaluation stage reports."""
    held_out = {key: value for key, value in scores.items() if key != "sets"}
    return {HELD_OUT: held_out, **scores.get("sets", {})}


def compare(before: Sequence[Item], after: Sequence[Item], alpha: float = ALPHA) -> dict[str, Any]:
    """Paired comparison on the items that both have.

    Strict and lenient greedy accuracy by McNemar's exact two-sided test. The strict gain is split: what lenient scoring
    also shows is *ability*, the rest is *format*. Intervals (95 %): of the strict and the lenient gain Tango's score
    interval, which has a width even when no item differs; of all three the paired bootstrap. When both were sampled, the
    gain in pass@1 by a sign-flip test over problems.

    Returns:
        `n`, `gained`, `lost`, `p`, `verdict`, `strict_gain`, `ability_gain`, `format_gain`, `strict_interval`,
        `ability_interval`, `bootstrap` (interval by name of the gain), `lenient` (the same test), `detectable_gain` (the
        true gain that these items would have shown with 80 % power), with samples `pass_at_1`, and, when items are marked
        as contaminated, `clean`: the comparison without them. Only `n`, 0, when no item is common.
    """
    old = {item["id"]: item for item in before}
    pairs = [(old[item["id"]], item) for item in after if item["id"] in old]
    if not pairs:
        return {"n": 0}
    found = _compare(pairs, alpha)
    dirty = [bool(a.get("contaminated") or b.get("contaminated")) for a, b in pairs]
    if any(dirty):
        clean = [pair for pair, overlaps in zip(pairs, dirty, strict=True) if not overlaps]
        found["clean"] = _compare(clean, alpha) if clean else {"n": 0}
    return found


def _compare(pairs: Sequence[tuple[Item, Item]], alpha: float) -> dict[str, Any]:
    n = len(pairs)
    strict = [int(b["right"]) - int(a["right"]) for a, b in pairs]
    ability = [int(b["lenient"]) - int(a["lenient"]) for a, b in pairs]
    form = [s - a for s, a in zip(strict, ability, strict=True)]
    gained, lost, p = _mcnemar(strict)
    loose_gained, loose_lost, loose_p = _mcnemar(ability)
    found: dict[str, Any] = {
        "n": n,
        "gained": gained,
        "lost": lost,
        "p": p,
        "alpha": alpha,
        "verdict": verdict(p, gained - lost, alpha),
        "strict_gain": sum(strict) / n,
        "ability_gain": sum(ability) / n,
        "format_gain": (sum(strict) - sum(ability)) / n,
        "strict_interval": _gain_interval(gained, lost, n),
        "ability_interval": _gain_interval(loose_gained, loose_lost, n),
        "bootstrap": {
            name: paired_bootstrap(values, SEED)
            for name, values in (("strict_gain", strict), ("ability_gain", ability), ("format_gain", form))
        },
        "lenient": {
            "gained": loose_gained,
            "lost": loose_lost,
            "p": loose_p,
            "verdict": verdict(loose_p, loose_gained - loose_lost, alpha),
        },
        "detectable_gain": detectable_gain(n, (gained + lost) / n, alpha),
    }
    if all(a.get("samples") and b.get("samples") for a, b in pairs):
        rates = [b["sampled_right"] / b["samples"] - a["sampled_right"] / a["samples"] for a, b in pairs]
        p, _ = sign_flip(rates, SEED)
        low, high = paired_bootstrap(rates, SEED)
        gain = sum(rates) / n
        found["pass_at_1"] = {"gain": gain, "low": low, "high": high, "p": p, "verdict": verdict(p, gain, alpha)}
    return found


def verdict(p: float, gain: float, alpha: float = ALPHA) -> Verdict:
    """`no_difference` unless the two-sided p is below alpha; then by the sign of the gain."""
    if p >= alpha or gain == 0:
        return "no_difference"
    return "better" if gain > 0 else "worse"


def _mcnemar(differences: Sequence[int]) -> tuple[int, int, float]:
    gained, lost = differences.count(1), differences.count(-1)
    return gained, lost, mcnemar_exact(gained, lost)


def _gain_interval(gained: int, lost: int, n: int) -> tuple[float, float]:
    """Tango's interval of the gain; the statistics module speaks of the loss."""
    low, high = paired_loss_interval(gained, lost, n)
    return -high, -low
