"""Majority vote over the sampled answers of one problem (maj@k: self-consistency, Wang et al. 2022, arXiv 2203.11171)."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.contract.answers import Reading, read
from tasks.contract.golds import same_text
from tasks.contract.grading import Grade
from tasks.contract.kinds import Kind
from tasks.contract.values import same_value

VOTERS = frozenset({Kind.RIGHT, Kind.WRONG})
"""Kinds of completions that give one finished answer; all others abstain."""


def majority(grades: Sequence[Grade]) -> float:
    """Probability that the majority answer is right when a tie is broken at random; 0 when nobody votes.

    Equal answers are counted together by value (`0.5` and `1/2`), else by text. All right answers equal the gold, so
    they are one answer whatever their spelling. With t answers tied for the most votes, one of them right, it is 1 / t:
    the mean over all ways of breaking the tie, which neither favours the first sample nor depends on chance.
    """
    right = sum(grade.right for grade in grades)
    others: list[tuple[Reading, str, int]] = []
    for grade in grades:
        if grade.right or grade.kind not in VOTERS or grade.span is None:
            continue
        reading = read(grade.span)
        for i, (known, text, votes) in enumerate(others):
            if _same(reading, grade.span, known, text):
                others[i] = (known, text, votes + 1)
                break
        else:
            others.append((reading, grade.span, 1))
    if not right:
        return 0.0
    rivals = [votes for _, _, votes in others]
    if max(rivals, default=0) > right:
        return 0.0
    return 1 / (1 + rivals.count(right))


def _same(first: Reading, text: str, second: Reading, other: str) -> bool:
    if first.value is not None and second.value is not None:
        return same_value(first.value, second.value)
    return same_text(text, other)
