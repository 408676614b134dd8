"""Finished values and their equality: rational numbers, single radicals, multiples of pi, infinities, and lists of these."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations

from tasks.contract.numerals import Number

BOTH_SIGNS = "±"
"""`Value.brackets` of `±1`, which is the list 1, -1."""
MIXED = ",or"
"""`Value.brackets` of `1, 2 or 3`: a list or alternatives, so that it answers no gold that is one of them."""


@dataclass(frozen=True)
class Value:
    """One finished value: a number (with what its unit may mean), an infinity, or a list of values."""

    number: Number | None = None
    infinity: int = 0
    """+1 or -1 for a symbolic infinity."""
    items: tuple[tuple[str, Value], ...] | None = None
    """(label or "", value) of each item of a list, tuple, interval or set."""
    brackets: str = ""
    """The brackets of a list as written, such as `[)`; empty for a bare one, `or` for alternatives, `BOTH_SIGNS` or `MIXED`. Sets are `⦃⦄`."""
    others: tuple[Fraction, ...] = ()
    """Other rational values that the same text may mean: 75% is 75 and 3/4, "2 dozen" 24 and 2."""
    unit: str = ""
    """Canonical unit or currency when it is a known one."""

    @property
    def fraction(self) -> Fraction | None:
        """The exact rational value, or None for a list, an infinity, a radical or a multiple of pi."""
        return self.number.rational if self.number is not None else None

    @property
    def literal(self) -> bool:
        """Whether equality can be decided here alone: rational numbers, infinities, and lists of them."""
        if self.items is not None:
            return all(item.literal for _, item in self.items)
        return bool(self.infinity) or self.fraction is not None


_ALIKE = [{"", "()"}, *map(set, combinations(("", "⦃⦄", "or", BOTH_SIGNS), 2))]
"""Brackets that may differ between an answer and its gold."""


def same_value(answer: Value, gold: Value) -> bool:
    """Whether two values are equal. Not symmetric: what an answer's percent sign may mean depends on the gold."""
    if gold.items is not None or answer.items is not None:
        return _decimal_comma(answer, gold) or _same_list(answer, gold)
    if gold.infinity or answer.infinity:
        return gold.infinity == answer.infinity
    if answer.number is None or gold.number is None or units_clash(answer.unit, gold.unit):
        return False
    if _equal(answer.number, gold.number):
        return True
    if answer.others and not gold.others:
        # A dropped sign: 75% for the gold 75. A gold between 0 and 1 is a share, so there only 75% = 0.75 counts.
        target = gold.fraction
        return target in answer.others and not (answer.unit == "%" and target is not None and 0 < abs(target) < 1)
    return bool(gold.others) and not answer.others and answer.fraction in gold.others


def _equal(one: Number, other: Number) -> bool:
    if one.rational is not None and other.rational is not None:
        return one.coefficient == other.coefficient
    return one.key == other.key


def units_clash(one: str, other: str) -> bool:
    """Whether two known units differ; an unknown or absent unit agrees with all."""
    if one == other or not one or not other or "%" in (one, other):
        return False
    return not (one.startswith("°") and other.startswith("°") and "°" in (one, other))


def _decimal_comma(answer: Value, gold: Value) -> bool:
    """A decimal comma: the list "3,5" for the number 3.5."""
    return (
        gold.items is None and gold.fraction is not None and answer.items is not None and gold.fraction in answer.others
    )


def _same_list(answer: Value, gold: Value) -> bool:
    if answer.items is None or gold.items is None or len(answer.items) != len(gold.items):
        return False
    if answer.brackets == MIXED and gold.brackets != MIXED:
        return False
    shapes = {answer.brackets, "" if gold.brackets == MIXED != answer.brackets else gold.brackets}
    if len(shapes) > 1 and shapes not in _ALIKE:
        return False
    if gold.brackets == BOTH_SIGNS and len({label for label, _ in answer.items}) > 1:
        return False  # x=1, y=-1
    labels = [label for label, _ in gold.items]
    if all(labels) and len(set(labels)) == len(labels) and all(label for label, _ in answer.items):
        wanted = dict(gold.items)
        return Counter(labels) == Counter(label for label, _ in answer.items) and all(
            same_value(value, wanted[label]) for label, value in answer.items
        )
    if "()" in shapes or "[]" in shapes or any("[" in shape or "]" in shape for shape in shapes):
        return all(same_value(a, g) for (_, a), (_, g) in zip(answer.items, gold.items, strict=True))
    if all(labels) and len(set(labels)) == len(labels) and not any(label for label, _ in answer.items):
        named = answer.brackets == ""  # "1, 2" for "x=1, y=2" can only mean this order
        return named and all(same_value(a, g) for (_, a), (_, g) in zip(answer.items, gold.items, strict=True))
    left = [value for _, value in gold.items]
    for _, value in answer.items:
        match = next((i for i, other in enumerate(left) if same_value(value, other)), None)
        if match is None:
            return False
        left.pop(match)
    return True
