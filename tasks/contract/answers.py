"""What an answer says, and whether it says the same as the gold: exact rational arithmetic, no algebra system, no floats.

`docs/answers.md` holds the table of what is accepted. The order is: layout off (`layout`), one number with its unit or one
list read (`numerals`, `units`), values compared. Text that holds more than one finished value, or softens or denies it,
has no value.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

from tasks.contract import hedges
from tasks.contract.kinds import Kind
from tasks.contract.layout import strip_outer, tidy
from tasks.contract.numerals import Number, read_number, read_sign
from tasks.contract.units import CURRENCY, PLAIN, Suffix, prefix_currency, read_suffix

MAX_CHARS = 27_000
"""Longer answers and golds are not read."""
MAX_TEXT = 800
"""Longer ones are read only when they are one numeral, at most in `$`, bold or `\\boxed`."""
MAX_ITEMS = 64
"""Items of a list."""
_FAST = re.compile(r"([+-]?)(\d{1,300})(?:\.(\d{1,300}))?")
_LONG_NUMERAL = re.compile(r"[+-]?\$?[0-9][0-9,._' ]*(?:/[0-9]+)?%?")
_CURRENCY = re.compile(rf"({CURRENCY})\s*", re.IGNORECASE)
_INFINITY = re.compile(r"([+-]?)\s*(?:∞|infinity)", re.IGNORECASE)
_ORDINAL = re.compile(r"(\d*?)(\d)(st|nd|rd|th)\b", re.IGNORECASE)
_BRACKETS = {"(": ")", "[": "]", "⦃": "⦄"}
_NO_UNIT = frozenset({"", "°"})


@dataclass(frozen=True)
class Value:
    """One finished value: a number (with what its unit may mean), an infinity, or a list of values."""

    number: Number | None = None
    infinity: int = 0
    """+1 or -1 for a symbolic infinity."""
    items: tuple[tuple[str, Value], ...] | None = None
    """(label or "", value) of each item of a list, tuple, interval or set."""
    brackets: str = ""
    """The brackets of a list as written, such as `[)`; empty for a bare one. Sets are `⦃⦄`."""
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


@dataclass(frozen=True)
class Reading:
    """A value, or the kind of text that has none (`hedged`, `unfinished`, `empty`; `wrong` for numbers beyond the caps)."""

    value: Value | None
    kind: Kind
    """`right` stands for "has a value" here."""


def parse_answer(text: str) -> Value | None:
    """The one finished value of an answer text, or None. Never raises."""
    reading = read(text)
    return reading.value if reading.value is not None and reading.kind is Kind.RIGHT else None


def same_answer(answer: str, gold: str) -> bool:
    """Whether an answer text is the gold, by exact value or, for golds that are words, by text. Never raises.

    Nothing symbolic is tried here: for LaTeX golds beyond one radical use `grading.grade`.
    """
    from tasks.contract.golds import read_gold, same_text

    target = read_gold(gold)
    if target.kind is Kind.BAD_GOLD:
        return False
    reading = read(answer)
    if target.value is not None and reading.kind is Kind.RIGHT and reading.value is not None:
        return same_value(reading.value, target.value)
    return (target.value is None or target.symbolic) and same_text(answer, target.text)


def same_value(answer: Value, gold: Value) -> bool:
    """Whether two values are equal. Not symmetric: what an answer's percent sign may mean depends on the gold."""
    if gold.items is not None or answer.items is not None:
        return _decimal_comma(answer, gold) or _same_list(answer, gold)
    if gold.infinity or answer.infinity:
        return gold.infinity == answer.infinity
    if answer.number is None or gold.number is None or _units_clash(answer.unit, gold.unit):
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


def read(text: str) -> Reading:
    """Read an answer text. Linear in its length, and nothing is evaluated."""
    if len(text) > MAX_CHARS:
        return Reading(None, Kind.WRONG)
    fast = _FAST.fullmatch(text)
    if fast and text.isascii():
        return Reading(Value(number=Number(_decimal(*fast.groups()))), Kind.RIGHT)
    if len(text) > MAX_TEXT:
        numeral = _long_numeral(text)
        if numeral is None:
            return Reading(None, hedges.kind_of(text) if text.strip() else Kind.EMPTY)
        text = numeral
    body = tidy(text) if len(text) <= MAX_TEXT else text
    if not body:
        return Reading(None, Kind.EMPTY)
    plain, remark = hedges.split_remark(body)
    scalar = _scalar(plain)
    if scalar is not None:
        return scalar if not remark or _agrees(remark, scalar.value) else Reading(None, Kind.HEDGED)
    value = _list(hedges.list_label(body), 0)
    if value is not None:
        return Reading(value, Kind.RIGHT)
    return Reading(None, hedges.kind_of(body))


def _long_numeral(text: str) -> str | None:
    """A numeral of thousands of digits without its wrappers, or None; short texts come back for the usual reading."""
    body = strip_outer(text)
    if len(body) <= MAX_TEXT:
        return body
    if body.startswith("\\boxed{") and body.endswith("}"):
        body = body[len("\\boxed{") : -1].strip()
    return body if _LONG_NUMERAL.fullmatch(body) else None


def _decimal(sign: str, whole: str, part: str | None) -> Fraction:
    value = Fraction(int(whole + part), 10 ** len(part)) if part else Fraction(int(whole))
    return -value if sign == "-" else value


def _scalar(body: str) -> Reading | None:
    """A single value, after labels and in front of units; None when the text is no such thing."""
    for _ in range(4):
        if len(body) > 2 and body[0] == "(" and body[-1] == ")" and "," not in body and _matching(body):
            body = body[1:-1].strip()
    label, body, equation = hedges.split_label(body)
    if label is None:
        return None
    value = _signed(body)
    if value is None:
        return None
    if equation and hedges.is_one_number(equation):
        left = _signed(equation)
        if hedges.asserts_nothing(equation, body) or left is None or not same_value(left, value):
            return Reading(None, Kind.HEDGED)
    if value.number is not None and not value.number.evaluated:
        return Reading(value, Kind.UNFINISHED)
    return Reading(value, Kind.RIGHT)


def _agrees(remark: str, value: Value | None) -> bool:
    """Whether a remark in brackets leaves the value alone: words, the value again, or an equation that ends in it."""
    if hedges.harmless_remark(remark):
        return True
    for word in ("since", "because", "as"):
        remark = remark.removeprefix(word + " ")
    again = _scalar(remark.strip())
    return again is not None and again.value is not None and value is not None and same_value(again.value, value)


def _signed(body: str) -> Value | None:
    """Sign, currency, number and what follows it."""
    infinite = _INFINITY.fullmatch(body)
    if infinite:
        return Value(infinity=-1 if infinite.group(1) == "-" else 1)
    sign, at = read_sign(body, 0)
    signed = body[:at].strip() != ""
    unit = ""
    currency = _CURRENCY.match(body, at)
    if currency:
        unit, at = prefix_currency(currency.group(1)), currency.end()
        if not signed:
            sign, at = read_sign(body, at)
    read_at = read_number(body, at)
    if read_at is None:
        return None
    number, end = read_at
    rest = body[end:]
    if rest and _ordinal(body, at, end):
        rest = rest[2:]
    suffix = read_suffix(rest) if rest else PLAIN
    if suffix is None or (suffix.percent and unit):
        return None
    return _with_suffix(number, sign, unit, suffix)


def _ordinal(body: str, at: int, end: int) -> bool:
    found = _ORDINAL.match(body, at)
    if not found or found.end(2) != end:
        return False
    tens, last, suffix = found.group(1)[-1:], found.group(2), found.group(3).lower()
    return suffix == ("th" if tens == "1" else {"1": "st", "2": "nd", "3": "rd"}.get(last, "th"))


def _with_suffix(number: Number, sign: int, unit: str, suffix: Suffix) -> Value | None:
    coefficient = number.coefficient * sign * suffix.scale
    signed = Number(coefficient, number.radicand, number.pi, number.evaluated)
    if suffix.percent:
        if signed.rational is None:
            return None
        return Value(number=Number(coefficient / 100, evaluated=number.evaluated), others=(coefficient,), unit="%")
    if suffix.dozen:
        if signed.rational is None:
            return None
        return Value(number=Number(coefficient * 12), others=(coefficient,))
    return Value(number=signed, unit=unit or suffix.unit)


def _units_clash(one: str, other: str) -> bool:
    """Whether two known units differ; an unknown or absent unit agrees with all."""
    return one != other and one not in _NO_UNIT and other not in _NO_UNIT and "%" not in (one, other)


_SPLIT = re.compile(r"\s*[,;]\s*(?:and\s+|or\s+)?|\s+(?:and|or)\s+")
_COMMA_DECIMAL = re.compile(r"([+-]?)\s*(\d{1,300}),(\d{1,300})")


def _list(body: str, depth: int) -> Value | None:
    if depth > 2:
        return None
    opened, closed = body[:1], body[-1:]
    brackets = ""
    inner = body
    if opened in "([⦃" and closed in ")]⦄" and opened and _matching(body):
        brackets, inner = opened + closed, body[1:-1].strip()
        if (brackets[0] == "⦃" and brackets != "⦃⦄") or (brackets[1] == "⦄" and brackets != "⦃⦄"):
            return None
    pieces = _pieces(inner)
    if not pieces or len(pieces) > MAX_ITEMS or (len(pieces) < 2 and brackets not in ("⦃⦄", "[]")):
        return None
    items: list[tuple[str, Value]] = []
    for piece in pieces:
        value = _item(piece, depth)
        if value is None:
            return None
        items.append(value)
    others: tuple[Fraction, ...] = ()
    comma = _COMMA_DECIMAL.fullmatch(inner) if not brackets else None
    if comma and len(items) == 2:
        others = (_decimal(*comma.groups()),)
    return Value(items=tuple(items), brackets=brackets, others=others)


def _item(piece: str, depth: int) -> tuple[str, Value] | None:
    label, body, equation = hedges.split_label(piece)
    if label is None or equation:
        return None
    value = _signed(body) or (_list(body, depth + 1) if body[:1] in _BRACKETS else None)
    if value is None or (value.number is not None and not value.number.evaluated):
        return None
    return label, value


def _matching(body: str) -> bool:
    """Whether the first bracket is closed by the last character."""
    level = 0
    for i, ch in enumerate(body):
        if ch in "([⦃":
            level += 1
        elif ch in ")]⦄":
            level -= 1
            if level == 0:
                return i == len(body) - 1
    return False


def _pieces(inner: str) -> list[str]:
    """Split at commas, semicolons, "and", "or" outside brackets and braces."""
    if len(inner) > 4000:
        return []
    marks = []
    level = 0
    for ch in inner:
        if ch in "([⦃{":
            level += 1
        marks.append(level)
        if ch in ")]⦄}":
            level -= 1
    pieces, at = [], 0
    for found in _SPLIT.finditer(inner):
        if marks[found.start()] == 0:
            pieces.append(inner[at : found.start()].strip())
            at = found.end()
    pieces.append(inner[at:].strip())
    return pieces


def _decimal_comma(answer: Value, gold: Value) -> bool:
    """A decimal comma: the list "3,5" for the number 3.5."""
    return (
        gold.items is None and gold.fraction is not None and answer.items is not None and gold.fraction in answer.others
    )


def _same_list(answer: Value, gold: Value) -> bool:
    if answer.items is None or gold.items is None or len(answer.items) != len(gold.items):
        return False
    shapes = {answer.brackets, gold.brackets}
    if len(shapes) > 1 and shapes not in ({"", "()"}, {"", "⦃⦄"}):
        return False
    labels = [label for label, _ in gold.items]
    if all(labels) and all(label for label, _ in answer.items):
        wanted = dict(gold.items)
        return Counter(labels) == Counter(label for label, _ in answer.items) and all(
            same_value(value, wanted[label]) for label, value in answer.items
        )
    if "()" in shapes or "[]" in shapes or any("[" in shape or "]" in shape for shape in shapes):
        return all(same_value(a, g) for (_, a), (_, g) in zip(answer.items, gold.items, strict=True))
    left = [value for _, value in gold.items]
    for _, value in answer.items:
        match = next((i for i, other in enumerate(left) if same_value(value, other)), None)
        if match is None:
            return False
        left.pop(match)
    return True
