"""Did reward or held-out accuracy move, up or down, by more than their noise?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean, median

from tasks.diagnosis.outcomes import RIGHT
from tasks.diagnosis.series import Run

ROSE = 0.15
FELL = -0.25
FELL_FROM_PEAK = -0.45
"""Changes of the reward in standard deviations of single completions. A fall is asked for more than a rise, since it is used to blame;
from the peak for still more, since the highest of many noisy windows is high by luck."""


def reward_rose(run: Run) -> bool:
    """Is the reward now clearly above that of the early rows?"""
    return run.reward_change() >= ROSE


def reward_fell(run: Run) -> bool:
    """Is the reward now clearly below that of the early rows, or below its best?"""
    if run.reward_change() <= FELL or crashed(run):
        return True
    reward = run.series("reward")
    if len(reward) < 10:
        return False
    windows = [median(reward.values[i - 2 : i + 3]) for i in range(2, len(reward) - 2)]
    peak = max(range(len(windows)), key=windows.__getitem__) + 2
    return run.reward_change(reward.rows[peak], errors=4) <= FELL_FROM_PEAK


def crashed(run: Run) -> bool:
    """Is the reward a whole deviation below the best of the first three rows, or all of the last five rows three quarters of one?

    A far too high learning rate ruins the policy in its first step: the early rows' median then lies after the fall.
    """
    reward = run.series("reward")
    if not reward.enough or run.reward_scale <= 0:
        return False
    best = max(reward.values[:3])
    last = reward.values[-5:] if len(reward) >= 8 else reward.values[-2:]
    return best - reward.recent >= run.reward_scale or best - max(last) >= 0.75 * run.reward_scale


@dataclass(frozen=True)
class AccuracyDrop:
    """Held-out accuracy `before` and `now`; `margin` is what a fall must exceed; `row`, `step`: last evaluation before the fall."""

    before: float
    now: float
    margin: float
    row: int
    step: int

    @property
    def fell(self) -> bool:
        return self.before - self.now > self.margin

    @property
    def rose(self) -> bool:
        return self.now - self.before > self.margin / 2


def accuracy_since(run: Run, row: int) -> AccuracyDrop | None:
    """Accuracy up to training row `row` against that after it; None when either side was not evaluated or it is at the floor."""
    accuracy = run.accuracy
    before = [v for i, v in zip(accuracy.rows, accuracy.values, strict=True) if i <= row][-3:]
    after = [v for i, v in zip(accuracy.rows, accuracy.values, strict=True) if i > row][-2:]
    if not before or not after or median(before) < 0.1:
        return None
    level = median(before)
    step = max(s for i, s in zip(accuracy.rows, accuracy.steps, strict=True) if i <= row)
    return AccuracyDrop(
        level,
        fmean(after),
        max(0.05, 0.15 * level, 2 * _noise(run) * math.sqrt(1 / len(before) + 1 / len(after))),
        row,
        step,
    )


def accuracy_drop(run: Run) -> AccuracyDrop | None:
    """The last two to four evaluations against the best as many before, whichever number shows it clearest; None with fewer than three."""
    values = run.accuracy.values
    if len(values) < 3:
        return None
    # The best of many windows is high by luck: hence three standard errors of the difference, 3.5 with many evaluations.
    errors = _noise(run) * (3 if len(values) < 12 else 3.5)
    drops = []
    for last in range(2, min(4, len(values) - 1) + 1):
        size = min(last, len(values) - last)
        means = [fmean(values[i : i + size]) for i in range(len(values) - last - size + 1)]
        best = max(range(len(means)), key=means.__getitem__)
        margin = max(0.05, 0.2 * means[best], errors * math.sqrt(1 / size + 1 / last))
        at = best + size - 1
        drops.append(
            AccuracyDrop(means[best], fmean(values[-last:]), margin, run.accuracy.rows[at], run.accuracy.steps[at])
        )
    return max(drops, key=lambda drop: (drop.before - drop.now) / drop.margin)


def rollout_drop(run: Run) -> AccuracyDrop | None:
    """Share of right rollouts by an independent grader: last five or ten rows against the best as many, whichever shows it clearer.

    None when it is not logged, or in fewer than 15 rows.
    """
    right = run.series(RIGHT)
    values, drops = right.values, []
    for size in (5, 10):
        if len(values) < 2 * size or len(values) < 15:
            break
        means = [fmean(values[i : i + size]) for i in range(len(values) - 2 * size + 1)]
        best = max(range(len(means)), key=means.__getitem__)
        margin = max(0.05, 0.2 * means[best], 4 * right.noise * math.sqrt(2 / size))
        at = best + size - 1
        drops.append(AccuracyDrop(means[best], fmean(values[-size:]), margin, right.rows[at], right.steps[at]))
    return max(drops, key=lambda drop: (drop.before - drop.now) / drop.margin) if drops else None


def _noise(run: Run) -> float:
    """Noise of one evaluation: that of 100 problems while there are too few to measure it, later the measured one, down to that of 200."""
    if not len(run.accuracy):
        return 0.0
    level = min(0.9, max(0.1, max(run.accuracy.values)))
    of_one = math.sqrt(level * (1 - level))
    return of_one / 10 if len(run.accuracy) < 8 else min(of_one / 10, max(of_one / 200**0.5, run.accuracy.noise))
