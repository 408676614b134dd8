"""Which checkpoint of a GRPO run is kept: the last one, unless an earlier one is better on held-out problems by more than noise.

Reward is what training pushes up, also where the answers get worse, so it decides nothing here. The best of several noisy
measurements is mostly the luckiest one: it looks better than it is, and a run would throw training away for it. So an earlier
checkpoint must beat the last on the same problems by a one-sided sign-flip test, at `alpha` divided by the number of earlier
ones (Bonferroni). Where nothing was lost the last is then replaced in at most `alpha` of all runs (`benchmarks/power.py`), and a
collapse, which is a large difference, is seen. No torch here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.evaluate.scores import mean_rate
from tasks.statistics import sign_flip

SEED = 0
"""Of the sign-flip test."""


@dataclass(frozen=True)
class Candidate:
    """A checkpoint and its strict pass rate on every problem, in the same order for all; none where it could not be measured."""

    step: int
    rates: tuple[float, ...] = ()
    failure: str = ""


def decide(candidates: Sequence[Candidate], samples: int, alpha: float) -> dict[str, Any]:
    """The choice and its alternatives, as JSON data.

    Args:
        candidates: by step, at least one; the last is the model as training left it.
        samples: completions per problem behind each rate.

    Returns:
        `chosen` and `last` (steps), `kept_last`, `reason`, `alpha` and `candidates`: for each `step`, its accuracy (`rate`,
        `n`, `samples`, `low`, `high`) or `failure`, and against the last `gain` and one-sided `p`.
    """
    last = candidates[-1]
    others = [one for one in candidates[:-1] if one.rates]
    rows: list[dict[str, Any]] = []
    better: list[tuple[float, int]] = []
    for one in candidates:
        row: dict[str, Any] = {"step": one.step}
        row |= mean_rate(one.rates, samples) if one.rates else {"failure": one.failure}
        if one in others and last.rates:
            differences = [a - b for a, b in zip(one.rates, last.rates, strict=True)]
            _, p = sign_flip(differences, SEED)
            row |= {"gain": sum(differences) / len(differences), "p": p}
            if p < alpha / len(others):
                better.append((row["rate"], one.step))
        rows.append(row)
    chosen = max(better)[1] if better else last.step
    return {
        "chosen": chosen,
        "last": last.step,
        "kept_last": chosen == last.step,
        "reason": _reason(rows, chosen, others, last),
        "alpha": alpha,
        "candidates": rows,
    }


def _reason(rows: Sequence[Mapping[str, Any]], chosen: int, others: Sequence[Candidate], last: Candidate) -> str:
    if not last.rates:
        return f"the last step was kept: it could not be measured ({last.failure})"
    if not others:
        return "the last step was kept: there is no earlier checkpoint to compare it with"
    by_step = {row["step"]: row for row in rows}
    if chosen == last.step:
        return f"the last step was kept: none of {len(others)} earlier checkpoints is better by more than noise"
    kept, left = by_step[chosen], by_step[last.step]
    return (
        f"step {chosen} was kept instead of the last step {last.step}: held-out pass@1 {kept['rate']:.1%} against "
        f"{left['rate']:.1%} on the same {kept['n']} problems (one-sided p = {kept['p']:.2g})"
    )
