"""Rollouts made of real completion texts, graded by the real grader."""

from __future__ import annotations

import math
from typing import Any

from pipeline_config.contract import ContractConfig
from tasks.contract.grading import grade
from tasks.format_gate.measure import Rollout, measure

CONTRACT = ContractConfig()
GOLD = "5"


def block(answer: str, working: str = "2 + 3 = 5") -> str:
    return f"\n{working}\n<end_working_out>\n<SOLUTION>{answer}</SOLUTION>"


def rollout(text: str, *, truncated: bool = False, reward: float | None = None, other_special: bool = False) -> Rollout:
    """Paid 1 for right, 0.25 for well-formed, 0 for the rest unless `reward` says otherwise."""
    mark = grade(text, GOLD, CONTRACT, truncated=truncated)
    if reward is None:
        reward = 1.0 if mark.right else 0.25 if mark.well_formed else 0.0
    return Rollout(text, mark, reward, {"sound": reward}, truncated, other_special)


NAN = math.nan
R = rollout(block("5"))
W = rollout(block("6"))
LOOSE = rollout(block("5") + "\nSo it is five.")
HEDGED = rollout(block("5 or 6") + " or so")
NONE = rollout("2 + 3 = 5")
DRIFT = rollout("2 + 3 = 5\n<end_working_out>\n<solution>5</solution>")
CUT = rollout("2 + 3 is 2 and 3 more, which we count: three, four", truncated=True)
LOOP = rollout("2 + 3 = " + "2 + 3 = " * 30, truncated=True)


def measured(*groups: list[Rollout], **more: Any) -> dict[str, Any]:
    return {**measure(groups, CONTRACT), **more}
