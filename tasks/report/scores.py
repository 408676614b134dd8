"""What the evaluation found, for the report: rates with intervals, paired differences, pass rates, problems that flipped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.evaluate.scores import compare
from tasks.report.run_files import RunFiles, having, number
from tasks.statistics import Z_95, paired_loss_interval

MODELS = (("evaluate_base", "base"), ("evaluate_sft", "sft"), ("evaluate_grpo", "grpo"))
RATES = ("strict", "pass_at_1", "lenient", "format")
ITEM = ("id", "question", "answer", "completion", "right", "lenient")
MAX_FLIPS = 6
MAX_BARS = 11
"""A pass rate of more than ten samples is drawn in ten bars."""

Items = Sequence[Mapping[str, Any]]


def scores_of(run: RunFiles) -> list[dict[str, Any]]:
    """Per model: `model`, its `rates` by name (each with rate, low, high, n), and the other numbers of its evaluation."""
    found = []
    for stage, model in MODELS:
        metrics = run.metrics(stage)
        rates = {name: metrics[name] for name in RATES if is_rate(metrics.get(name))}
        if rates:
            found.append({"model": model, "rates": rates, **{k: v for k, v in metrics.items() if k not in rates}})
    return found


def is_rate(value: Any) -> bool:
    """Whether this is a proportion with its interval."""
    return isinstance(value, Mapping) and all(number(value.get(key)) is not None for key in ("rate", "low", "high"))


def items_of(run: RunFiles) -> dict[str, list[dict[str, Any]]]:
    """Rows of items.jsonl by model."""
    found = {model: having(run.rows(stage, "items.jsonl"), *ITEM) for stage, model in MODELS}
    return {model: rows for model, rows in found.items() if rows}


def differences(items: Mapping[str, Items], samples: Mapping[str, int]) -> list[dict[str, Any]]:
    """Paired differences between the models of one run, in reading order."""
    pairs = (("base", "sft"), ("sft", "grpo"), ("base", "grpo"))
    return [
        {"before": a, "after": b, **difference(items[a], items[b], samples.get(a, 0), samples.get(b, 0))}
        for a, b in pairs
        if a in items and b in items
    ]


def difference(before: Items, after: Items, before_samples: int = 0, after_samples: int = 0) -> dict[str, Any]:
    """A paired comparison: `evaluate.scores.compare`, and gains with 95 % intervals.

    Returns:
        `n` (0: no item in common), and then also `gains`: by name, a dict of gain, low, high. Strict and lenient intervals
        are Tango's for paired proportions; that of pass@1 is normal over per-problem differences (Miller 2024,
        arXiv 2411.00640, paired and clustered by problem).
    """
    result = compare(before, after)
    if not result["n"]:
        return result
    old = {item["id"]: item for item in before}
    pairs = [(old[item["id"]], item) for item in after if item["id"] in old]
    gains = {}
    for name, key in (("strict", "right"), ("lenient", "lenient"), ("format", "well_formed")):
        if all(key in a and key in b for a, b in pairs):
            gains[name] = paired_gain([(bool(a[key]), bool(b[key])) for a, b in pairs])
    if before_samples and after_samples:
        rates = [
            (a["sampled_right"] / before_samples, b["sampled_right"] / after_samples)
            for a, b in pairs
            if number(a.get("sampled_right")) is not None and number(b.get("sampled_right")) is not None
        ]
        if len(rates) > 1:
            gains["pass_at_1"] = mean_gain([b - a for a, b in rates])
    return {**result, "gains": gains}


def paired_gain(pairs: Sequence[tuple[bool, bool]]) -> dict[str, float]:
    """Difference of two paired proportions, second minus first, with Tango's 95 % interval."""
    gained = sum(b and not a for a, b in pairs)
    lost = sum(a and not b for a, b in pairs)
    low, high = paired_loss_interval(gained, lost, len(pairs))
    return {"gain": (gained - lost) / len(pairs), "low": -high, "high": -low}


def mean_gain(values: Sequence[float]) -> dict[str, float]:
    """Mean of per-problem differences with its normal 95 % interval."""
    n = len(values)
    mean = sum(values) / n
    half = Z_95 * (sum((value - mean) ** 2 for value in values) / (n - 1) / n) ** 0.5
    return {"gain": mean, "low": mean - half, "high": mean + half}


def sample_counts(scores: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Samples per problem behind pass@1, by model."""
    counts = {item["model"]: number(item["rates"].get("pass_at_1", {}).get("samples")) for item in scores}
    return {model: int(count) for model, count in counts.items() if count}


def pass_rates(items: Mapping[str, Items], samples: Mapping[str, int]) -> dict[str, Any] | None:
    """How many problems each model solves in 0, 1, ... of its samples; None when nothing was sampled.

    Returns:
        `labels` of the bars, `models` (name -> problems per bar) and `n`.
    """
    counts: dict[str, list[int]] = {}
    for model, k in samples.items():
        hits = [number(item.get("sampled_right")) for item in items.get(model, ())]
        solved = [int(hit) for hit in hits if hit is not None]
        if solved:
            counts[model] = histogram(solved, k)
    sizes = {samples[model] for model in counts}
    if len(sizes) != 1:
        return None
    (k,) = sizes
    return {"labels": histogram_labels(k), "models": counts, "n": sum(next(iter(counts.values()))), "samples": k}


def histogram(solved: Sequence[int], samples: int) -> list[int]:
    """Problems per bar: one bar for every count up to `MAX_BARS`, else ten tenths, 0 % and 100 % within the outer ones."""
    bars = samples + 1 if samples < MAX_BARS else 10
    counts = [0] * bars
    for hits in solved:
        at = hits if samples < MAX_BARS else min(9, hits * 10 // samples)
        counts[min(max(at, 0), bars - 1)] += 1
    return counts


def histogram_labels(samples: int) -> list[str]:
    """What stands below the bars of `histogram`."""
    if samples < MAX_BARS:
        return [f"{i}/{samples}" for i in range(samples + 1)]
    return [f"{10 * i}–{10 * i + 10}%" for i in range(10)]


def flips(before: Items, after: Items) -> dict[str, Any]:
    """Problems whose strict verdict changed, a few of each direction, with both completions."""
    old = {item["id"]: item for item in before}
    pairs = [(old[item["id"]], item) for item in after if item["id"] in old]
    changed: dict[str, Any] = {}
    for name, wanted in (("gained", (False, True)), ("lost", (True, False))):
        chosen = [(a, b) for a, b in pairs if (bool(a["right"]), bool(b["right"])) == wanted]
        changed[name] = [
            {"question": b["question"], "answer": b["answer"], "before": _shown(a), "after": _shown(b)}
            for a, b in chosen[:MAX_FLIPS]
        ]
        changed[f"{name}_total"] = len(chosen)
    return changed


def _shown(item: Mapping[str, Any]) -> dict[str, Any]:
    kind = item.get("kind") or ("right" if item.get("right") else "wrong")
    return {"completion": item.get("completion", ""), "kind": kind, "tokens": item.get("tokens")}
