"""Why groups have no spread: no answer found, all wrong, all right, or copies of each other.

A group whose rewards are all equal gives no gradient. Four causes look alike in `frac_reward_zero_std`; the shares of outcomes tell them
apart, and where the functions declare nothing, what can be said without them is said. Where that metric is not logged, a `reward_std` of 0
says the same, and with neither a mean reward that stays the same to the last bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

from tasks.diagnosis.outcomes import OutcomeShares, Shares, graded_shares, outcome_shares
from tasks.diagnosis.series import FLAT_ROWS, MIN_ROWS, Run, all_equal, same

Cause = Literal["extraction_failed", "all_wrong", "all_correct", "mixed", "none", "unknown"]

DEAD = 0.7
"""Share of groups without spread from which a run is called starved: fewer than a third of the rollouts still teach."""
ALL = 0.95
"""Share of right answers from which there is little left to learn, whatever the groups look like."""
NO_ANSWER = 0.92
"""Share without an answer: at 8 % matches, half of the groups of 8 hold no match at all, and the rest mostly one that is wrong."""


@dataclass(frozen=True)
class DeadGroups:
    """`share`, `early_share`: groups without spread, last ten rows and early ones (None: the log does not tell); `sure`: share less one
    standard error; `key`: the metric they were read from."""

    cause: Cause
    share: float | None
    early_share: float | None
    sure: float | None
    shares: OutcomeShares
    key: str = "frac_reward_zero_std"
    blind: bool = False
    """The reward does not tell completions apart that an independent grader does."""


def dead_groups(run: Run) -> DeadGroups:
    """Cause and extent of dead groups now; worked out once a run."""
    if "dead_groups" not in run.memo:
        run.memo["dead_groups"] = _dead_groups(run)
    found: DeadGroups = run.memo["dead_groups"]
    return found


def _dead_groups(run: Run) -> DeadGroups:
    paid, graded = outcome_shares(run), graded_shares(run)
    if not run.series("reward").enough:
        return DeadGroups("unknown", None, None, None, graded or paid)
    key, dead, early, sure = _without_spread(run)
    if graded is not None and _blind(run, dead, paid, graded):
        return DeadGroups("extraction_failed", dead, early, sure, paid, key, blind=True)
    shares = graded or paid
    if graded is None and key != "frac_reward_zero_std" and run.one_value and _between(paid.recent):
        # One value for all, and none of those that the functions are said to pay: they tell nothing apart.
        unknown = Shares(None, None, "one value that no function is declared to pay")
        return DeadGroups("extraction_failed", dead, early, sure, OutcomeShares(unknown, unknown), key)
    return DeadGroups(_cause(run, dead, shares), dead, early, sure, shares, key)


def _without_spread(run: Run) -> tuple[str, float | None, float | None, float | None]:
    """(metric, share of groups without spread now, at the start, now less one standard error).

    Of `reward_std` only rows of 0 tell the share (all groups); they are counted where they are the most of the last ten.
    """
    zero, std, reward = run.series("frac_reward_zero_std"), run.series("reward_std"), run.series("reward")
    key, values = "frac_reward_zero_std", zero.values
    if not zero.enough and std.enough:
        key, values = "reward_std", tuple(map(float, run.no_std))
        if fmean(values[-10:]) < DEAD:
            return key, None, None, None
    elif not zero.enough:
        if not run.one_value:
            return key, None, None, None
        key, values = "reward", tuple(float(same(value, reward.recent)) for value in reward.values)
    last = values[-10:]
    dead = fmean(last)
    return key, dead, fmean(values[:5]), dead - stdev(last) / len(last) ** 0.5


def unjudged_constant(run: Run) -> bool:
    """Has the reward been one value all the time, in too few rows to say so without a measure of spread?"""
    reward = run.series("reward")
    spread = run.series("reward_std").enough or run.series("frac_reward_zero_std").enough
    return not spread and reward.enough and len(reward) < FLAT_ROWS and all_equal(reward.values)


def _between(shares: Shares) -> bool:
    """Do the shares say that some are right and some are not?"""
    return shares.correct is not None and 0.05 < shares.correct < 0.9 and (shares.no_match or 0.0) < NO_ANSWER


def _blind(run: Run, dead: float | None, paid: OutcomeShares, graded: OutcomeShares) -> bool:
    """Does the grader see right and other answers where the reward sees none (or pays all alike)?"""
    right = graded.recent.correct
    if right is None or not 0.1 <= right <= 0.9:
        return False
    if paid.recent.no_match is not None and paid.recent.no_match >= NO_ANSWER:
        return (graded.recent.no_match or 0.0) < 0.5
    if run.one_value:
        return True
    end, share = _end(run)
    return dead is not None and dead >= DEAD and end == "low" and share <= 0.04


def _cause(run: Run, dead: float | None, shares: OutcomeShares) -> Cause:
    now = shares.recent
    if now.no_match is not None and now.no_match >= NO_ANSWER:
        return "extraction_failed"
    starved = dead >= DEAD if dead is not None else run.std_is_zero
    if now.correct is None:
        return _undeclared(run) if starved else "none"
    if now.correct >= ALL or (starved and now.correct >= 0.9):
        return "all_correct"
    # At 3 % right, 78 % of the groups of 8 are dead unless the format varies; at 5 % the dead share itself must say that nothing is learnt.
    none_right = (
        now.correct <= 0.02
        or (now.correct <= 0.03 and starved)
        or (now.correct <= 0.05 and dead is not None and dead >= 0.85)
    )
    if not none_right:
        return "mixed" if starved else "none"
    if now.no_match is not None:
        return "all_wrong" if now.no_match < 0.5 else "none"
    return _low(run, strictly=now.correct == 0) if starved else "none"


def _undeclared(run: Run) -> Cause:
    """Without declared outcomes: which end of its range is the reward stuck at?

    A constant reward shows no end: held-out accuracy decides, else its sign (functions that all pay something have found an answer). So
    does one that is constant now and was there from the start, with a few rows that differ in between.
    """
    reward = run.series("reward")
    accuracy = run.accuracy.values[-1] if len(run.accuracy) else None
    steady = len(reward) >= FLAT_ROWS and same(reward.early, reward.recent) and all_equal(reward.values[-FLAT_ROWS:])
    if steady or all_equal(reward.values):
        means = [
            run.series(f"rewards/{name}/mean").recent
            for name in run.functions
            if len(run.series(f"rewards/{name}/mean"))
        ]
        pays = reward.recent > 0 and all(mean > 0 for mean in means)
        never_a_hit = same(max(reward.values), reward.recent)
        return "all_correct" if pays and (accuracy is None or accuracy >= 0.8) else _low(run, strictly=never_a_hit)
    last = reward.values[-MIN_ROWS:]
    if all_equal(last) and last[-1] < reward.early:
        return _low(run, strictly=True)
    end, share = _end(run)
    if (end == "high" and share <= 0.1) or (accuracy is not None and accuracy >= 0.9):
        return "all_correct"
    return (
        _low(run, strictly=False)
        if (end == "low" and share <= 0.04) or (accuracy is not None and accuracy <= 0.03)
        else "mixed"
    )


def near_the_top(run: Run) -> bool:
    """Without declared outcomes: are at least nine completions of ten at the top of the range?"""
    end, share = _end(run)
    return end == "high" and share <= 0.1


def _end(run: Run) -> tuple[Literal["low", "high", "neither"], float]:
    """Is the reward near one end of its range, and what share q of the completions is off it? Told from how mean and variance move together.

    If a share q gets d more (or less) than the rest, the mean lies q d off the end and the variance is about q d^2, so rows
    with more variance lie farther off, in proportion 1 / d: up from a low end, down from a high one. In the middle the two
    do not move together; a correlation of 0.6 is asked for.
    """
    reward, std = run.series("reward"), run.series("reward_std")
    spread = dict(zip(std.rows, std.values, strict=True))
    points = [(spread[i] ** 2, value) for i, value in zip(reward.rows, reward.values, strict=True) if i in spread][-40:]
    if len(points) < 2 * MIN_ROWS:
        return "neither", 1.0
    x_mean, y_mean = fmean(x for x, _ in points), fmean(y for _, y in points)
    xx = sum((x - x_mean) ** 2 for x, _ in points)
    yy = sum((y - y_mean) ** 2 for _, y in points)
    xy = sum((x - x_mean) * (y - y_mean) for x, y in points)
    if xx <= 0 or yy <= 0 or abs(xy) < 0.6 * (xx * yy) ** 0.5:
        return "neither", 1.0
    slope = xy / xx  # 1 / d
    return ("low" if slope > 0 else "high"), x_mean * slope * slope


def _low(run: Run, *, strictly: bool) -> Cause:
    """Stuck at the low end: no answer found, or all wrong?

    Held-out accuracy decides where it is logged: a model that is right on held-out problems and never in training is not read. Without
    it, never a single hit in all rows speaks for a reward that sees no answer; an all-wrong run has a hit now and then.
    """
    if len(run.accuracy):
        return "extraction_failed" if run.accuracy.values[-1] >= 0.1 else "all_wrong"
    return "extraction_failed" if strictly else "all_wrong"
