"""When the samples on the way already decide. Sampling goes in fixed blocks of prompts; after each there is a look.

A share is settled when an interval around it lies on one side of its threshold. The interval is Wilson's with prompts as trials (what
happens to the completions of one prompt is not independent, and a mean of values in [0, 1] varies at most as much as a coin of the same
mean), at 1 - 0.05 / looks: by Bonferroni's inequality the looks together miss a share with at most 5 %.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import NormalDist
from typing import Any

from pipeline_config.gate import GateSettings
from tasks.statistics import wilson

MAX_LOOKS = 4
MIN_BLOCK = 128
"""Fewest completions of a block: smaller ones do not fill a batch."""


def looks(prompts: int, group: int) -> list[int]:
    """Prompts sampled at each look; the last is all of them. 64 prompts of 8 give [16, 32, 48, 64]."""
    count = max(1, min(MAX_LOOKS, prompts * group // MIN_BLOCK))
    return [-(-prompts * (i + 1) // count) for i in range(count)]


def settled(m: Mapping[str, Any], gate: GateSettings, count: int) -> bool:
    """Whether a measurement, made at one of `count` looks, decides: the shares that matter are clearly on one side of their thresholds.

    Truncation, format and dead groups are asked in this order, as in the verdict: the first that is clearly bad decides, and so do three that
    are clearly good.
    """
    z = NormalDist().inv_cdf(1 - 0.05 / (2 * count))
    for share, bad_above, bad_below in (
        (m["truncation_rate"], gate.max_truncation_rate, None),
        (m["format_rate"], None, gate.min_format_rate),
        (m["dead_groups"], gate.max_dead_groups, None),
    ):
        low, high = wilson(min(1.0, share) * m["prompts"], m["prompts"], z)
        if (bad_above is not None and low > bad_above) or (bad_below is not None and high < bad_below):
            return True
        if (bad_above is not None and high > bad_above) or (bad_below is not None and low < bad_below):
            return False
    return True


def decides(m: Mapping[str, Any], gate: GateSettings) -> bool:
    """Whether a stored measurement is enough under these thresholds: it is complete, or stopped early and settled for them too."""
    return not m.get("stopped_early") or settled(m, gate, int(m["looks"]))
