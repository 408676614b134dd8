"""What the evaluation found, for the report: rates with intervals, paired differences, pass rates, problems that flipped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.evaluate.scores import compare
from tasks.report.run_files import RunFiles, having, number

MODELS = (("evaluate_base", "base"), ("evaluate_sft", "sft"), ("evaluate_grpo", "grpo"))
RATES = ("strict", "pass_at_1", "lenient", "format")
HELD_OUT = "held_out"
ITEM = ("id", "question", "answer", "completion", "right", "lenient", "well_formed")
MAX_FLIPS = 6
MAX_BARS = 11
"""A pass rate of more than ten samples is drawn in ten bars."""

Items = Sequence[Mapping[str, Any]]


def evaluated(run: RunFiles) -> list[dict[str, Any]]:
    """Per set of problems, the held-out one first: `name`, `scores`, `differences`, `pass_rates` and `flips` (SFT to GRPO)."""
    names = sorted({name for stage, _ in MODELS for name in _other_sets(run, stage)})
    found = []
    for name in (HELD_OUT, *names):
        scores = scores_of(run, name)
        if not scores:
            continue
        items = items_of(run, name, sample_counts(scores))
        both = "sft" in items and "grpo" in items
        found.append(
            {
                "name": name,
                "scores": scores,
                "differences": differences(items),
                "pass_rates": pass_rates(items),
                "flips": flips(items["sft"], items["grpo"]) if both else None,
            }
        )
    return found


def _other_sets(run: RunFiles, stage: str) -> Mapping[str, Any]:
    sets = run.metrics(stage).get("sets")
    return sets if isinstance(sets, Mapping) else {}


def scores_of(run: RunFiles, name: str = HELD_OUT) -> list[dict[str, Any]]:
    """Per model that was evaluated on a set: `model`, its `rates` by name (each with rate, low, high, n), its `passes` (pass@k by k,
    and maj@k), and the other numbers of its evaluation."""
    found = []
    for stage, model in MODELS:
        metrics = run.metrics(stage) if name == HELD_OUT else _other_sets(run, stage).get(name)
        if not isinstance(metrics, Mapping):
            continue
        rates = {key: metrics[key] for key in RATES if is_rate(metrics.get(key))}
        if "strict" in rates:
            rest = {key: value for key, value in metrics.items() if key not in rates}
            found.append({"model": model, "rates": rates, "passes": _passes(metrics), **rest})
    return found


def _passes(metrics: Mapping[str, Any]) -> list[dict[str, Any]]:
    """pass@k by k, then maj@k; of a model that was sampled."""
    by_k = metrics.get("pass_at_k")
    found = [
        {"name": f"pass@{k}", **rate}
        for k, rate in (by_k.items() if isinstance(by_k, Mapping) else ())
        if is_rate(rate)
    ]
    majority = metrics.get("maj_at_k")
    if isinstance(majority, Mapping) and is_rate(majority):
        found.append({"name": f"maj@{majority.get('k', 'k')}", **majority})
    return found


def is_rate(value: Any) -> bool:
    """Whether this is a proportion with its interval."""
    return isinstance(value, Mapping) and all(number(value.get(key)) is not None for key in ("rate", "low", "high"))


def sample_counts(scores: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Samples per problem behind pass@1, by model."""
    counts = {item["model"]: number(item["rates"].get("pass_at_1", {}).get("samples")) for item in scores}
    return {model: int(count) for model, count in counts.items() if count}


def items_of(run: RunFiles, name: str, samples: Mapping[str, int]) -> dict[str, list[dict[str, Any]]]:
    """Rows of a set's items.jsonl by model. `samples` are for rows of older versions, which do not hold their number."""
    path = "items.jsonl" if name == HELD_OUT else f"sets/{name}/items.jsonl"
    found = {}
    for stage, model in MODELS:
        rows = having(run.rows(stage, path), *ITEM)
        if model in samples:
            rows = [{"samples": samples[model], **row} if "sampled_right" in row else row for row in rows]
        if rows:
            found[model] = rows
    return found


def differences(items: Mapping[str, Items]) -> list[dict[str, Any]]:
    """Paired differences between the models of one run, in reading order; models without a common problem are left out."""
    pairs = (("base", "sft"), ("sft", "grpo"), ("base", "grpo"))
    found = [{"before": a, "after": b, **difference(items[a], items[b])} for a, b in pairs if a in items and b in items]
    return [item for item in found if item["n"]]


def difference(before: Items, after: Items) -> dict[str, Any]:
    """`evaluate.scores.compare`, and `gains`: its gains by name, each with gain, low and high (95 %), in reading order."""
    found = compare(before, after)
    if not found["n"]:
        return found
    gains = {"strict": _gain(found["strict_gain"], found["strict_interval"])}
    if "pass_at_1" in found:
        gains["pass_at_1"] = {key: found["pass_at_1"][key] for key in ("gain", "low", "high")}
    gains["ability"] = _gain(found["ability_gain"], found["ability_interval"])
    gains["format_part"] = _gain(found["format_gain"], found["bootstrap"]["format_gain"])
    return {**found, "gains": gains}


def _gain(gain: float, interval: Sequence[float]) -> dict[str, float]:
    return {"gain": gain, "low": interval[0], "high": interval[1]}


def pass_rates(items: Mapping[str, Items]) -> dict[str, Any] | None:
    """How many problems each model solves in 0, 1, ... of its samples; None when nothing was sampled, or not equally often.

    Returns:
        `labels` of the bars, `models` (name -> problems per bar), `n` and `samples`.
    """
    solved: dict[str, list[int]] = {}
    sizes = set()
    for model, rows in items.items():
        for row in rows:
            hits, k = number(row.get("sampled_right")), number(row.get("samples"))
            if hits is not None and k:
                solved.setdefault(model, []).append(int(hits))
                sizes.add(int(k))
    if len(sizes) != 1:
        return None
    (k,) = sizes
    models = {model: histogram(hits, k) for model, hits in solved.items()}
    return {"labels": histogram_labels(k), "models": models, "n": max(map(len, solved.values())), "samples": k}


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
