"""How many completions had no answer, a wrong one, the right one: read from the log, or worked out from the rewards' means.

For a function that pays n without an answer, w for a wrong and c for the right one, and shares (s_n, s_w, s_c):

    mean = n + s_w (w - n) + s_c (c - n)
    std^2 + (mean - n)^2 = s_w (w - n)^2 + s_c (c - n)^2

With c = w or n = w one of the two unknowns drops out and the mean alone gives the other; else both equations are solved.
The standard deviation matters: with -2, -2.5 and 5, a mean of -2.0 is "never an answer" when the deviation is 0 and "7 % right, the rest
wrong" when it is 1.9.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from statistics import fmean, median

from tasks.diagnosis.run_info import KNOWN_FUNCTIONS, RewardOutcomes
from tasks.diagnosis.series import Run, same, window

RIGHT = "outcomes/right"
NO_ANSWER_KINDS = ("no_answer", "tag_drift", "unclosed", "misordered", "duplicated", "truncated")
"""Graded kinds (`tasks.contract.kinds`) without an answer that could be read, logged as `outcomes/<kind>` beside the rewards."""


@dataclass(frozen=True)
class Shares:
    """Shares of completions, 0 to 1; None where the log does not tell. `source` says where they come from."""

    no_match: float | None
    correct: float | None
    source: str


@dataclass(frozen=True)
class OutcomeShares:
    """Shares at the run's start and now."""

    early: Shares
    recent: Shares


def outcome_shares(run: Run) -> OutcomeShares:
    """What the rewards say, over the first and the last fifth of the rows, ten at most: rare outcomes need more rows than medians do."""
    count = len(run.train)
    first, last = range(window(count, 10)), range(count - window(count, 10), count)
    return OutcomeShares(_from_means(run, first), _from_means(run, last))


def graded_shares(run: Run) -> OutcomeShares | None:
    """What a grader independent of the rewards says (this pipeline logs it as `outcomes/<kind>`); None when it is not logged."""
    if RIGHT not in run.keys:
        return None
    count = len(run.train)
    first, last = range(window(count, 10)), range(count - window(count, 10), count)
    return OutcomeShares(_graded(run, first), _graded(run, last))


def _graded(run: Run, rows: range) -> Shares:
    none = [_mean(run, rows, f"outcomes/{kind}") for kind in NO_ANSWER_KINDS]
    known = [share for share in none if share is not None]
    return Shares(sum(known) if known else None, _mean(run, rows, RIGHT), "outcomes logged beside the rewards")


def _mean(run: Run, rows: range, key: str) -> float | None:
    series = run.series(key)
    values = [v for i, v in zip(series.rows, series.values, strict=True) if i in rows]
    return fmean(values) if values else None


_ANSWER_NAME = re.compile(r"accura|correct|answer|equation|exact_match|solve", re.IGNORECASE)
_FORMAT_NAME = re.compile(r"format|tag|xml|think", re.IGNORECASE)


def declared(run: Run, function: str) -> RewardOutcomes | None:
    """What the function pays: as declared, else as published if the logged means fit into the published range.

    A function of neither kind whose means stay within 0 and 1 is read by the usual convention (0 or 1) when its name says what it
    looks at; otherwise nothing is assumed.
    """
    if function in run.info.rewards:
        found = run.info.rewards[function]
        return found if found.known else None
    known = KNOWN_FUNCTIONS.get(function)
    if known is None and _FORMAT_NAME.search(function):
        known = RewardOutcomes(0.0, 1.0, 1.0)
    elif known is None and _ANSWER_NAME.search(function):
        known = RewardOutcomes(0.0, 0.0, 1.0)
    if known is None or known.low is None or known.high is None:
        return None
    values = run.series(f"rewards/{function}/mean").values
    return known if values and known.low - 1e-6 <= min(values) and max(values) <= known.high + 1e-6 else None


def _from_means(run: Run, rows: range) -> Shares:
    exact: list[float] = []
    solved: list[float] = []
    correct: list[float] = []
    used = []
    for function in run.functions:
        pays = declared(run, function)
        mean = _mean(run, rows, f"rewards/{function}/mean")
        if pays is None or mean is None or pays.no_match is None or pays.wrong is None or pays.correct is None:
            continue
        n, w, c = pays.no_match, pays.wrong, pays.correct
        used.append(function)
        if w == c != n:
            exact.append(_clamp((w - mean) / (w - n)))
        elif n == w != c:
            correct.append(_clamp((mean - n) / (c - n)))
        elif n != w and w != c and n != c:
            both = _two_moments(run, rows, function, n, w, c)
            if both is not None:
                solved.append(both[0])
                correct.append(both[1])
    no_match = median(exact) if exact else (median(solved) if solved else None)
    source = f"means of {', '.join(used)}" if used else "no declared reward"
    return Shares(no_match, median(correct) if correct else None, source)


def _two_moments(run: Run, rows: range, function: str, n: float, w: float, c: float) -> tuple[float, float] | None:
    """(share without an answer, share right) from mean and standard deviation; from the mean alone at the ends of the range."""
    points = []
    for i in rows:
        mean, std = run.train[i].get(f"rewards/{function}/mean"), run.train[i].get(f"rewards/{function}/std")
        if std is None and len(run.functions) == 1:
            std = run.train[i].get("reward_std")
        total = run.train[i].get("reward")
        if std is None and total is not None and run.one_value and same(total, run.series("reward").recent):
            std = 0.0
        if mean is not None and math.isfinite(mean):
            points.append((mean, std if std is not None and math.isfinite(std) else None))
    if not points:
        return None
    mean = fmean(m for m, _ in points)
    spreads = [(m, s) for m, s in points if s is not None]
    if len(spreads) < len(points):
        low, high = min(n, w, c), max(n, w, c)
        if high - mean < 0.05 * (high - low) and high == c:
            return 0.0, 1.0
        return (1.0, 0.0) if abs(mean - n) < 0.02 * (high - low) and n == low else None
    second = fmean(s * s + (m - n) ** 2 for m, s in spreads)
    a, b = w - n, c - n
    # a x + b y = mean - n; a^2 x + b^2 y = second
    y = (second - a * (mean - n)) / (b * (b - a))
    y = _clamp(y)
    x = _clamp((mean - n - b * y) / a)
    return _clamp(1 - x - y), y


def _clamp(value: float) -> float:
    return min(1.0, max(0.0, value))
