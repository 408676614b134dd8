"""What the format gate saw, for the report: every rate beside its threshold, kinds of completions, telling samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from pipeline_config.gate import GateSettings
from tasks.format_gate.verdict import decide
from tasks.report.run_files import RunFiles, having, number
from tasks.statistics import Z_95, wilson

SAMPLE = ("question", "answer", "completion", "kind")
MAX_SAMPLES, MAX_FORMS = 6, 4
ROWS = (
    # name, key of the rate, key of what is counted, threshold in GateSettings, which side is wanted
    ("format", "format_rate", "completions", "min_format_rate", "above"),
    ("truncation", "truncation_rate", "completions", "max_truncation_rate", "below"),
    ("dead_groups", "dead_groups", "prompts", "max_dead_groups", "below"),
    ("pass_at_1", "pass_at_1", "completions", "", ""),
    ("pass_at_group", "pass_at_group", "prompts", "", ""),
)


def gate_of(run: RunFiles) -> dict[str, Any] | None:
    """The gate's rates with Wilson intervals and thresholds, its verdict, and samples; None when it did not end."""
    measured = run.metrics("format_gate")
    if not measured:
        return None
    settings = _settings(run.record)
    verdict, evidence, fix = _decision(measured, settings)
    return {
        "verdict": verdict,
        "evidence": evidence,
        "fix": fix,
        "prompts": measured.get("prompts"),
        "completions": measured.get("completions"),
        "rows": _rows(measured, settings),
        "kinds": _kinds(measured.get("kinds")),
        "rounds": _rounds(run.record),
        "looks": measured.get("looks") if measured.get("stopped_early") else None,
        "forecast": _forecast(measured),
        "tags": _tags(run.json("format_gate", "gate.json") or measured),
        "components": _components(measured.get("components")),
        "samples": telling(having(run.rows("format_gate", "samples.jsonl"), *SAMPLE), verdict != "go"),
    }


def _settings(record: Mapping[str, Any]) -> GateSettings | None:
    try:
        return GateSettings.model_validate(record["config"]["gate"])
    except (ValidationError, KeyError):  # a record of another version
        return None


def _decision(measured: dict[str, Any], settings: GateSettings | None) -> tuple[str, str, str]:
    if settings is None:
        return "", "", ""
    try:
        verdict, evidence, fix = decide(measured, settings)
    except KeyError:  # measured by another version
        return "", "", ""
    return verdict, evidence, fix


def _rows(measured: Mapping[str, Any], settings: GateSettings | None) -> list[dict[str, Any]]:
    rows = []
    for name, key, counted, threshold, side in ROWS:
        rate, n = number(measured.get(key)), number(measured.get(counted))
        if rate is None or not n:
            continue
        low, high = number(measured.get(f"{key}_low")), number(measured.get(f"{key}_high"))
        if low is None or high is None:
            low, high = wilson(min(round(rate * n), int(n)), int(n))
        limit = number(getattr(settings, threshold, None)) if threshold else None
        # The gate itself compares the lower bound of the format rate, and the other rates as they are.
        judged = low if side == "above" else rate
        held = None if limit is None else (judged >= limit if side == "above" else judged <= limit)
        rows.append(
            {
                "name": name,
                "rate": rate,
                "low": low,
                "high": high,
                "n": int(n),
                "limit": limit,
                "side": side,
                "held": held,
            }
        )
    return rows


def _kinds(kinds: Any) -> list[tuple[str, int]]:
    """Kinds of completions with their counts, `right` first, then the most frequent."""
    if not isinstance(kinds, Mapping):
        return []
    counts = [(str(kind), int(count)) for kind, count in kinds.items() if number(count)]
    return sorted(counts, key=lambda item: (item[0] != "right", -item[1], item[0]))


def _rounds(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the gate saw after each round of SFT that it asked for; none when it looked once."""
    looks = record.get("gate")
    rounds = [
        {"rounds": look.get("sft_rounds"), "verdict": str(look.get("verdict")), "evidence": str(look.get("evidence"))}
        for look in (looks if isinstance(looks, Sequence) else ())
        if isinstance(look, Mapping)
    ]
    return rounds if len(rounds) > 1 else []


def _forecast(measured: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Expected share of dead groups by group size, smallest first, with twice the standard error where there is one."""
    rows = []
    found = measured.get("forecast")
    for size, item in found.items() if isinstance(found, Mapping) else ():
        dead = number(item.get("dead")) if isinstance(item, Mapping) else None
        if dead is None or not str(size).isdigit():
            continue
        error = number(item.get("standard_error")) or 0.0
        low, high = max(0.0, dead - Z_95 * error), min(1.0, dead + Z_95 * error)
        rows.append(
            {"size": int(size), "rate": dead, "low": low, "high": high, "own": int(size) == measured.get("group_size")}
        )
    return sorted(rows, key=lambda row: row["size"])


def _tags(measured: Any) -> list[dict[str, Any]]:
    """Per tag: how often it was right, missing, cut off and repeated, and the forms written instead, the most frequent first."""
    tags = measured.get("tags") if isinstance(measured, Mapping) else None
    rows = []
    for item in tags.values() if isinstance(tags, Mapping) else ():
        if not isinstance(item, Mapping) or "tag" not in item:
            continue
        forms = [form for form in item.get("forms") or () if isinstance(form, Mapping)]
        counts = {key: int(number(item.get(key)) or 0) for key in ("right", "missing", "cut", "repeated")}
        rows.append({"tag": str(item["tag"]), **counts, "forms": forms[:MAX_FORMS]})
    return rows


def _components(components: Any) -> list[dict[str, Any]]:
    keys = ("mean", "std_within", "dead_groups")
    return [
        {"name": str(name), **{key: number(item.get(key)) for key in keys}}
        for name, item in (components.items() if isinstance(components, Mapping) else ())
        if isinstance(item, Mapping)
    ]


def telling(samples: Sequence[dict[str, Any]], refused: bool) -> list[dict[str, Any]]:
    """A few completions of as many kinds as there are; after a refusal, right ones come last."""
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for sample in samples:
        by_kind.setdefault(str(sample.get("kind")), []).append(sample)
    ranked = sorted(by_kind, key=lambda kind: (refused and kind == "right", -len(by_kind[kind]), kind))
    chosen: list[dict[str, Any]] = []
    for turn in range(MAX_SAMPLES):
        chosen += [by_kind[kind][turn] for kind in ranked if turn < len(by_kind[kind])]
        if len(chosen) >= MAX_SAMPLES:
            break
    return chosen[:MAX_SAMPLES]
