"""Which training prompts GRPO gets, from their measured pass rates. Pure functions without torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.format_gate.forecast import dead_under_beta, fit_beta

IN_BAND, WIDENED = "in_band", "widened"
TOO_HARD, TOO_EASY, NOT_MEASURED = "too_hard", "too_easy", "not_measured"
EXACT = 1e-9
"""Rates and bounds are compared with this tolerance: 0.3 is not 3/10 in binary."""


@dataclass(frozen=True)
class Choice:
    """`why`: id -> IN_BAND or WIDENED (kept), TOO_HARD, TOO_EASY or NOT_MEASURED (set aside). `band`: as used, both ends kept."""

    why: Mapping[str, str]
    band: tuple[float, float]

    def keeps(self, id: str) -> bool:
        """Whether GRPO trains on this prompt."""
        return self.why[id] in (IN_BAND, WIDENED)


def choose(ids: Sequence[str], rates: Mapping[str, float], low: float, high: float, minimum: int) -> Choice:
    """Keep the prompts whose pass rate is within [low, high]; when fewer than `minimum` are, widen the band until enough are.

    The band grows on both sides alike, to the next rate that occurs, so the result does not depend on the order of the prompts. Prompts
    without a rate are set aside.
    """
    distance = {id: max(low - rate, rate - high, 0.0) for id, rate in rates.items()}
    reach = 0.0
    for step in sorted({round(d, 9) for d in distance.values()}):
        reach = step
        if sum(d <= step + EXACT for d in distance.values()) >= minimum:
            break
    why = {}
    for id in ids:
        if id not in rates:
            why[id] = NOT_MEASURED
        elif distance[id] <= EXACT:
            why[id] = IN_BAND
        elif distance[id] <= reach + EXACT:
            why[id] = WIDENED
        else:
            why[id] = TOO_HARD if rates[id] < low else TOO_EASY
    return Choice(why, (max(0.0, low - reach), min(1.0, high + reach)))


def summary(
    choice: Choice, right: Mapping[str, int], samples: int, group: int, asked: tuple[float, float]
) -> dict[str, Any]:
    """Numbers of a choice: histograms of right samples before and after, reasons, the band, and the forecast of dead groups.

    Args:
        right: id -> right samples of a measured prompt, out of `samples`.
        group: GRPO's group size.
        asked: the configured band.

    A kept prompt's rate was measured with luck, good or bad. So the forecast is the mean over its posterior: a beta distribution fitted to
    all prompts (before anything is set aside), updated with the prompt's own samples.
    """
    kept = [id for id in right if choice.keeps(id)]
    reasons = Counter(choice.why.values())
    a, b = fit_beta(Counter(right.values()), samples) if right else (1.0, 1.0)

    def dead(ids: Sequence[str]) -> float | None:
        shares = [dead_under_beta(a + right[id], b + samples - right[id], group) for id in ids]
        return sum(shares) / len(shares) if shares else None

    def histogram(ids: Sequence[str]) -> list[int]:
        counts = Counter(right[id] for id in ids)
        return [counts[count] for count in range(samples + 1)]

    return {
        "prompts": len(choice.why),
        "measured": len(right),
        "samples": samples,
        "kept": reasons[IN_BAND] + reasons[WIDENED],
        "reasons": {name: reasons[name] for name in (IN_BAND, WIDENED, TOO_HARD, TOO_EASY, NOT_MEASURED)},
        "band_asked": list(asked),
        "band_used": list(choice.band),
        "widened": reasons[WIDENED] > 0,
        "prompts_by_right_before": histogram(list(right)),
        "prompts_by_right_after": histogram(kept),
        "group_size": group,
        "dead_groups_before": dead(list(right)),
        "dead_groups_after": dead(kept),
    }
