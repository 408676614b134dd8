"""Outcome shares: what the completions of a batch turned out to be, beside what they were paid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from tasks.contract.grading import Grade
from tasks.contract.kinds import Kind

PREFIX = "outcomes/"


def outcome_shares(grades: Sequence[Grade], failed_rows: Collection[int]) -> dict[str, float]:
    """`outcomes/<kind>` for every kind (they sum to 1), and `outcomes/error`: the share that some function failed on.

    All names are there in every batch, zeros included: trainers on several devices gather each logged name in turn, and
    a name that only some of them log would shift the others.
    """
    total = max(1, len(grades))
    counts = Counter(grade.kind for grade in grades)
    shares = {f"{PREFIX}{kind.value}": counts[kind] / total for kind in Kind}
    shares[f"{PREFIX}error"] = len(failed_rows) / total
    return shares
