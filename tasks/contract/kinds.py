"""The outcomes of grading one completion."""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    """What a completion turned out to be; exactly one per completion."""

    RIGHT = "right"
    """The gold, in any spelling."""
    WRONG = "wrong"
    """One finished value that is not the gold."""
    HEDGED = "hedged"
    """A list, an alternative, a range, a negation, an approximation, or several differing answer blocks."""
    UNFINISHED = "unfinished"
    """An unevaluated expression, or words without one value."""
    EMPTY = "empty"
    """An answer block with nothing in it."""
    NO_ANSWER = "no_answer"
    """No answer block after the working, and nothing that looks like one."""
    TAG_DRIFT = "tag_drift"
    """A tag is missing and a misspelt, look-alike or wrong-case form of it is there."""
    UNCLOSED = "unclosed"
    """The answer was opened after the working and never closed."""
    MISORDERED = "misordered"
    """Reversed answer tags, or an answer given before the working ends."""
    DUPLICATED = "duplicated"
    """Tag spam: tags repeated so that no single working and answer can be told."""
    TRUNCATED = "truncated"
    """The length limit was hit before the answer was closed."""
    BAD_GOLD = "bad_gold"
    """The gold itself is empty, not finite or not one value, so nothing can match it."""


ANSWERED = frozenset({Kind.RIGHT, Kind.WRONG, Kind.HEDGED, Kind.UNFINISHED, Kind.EMPTY})
"""Kinds of completions whose answer block could be read."""
