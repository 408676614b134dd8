"""What the format gate measures, and what it decides. Pure functions without torch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from pipeline_config.training import GateSettings
from tasks.contract.grading import Grade
from tasks.errors import GateRefused
from tasks.statistics import wilson

MALFORMED = ("truncated", "tag_drift", "no_answer", "unclosed", "misordered", "duplicated")
"""Kinds of completions without an answer block that can be read."""


def measure(grades: Sequence[Sequence[Grade]], rewards: Sequence[Sequence[float]], truncated: int) -> dict[str, Any]:
    """Rates over k prompts by G completions.

    Args:
        grades: per prompt, the grade of each completion; shape (k, G).
        rewards: total reward, same shape; NaN (not scored) is left out of its group.
        truncated: completions that hit the length limit.

    Returns:
        JSON-ready rates with counts, and Wilson 95 % intervals.
    """
    flat = [grade for group in grades for grade in group]
    n, k = len(flat), len(grades)
    formatted = sum(grade.well_formed for grade in flat)
    right = sum(grade.right for grade in flat)
    passed = sum(any(grade.right for grade in group) for group in grades)
    dead = [_spread(group) < 1e-9 for group in rewards]
    all_right = sum(all(g.right for g in group) for group, d in zip(grades, dead, strict=True) if d)
    all_wrong = sum(not any(g.right for g in group) for group, d in zip(grades, dead, strict=True) if d)
    low, high = wilson(formatted, n)
    return {
        "prompts": k,
        "completions": n,
        "format_rate": formatted / n,
        "format_rate_low": low,
        "format_rate_high": high,
        "truncation_rate": truncated / n,
        "pass_at_1": right / n,
        "pass_at_group": passed / k,
        "dead_groups": sum(dead) / k,
        "dead_all_right": all_right / k,
        "dead_all_wrong": all_wrong / k,
        "kinds": dict(sorted(Counter(str(grade.kind) for grade in flat).items())),
    }


def _spread(rewards: Sequence[float]) -> float:
    scored = [reward for reward in rewards if not math.isnan(reward)]
    return max(scored) - min(scored) if scored else 0.0


def decide(m: dict[str, Any], gate: GateSettings) -> tuple[str, str, str]:
    """(verdict, what was measured, what to do). Verdict is `go` or the name of the first reason that applies.

    Causes come before their consequences: a truncated completion is also malformed, a malformed one is also wrong.
    """
    if m["truncation_rate"] > gate.max_truncation_rate:
        return (
            "truncated",
            f"{m['truncation_rate']:.1%} of {m['completions']} completions hit the length limit "
            f"(allowed {gate.max_truncation_rate:.0%})",
            "raise grpo.max_completion_length, or teach shorter working in SFT",
        )
    if m["format_rate_low"] < gate.min_format_rate:
        malformed = round((1 - m["format_rate"]) * m["completions"])
        unreadable = {kind: m["kinds"][kind] for kind in MALFORMED if m["kinds"].get(kind)}
        common = max(unreadable, key=unreadable.__getitem__) if unreadable else "text outside the tags"
        return (
            "format_not_learnt",
            f"whole format in {m['format_rate']:.1%} of {m['completions']} completions, 95 % lower bound "
            f"{m['format_rate_low']:.1%}, needed {gate.min_format_rate:.0%}; {malformed} malformed, mostly {common}",
            "more SFT (sft.num_train_epochs or data.sft_rows); see samples.jsonl for what is emitted instead of the tags",
        )
    if m["dead_groups"] > gate.max_dead_groups:
        if m["dead_all_right"] >= m["dead_all_wrong"]:
            return (
                "too_easy",
                f"{m['dead_groups']:.0%} of groups have equal rewards and {m['dead_all_right']:.0%} are all right",
                "harder problems in data.train, or less SFT",
            )
        return (
            "too_hard",
            f"{m['dead_groups']:.0%} of groups have equal rewards and {m['dead_all_wrong']:.0%} are all wrong",
            "easier problems in data.train, more SFT, or a larger grpo.num_generations",
        )
    return (
        "go",
        f"whole format {m['format_rate']:.1%} (lower bound {m['format_rate_low']:.1%}), pass@1 {m['pass_at_1']:.1%}, "
        f"{m['dead_groups']:.0%} of groups without spread",
        "",
    )


def raise_unless_go(m: dict[str, Any], gate: GateSettings) -> str:
    """The decision as text, or GateRefused. Thresholds act here, so changing one resamples nothing."""
    verdict, evidence, fix = decide(m, gate)
    if verdict != "go":
        raise GateRefused(evidence, where="format_gate", fix=fix, cause=verdict)
    return evidence
