"""Two runs side by side: what was set differently, and what came of it on the same problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from artifacts.fingerprint import changed_terms
from tasks.evaluate.scores import pass_at_1, rate
from tasks.evaluate.spec import differences as spec_differences
from tasks.report import cost, scores
from tasks.report.ending import ending_of
from tasks.report.run_files import RunFiles, series

NO_RESULT = (
    "run.",
    "grpo.logging_steps",
    "sft.logging_steps",
    "grpo.save_",
    "sft.save_",
    "evaluation.batch_size",
    "export.threads",
)
"""Beginnings of settings that change no result, or none that is compared here."""
ASKED_DIFFERENTLY = ("prompt.",)
"""Parts of the spec that belong to the model that is asked, not to the ruler: each model is asked as it was trained."""
UNPAIRED = ("problems.",)
"""Parts that pairing takes care of: only problems that both runs have are compared."""
CURVES = (
    ("reward", "reward", "reward"),
    ("right", "outcomes/right", "share_completions"),
    ("dead_groups", "frac_reward_zero_std", "share_groups"),
    ("kl", "kl", "nats"),
    ("entropy", "entropy", "nats"),
    ("length", "completions/mean_length", "tokens"),
    ("truncation", "completions/clipped_ratio", "share_completions"),
    ("grad_norm", "grad_norm", ""),
)
MAX_TERMS = 40
NO_COMMON_PROBLEM, NO_COMMON_MODEL = "no_common_problem", "no_common_model"
"""Reasons against comparing that are not a line about the spec; the report has words for them."""


def compare_runs(a: RunFiles, b: RunFiles) -> dict[str, Any]:
    """Everything that the table, the page and `--json` show, as plain data.

    Returns:
        `a`, `b` (who they are and what they cost), `settings` (name, a, b, matters), `stages` (same artifact or the terms that
        differ), `sets` (per set and model: both rates, whether they are comparable and why not, the paired difference),
        `curves` (both runs' points), `rewards_differ` (their rewards are then not on one scale), `verdict` (the set, model and difference that decide, or why there is none).
    """
    sets = [_set(name, a, b) for name in _set_names(a, b)]
    differing = settings(a.record["config"], b.record["config"])
    return {
        "a": _who(a),
        "b": _who(b),
        "settings": differing,
        "stages": _stages(a, b),
        "sets": sets,
        "verdict": _verdict(sets),
        "curves": _curves(a, b),
        "rewards_differ": any(row["name"].startswith("grpo.rewards.") for row in differing),
    }


def _who(run: RunFiles) -> dict[str, Any]:
    record, rows = run.record, cost.stage_rows(run)
    return {
        "run_id": record["run_id"],
        "state": ending_of(run)["state"],
        "model": record["config"].get("model", {}).get("source"),
        "seed": record["config"].get("seed"),
        "started_at": record.get("started_at"),
        "home": str(run.home) if run.home else None,
        "cost": cost.totals(run, rows),
        "tokens": {row["stage"]: row["tokens"] for row in rows if row["tokens"]},
    }


def settings(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Settings that differ: `name`, both values (None: not set), and whether they can change a result. Those that can come first."""
    left, right = _flat(a), _flat(b)
    rows = [
        {"name": name, "a": left.get(name), "b": right.get(name), "matters": not name.startswith(NO_RESULT)}
        for name in sorted(left.keys() | right.keys())
        if left.get(name) != right.get(name)
    ]
    return sorted(rows, key=lambda row: not row["matters"])


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    """Leaves by dotted name; lists are leaves."""
    if not isinstance(value, Mapping):
        return {path: value}
    return {
        name: leaf for key, item in value.items() for name, leaf in _flat(item, f"{path}.{key}".lstrip(".")).items()
    }


def _stages(a: RunFiles, b: RunFiles) -> list[dict[str, Any]]:
    """Per stage: the same artifact, another one and the terms that made it so, or only in one run."""
    rows: list[dict[str, Any]] = []
    for name in dict.fromkeys([*a.manifests, *b.manifests]):
        first, second = a.manifests.get(name), b.manifests.get(name)
        row: dict[str, Any] = {"stage": name, "terms": []}
        if first is None or second is None:
            row["how"] = "only_a" if first else "only_b"
        elif first.fingerprint == second.fingerprint:
            row["how"] = "same"
        else:
            same_files = first.content_digest == second.content_digest
            row |= {
                "how": "same_files" if same_files else "differs",
                "terms": changed_terms(first.terms, second.terms)[:MAX_TERMS],
            }
        rows.append(row)
    return rows


def _set_names(a: RunFiles, b: RunFiles) -> list[str]:
    left, right = ([one["name"] for one in scores.evaluated(run)] for run in (a, b))
    return [name for name in left if name in right] or (left[:1] and right[:1] and [left[0]])


def _set(name: str, a: RunFiles, b: RunFiles) -> dict[str, Any]:
    """One set: per model that both runs evaluated on it, the rates, the reasons against comparing them, and the difference."""
    found = [{score["model"]: score for score in scores.scores_of(run, name)} for run in (a, b)]
    items = [
        scores.items_of(run, name, scores.sample_counts(list(by_model.values())))
        for run, by_model in zip((a, b), found, strict=True)
    ]
    models = []
    for model in found[0]:
        if model in found[1]:
            one, two = found[0][model], found[1][model]
            left, right = same_problems(items[0].get(model, []), items[1].get(model, []))
            pair = scores.difference(left, right)
            reasons, notes = ruler(one, two, a, b, model)
            if not pair["n"]:
                reasons = [NO_COMMON_PROBLEM, *reasons]
            models.append(
                {
                    "model": model,
                    # On the common problems, so that the rates belong to the difference; on all, where there are none.
                    "a": rates(left) or one["rates"],
                    "b": rates(right) or two["rates"],
                    "n": [one["rates"]["strict"].get("n"), two["rates"]["strict"].get("n")],
                    "common": pair["n"],
                    "comparable": not reasons,
                    "reasons": reasons,
                    "notes": notes,
                    "same_model": _same_model(a, b, model),
                    "difference": pair if pair["n"] and not reasons else None,
                }
            )
    return {"name": name, "models": models}


def rates(items: scores.Items) -> dict[str, Any]:
    """Strict, lenient and format rate and pass@1 over these items, with intervals; nothing without items."""
    if not items:
        return {}
    found = {
        name: rate(sum(bool(item[key]) for item in items), len(items))
        for name, key in (("strict", "right"), ("lenient", "lenient"), ("format", "well_formed"))
    }
    counts = {item.get("samples") for item in items}
    if len(counts) == 1 and (samples := counts.pop()):
        found["pass_at_1"] = pass_at_1([item["sampled_right"] for item in items], samples)
    return found


def same_problems(a: scores.Items, b: scores.Items) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """The items of both runs that ask the same question and expect the same answer."""

    def key(item: Mapping[str, Any]) -> tuple[str, str, str]:
        return str(item["id"]), str(item["question"]), str(item["answer"])

    common = {key(item) for item in a} & {key(item) for item in b}
    return [item for item in a if key(item) in common], [item for item in b if key(item) in common]


def ruler(
    one: Mapping[str, Any], two: Mapping[str, Any], a: RunFiles, b: RunFiles, model: str
) -> tuple[list[str], list[str]]:
    """(why two scores must not be compared, what a reader should know): from their specs, or from the stages' terms if an older
    version left no spec."""
    specs = one.get("spec"), two.get("spec")
    if all(isinstance(spec, Mapping) for spec in specs):
        # How completions are sampled decides nothing about the greedy scores, which the verdict is about.
        lines = spec_differences(*specs, greedy=True)  # type: ignore[arg-type]
    else:
        lines = _from_terms(a, b, f"evaluate_{model}")
    lines = [line for line in lines if not line.startswith(UNPAIRED)]
    notes = [line for line in lines if line.startswith(ASKED_DIFFERENTLY)]
    return [line for line in lines if line not in notes], notes


def _from_terms(a: RunFiles, b: RunFiles, stage: str) -> list[str]:
    def spec(run: RunFiles) -> dict[str, Any]:
        terms = run.manifests[stage].terms
        return {
            "limits": {key: terms.get(key) for key in ("max_new_tokens", "max_context")},
            "prompt": terms.get("template"),
        }

    return changed_terms(spec(a), spec(b))


def _same_model(a: RunFiles, b: RunFiles, model: str) -> bool:
    first, second = (run.manifests[f"evaluate_{model}"].terms.get("model") for run in (a, b))
    return first is not None and first == second


def _verdict(sets: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What decides: the last model of the chain that both runs have, on the first set."""
    for one in sets:
        for row in reversed(one["models"]):
            return {
                "set": one["name"],
                "model": row["model"],
                "comparable": row["comparable"],
                "reasons": row["reasons"],
                "result": row["difference"]["verdict"] if row["difference"] else None,
            }
    return {"set": None, "model": None, "comparable": False, "reasons": [NO_COMMON_MODEL], "result": None}


def _curves(a: RunFiles, b: RunFiles) -> list[dict[str, Any]]:
    rows = [run.rows("grpo", "metrics.jsonl") for run in (a, b)]
    found = []
    for key, name, unit in CURVES:
        lines = [(side, series(part, name)) for side, part in zip(("a", "b"), rows, strict=True)]
        if any(len(points) >= 2 for _, points in lines):
            found.append({"key": key, "unit": unit, "lines": [(side, points) for side, points in lines if points]})
    return found
