"""What the format gate measures: rates over k prompts by G completions. Pure functions without torch; `verdict.py` decides."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any

from pipeline_config.contract import ContractConfig
from tasks.contract.grading import Grade
from tasks.contract.kinds import ANSWERED
from tasks.evaluate.behaviour import loop_share
from tasks.evaluate.scores import pass_at_1
from tasks.format_gate.confusion import EXAMPLE_CHARS, confusion
from tasks.format_gate.forecast import SIZES, forecast
from tasks.format_gate.signs import template_sign
from tasks.statistics import wilson

NO_SPREAD = 1e-9
"""Rewards of a group that differ by less are equal."""
SIGNS = ("ended_at_once", "other_turn", "run_on")


@dataclass(frozen=True)
class Rollout:
    """One sampled completion, graded and paid as the trainer would.

    Attributes:
        rewards: by reward function, unweighted; NaN when it was not scored.
        total: weighted sum over the scored functions; NaN when none scored it.
        other_special: special tokens were sampled that are neither EOS nor padding.
    """

    text: str
    grade: Grade
    total: float
    rewards: Mapping[str, float]
    truncated: bool = False
    other_special: bool = False


def measure(groups: Sequence[Sequence[Rollout]], contract: ContractConfig) -> dict[str, Any]:
    """Rates over k prompts by G completions.

    Args:
        groups: per prompt, its completions; shape (k, G).

    Returns:
        JSON-ready rates with counts; intervals (`_low`, `_high`) are Wilson's at 95 % over completions, for pass@1 over prompts. The
        forecast of dead groups is over right and wrong alone; `dead_groups` is measured on the whole reward.
    """
    flat = [rollout for group in groups for rollout in group]
    n, k, size = len(flat), len(groups), len(groups[0])
    formatted, truncated = sum(r.grade.well_formed for r in flat), sum(r.truncated for r in flat)
    rights = [sum(r.grade.right for r in group) for group in groups]
    dead = [spread([r.total for r in group]) < NO_SPREAD for group in groups]
    copies = [len({r.text for r in group}) <= max(1, size // 4) for group in groups]
    one = pass_at_1(rights, size)
    format_low, format_high = wilson(formatted, n)
    truncation_low, truncation_high = wilson(truncated, n)
    return {
        "prompts": k,
        "group_size": size,
        "completions": n,
        "format_rate": formatted / n,
        "format_rate_low": format_low,
        "format_rate_high": format_high,
        "truncation_rate": truncated / n,
        "truncation_rate_low": truncation_low,
        "truncation_rate_high": truncation_high,
        "pass_at_1": one["rate"],
        "pass_at_1_low": one["low"],
        "pass_at_1_high": one["high"],
        "pass_at_group": sum(right > 0 for right in rights) / k,
        "dead_groups": sum(dead) / k,
        "dead_all_right": sum(d and right == size for d, right in zip(dead, rights, strict=True)) / k,
        "dead_all_wrong": sum(d and right == 0 for d, right in zip(dead, rights, strict=True)) / k,
        "dead_copies": sum(d and c for d, c in zip(dead, copies, strict=True)) / k,
        "distinct_completions": fmean(len({r.text for r in group}) / size for group in groups),
        "prompts_by_right": [rights.count(right) for right in range(size + 1)],
        "forecast": forecast(rights, size, (*SIZES, size)),
        "components": {
            name: component([[r.rewards[name] for r in group] for group in groups]) for name in flat[0].rewards
        },
        "kinds": dict(sorted(Counter(str(r.grade.kind) for r in flat).items())),
        "signs": _signs(flat, contract),
        "looping": sum(r.truncated and loop_share(r.text) > 0 for r in flat),
        "tags": confusion([r.text for r in flat], [r.truncated for r in flat], contract),
        "shapes": _shapes(flat),
    }


def spread(rewards: Sequence[float]) -> float:
    """Largest minus smallest reward that was scored; 0 when none was."""
    scored = [reward for reward in rewards if not math.isnan(reward)]
    return max(scored) - min(scored) if scored else 0.0


def component(groups: Sequence[Sequence[float]]) -> dict[str, float | None]:
    """One reward function over all groups: mean, standard deviation over all completions, the mean standard deviation within a group (what
    becomes the advantage), and the share of groups in which it is constant. Not scored completions are left out."""
    scored = [[value for value in group if not math.isnan(value)] for group in groups]
    flat = [value for group in scored for value in group]
    if not flat:
        return {"mean": None, "std": None, "std_within": None, "dead_groups": 1.0, "min": None, "max": None}
    return {
        "mean": fmean(flat),
        "std": pstdev(flat),
        "std_within": fmean(pstdev(group) if group else 0.0 for group in scored),
        "dead_groups": sum(spread(group) < NO_SPREAD for group in groups) / len(groups),
        "min": min(flat),
        "max": max(flat),
    }


def _signs(flat: Sequence[Rollout], contract: ContractConfig) -> dict[str, int]:
    found = Counter(
        template_sign(r.text, contract, truncated=r.truncated, other_special=r.other_special)
        for r in flat
        if not r.grade.well_formed
    )
    return {sign: found[sign] for sign in SIGNS}


def _shapes(flat: Sequence[Rollout]) -> dict[str, dict[str, Any]]:
    """Malformed completions by what is wrong with the whole, with one example each: `misordered`, `unclosed`, `duplicated`, `no_answer`,
    `tag_drift`, `truncated`, and `text_outside` for an answer that can be read with text beside the tags."""
    found: dict[str, dict[str, Any]] = {}
    for r in flat:
        if r.grade.well_formed:
            continue
        name = "text_outside" if r.grade.kind in ANSWERED else str(r.grade.kind)
        item = found.setdefault(name, {"count": 0, "example": r.text[-4 * EXAMPLE_CHARS :]})
        item["count"] += 1
    return dict(sorted(found.items()))


def without_examples(value: Any) -> Any:
    """The measurement without texts of the model's, for the manifest; they stay in gate.json."""
    if isinstance(value, dict):
        return {key: without_examples(item) for key, item in value.items() if key != "example"}
    return [without_examples(item) for item in value] if isinstance(value, list) else value
