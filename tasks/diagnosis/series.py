"""A run as the rules see it: its training rows, its evaluations, and a few robust statistics of them.

Windows: `early` is the first fifth of the rows, 3 to 10 of them; `recent` the last fifth, 3 to 5. Medians, so that one wild row
(a KL spike, a bad batch) decides nothing; few rows in `recent`, so that a fault is seen soon after it starts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean, median
from typing import Any

from tasks.diagnosis.keys import held_out_accuracy
from tasks.diagnosis.rows import STEP_IS_ROW, Row
from tasks.diagnosis.run_info import RunInfo

CLIPPED = "completions/clipped_ratio"
LENGTH = "completions/mean_length"
MIN_ROWS = 5
"""Fewest training rows that any verdict needs (except a non-finite one)."""
FLAT_ROWS = 20
"""Rows with the very same mean reward from which completions are taken to be paid alike: means of rewards with any spread differ."""


@dataclass(frozen=True)
class Series:
    """Finite values of one metric, with the index (among training rows) and the step of each."""

    rows: tuple[int, ...]
    steps: tuple[int, ...]
    values: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.values)

    @property
    def enough(self) -> bool:
        return len(self.values) >= MIN_ROWS

    @cached_property
    def early(self) -> float:
        return median(self.values[: window(len(self), 10)])

    @cached_property
    def start(self) -> float:
        """Median of the first three values: where the run began, even if it left at once."""
        return median(self.values[:3])

    @cached_property
    def recent(self) -> float:
        return median(self.values[-window(len(self), 5) :])

    @cached_property
    def recent_mean(self) -> float:
        return fmean(self.values[-window(len(self), 5) :])

    @cached_property
    def smooth(self) -> tuple[float, ...]:
        """Running median of three."""
        v = self.values
        return tuple(median(v[max(0, i - 1) : i + 2]) for i in range(len(v)))

    @cached_property
    def noise(self) -> float:
        """Standard deviation of one value's noise, from the median absolute second difference; a linear trend does not count.

        For independent Gaussian noise a second difference has sqrt(6) of its deviation, and the median of |x| is 0.6745 deviations.
        """
        v = self.values
        if len(v) < 4:
            return 0.0
        return median(abs(a - 2 * b + c) for a, b, c in zip(v, v[1:], v[2:], strict=False)) / (0.6745 * math.sqrt(6))

    def onset(self, departed: Callable[[float], bool]) -> tuple[int, int]:
        """(row index, step) since when the smoothed values have been `departed` without a break, up to the last."""
        first = len(self) - 1
        for i in range(len(self) - 1, -1, -1):
            if not departed(self.smooth[i]):
                break
            first = i
        return self.rows[first], self.steps[first]


def window(count: int, most: int) -> int:
    """Rows in a window: a fifth, at least 3, at most `most`."""
    return max(1, min(count, max(3, min(most, count // 5))))


def same(a: float, b: float) -> bool:
    """Equal but for the rounding of float32 means."""
    return math.isclose(a, b, rel_tol=1e-6)


def all_equal(values: Sequence[float]) -> bool:
    return same(max(values), min(values))


@dataclass(frozen=True)
class Run:
    """A log and what is known about the run."""

    rows: Sequence[Row]
    info: RunInfo = field(default_factory=RunInfo)

    @cached_property
    def train(self) -> list[Row]:
        """Rows that the trainer logged for training steps: those with a reward."""
        return [row for row in self.rows if "reward" in row]

    @cached_property
    def steps_known(self) -> bool:
        return not any(STEP_IS_ROW in row for row in self.train)

    @cached_property
    def _cache(self) -> dict[str, Series]:
        return {}

    @cached_property
    def memo(self) -> dict[str, Any]:
        """Results that several rules share."""
        return {}

    def series(self, key: str) -> Series:
        """Finite values of `key` in the training rows."""
        if key not in self._cache:
            found = [
                (i, r["step"], r[key])
                for i, r in enumerate(self.train)
                if r.get(key) is not None and math.isfinite(r[key])
            ]
            self._cache[key] = _series(found)
        return self._cache[key]

    @cached_property
    def keys(self) -> frozenset[str]:
        """All metrics of the log."""
        return frozenset().union(*self.rows)

    @cached_property
    def functions(self) -> list[str]:
        """Names of the reward functions in the log."""
        keys = [key for key in self.keys if key.startswith("rewards/") and key.endswith("/mean")]
        return sorted(key.removeprefix("rewards/").removesuffix("/mean") for key in keys)

    @cached_property
    def accuracy_key(self) -> str | None:
        """Metric with the accuracy on held-out problems: the declared one, else one named like it, else plain `accuracy`."""
        if self.info.accuracy_key:
            return self.info.accuracy_key if self.info.accuracy_key in self.keys else None
        named = sorted((key for key in self.keys if held_out_accuracy(key)), key=lambda key: (len(key), key))
        return named[0] if named else ("accuracy" if "accuracy" in self.keys else None)

    @cached_property
    def accuracy(self) -> Series:
        """Held-out accuracy as a share; `rows` is the number of training rows logged by then."""
        if self.accuracy_key is None:
            return _series([])
        seen, found = 0, []
        for row in self.rows:
            seen += "reward" in row
            value = row.get(self.accuracy_key)
            if value is not None and math.isfinite(value):
                found.append((max(seen - 1, 0), row["step"], value))
        if found and max(value for _, _, value in found) > 1.5:  # per cent
            found = [(i, step, value / 100) for i, step, value in found]
        return _series(found)

    @cached_property
    def no_std(self) -> tuple[bool, ...]:
        """For each value of `reward_std`: is it 0, but for the rounding of equal rewards in float32?"""
        std, mean = self.series("reward_std"), self.series("reward")
        means = dict(zip(mean.rows, mean.values, strict=True))
        return tuple(value <= 1e-6 * abs(means.get(i, 0.0)) for i, value in zip(std.rows, std.values, strict=True))

    @cached_property
    def std_is_zero(self) -> bool:
        """Is there no deviation in most of the last rows that log one?"""
        return len(self.no_std) >= MIN_ROWS and fmean(self.no_std[-window(len(self.no_std), 5) :]) > 0.5

    @cached_property
    def one_value(self) -> bool:
        """Do all completions get one and the same reward now: a deviation of 0 and a mean that does not move?

        Where no measure of spread is logged, the mean has to be the same in FLAT_ROWS rows.
        """
        std, reward = self.series("reward_std"), self.series("reward")
        if std.enough:
            return reward.enough and self.std_is_zero and all_equal(reward.values[-MIN_ROWS:])
        if self.series("frac_reward_zero_std").enough:
            return False
        return len(reward) >= FLAT_ROWS and all_equal(reward.values[-FLAT_ROWS:])

    @cached_property
    def reward_scale(self) -> float:
        """Spread of completions' rewards while the run was young: the natural unit of a change in reward.

        The batch's own standard deviation where it is logged and not 0, else the declared range, else the noise of the curve.
        """
        std = self.series("reward_std")
        if len(std) and max(std.early, *std.values[:3]) > 0:
            return max(std.early, *std.values[:3])
        declared = self.info.rewards.values()
        span = sum(r.weight * (r.high - r.low) for r in declared if r.high is not None and r.low is not None)
        return span / 2 if span else 2 * self.series("reward").noise

    def reward_change(self, since_row: int = 0, errors: float = 3) -> float:
        """Change of the reward from the early rows (or those around `since_row`) to now, in units of `reward_scale`.

        0 when the change is within `errors` standard errors of the two windows' medians (1.25 sd / sqrt(n) each).
        """
        reward = self.series("reward")
        if not reward.enough or self.reward_scale <= 0:
            return 0.0
        recent_rows = window(len(reward), 5)
        if since_row:
            near = [v for i, v in zip(reward.rows, reward.values, strict=True) if abs(i - since_row) <= 2]
            before, count = (median(near), len(near)) if near else (reward.early, window(len(reward), 10))
        else:
            before, count = reward.early, window(len(reward), 10)
        change = reward.recent - before
        if abs(change) < errors * 1.25 * reward.noise * math.sqrt(1 / recent_rows + 1 / count):
            return 0.0
        return change / self.reward_scale


def _series(found: list[tuple[int, int, float]]) -> Series:
    return Series(tuple(f[0] for f in found), tuple(f[1] for f in found), tuple(f[2] for f in found))
