"""What an answer says, and whether it says the same as the gold: exact rational arithmetic, no algebra system, no floats.

`docs/answers.md` holds the table of what is accepted. The order is: layout off (`layout`), one number with its unit or one
list read (`numerals`, `units`), values compared. Text that holds more than one finished value, or softens or denies it,
has no value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction

from tasks.contract import hedges
from tasks.contract.kinds import Kind
from tasks.contract.layout import strip_outer, tidy
from tasks.contract.numerals import Number, read_number, read_sign
from tasks.contract.units import PLAIN, Suffix, prefix_currency, read_suffix
from tasks.contract.values import BOTH_SIGNS, MIXED, Value, same_value
from tasks.contract.words import CURRENCY_PATTERN, NUMBER_WORDS

MAX_CHARS = 27_000
"""Longer answers and golds are not read."""
MAX_TEXT = 800
"""Longer ones are read only when they are one numeral, at most in `$`, bold or `\\boxed`."""
MAX_ITEMS = 64
"""Items of a list."""
_FAST = re.compile(r"([+-]?)(\d{1,300})(?:\.(\d{1,300}))?")
_LONG_NUMERAL = re.compile(r"[+-]?\$?[0-9][0-9,._' ]*(?:/[0-9]+)?%?")
_NUMBER_WORD = re.compile(rf"(?:{'|'.join(sorted(NUMBER_WORDS, key=len, reverse=True))})\b", re.IGNORECASE)
_CURRENCY = re.compile(rf"({CURRENCY_PATTERN})\s*", re.IGNORECASE)
_INFINITY = re.compile(r"([+-]?)\s*(?:∞|infinity)", re.IGNORECASE)
_ORDINAL = re.compile(r"(\d{0,300}?)(\d)\s*(st|nd|rd|th)\b", re.IGNORECASE)
_BRACKETS = {"(": ")", "[": "]", "⦃": "⦄"}


@dataclass(frozen=True)
class Reading:
    """A value, or the kind of text that has none (`hedged`, `unfinished`, `empty`; `wrong` for numbers beyond the caps)."""

    value: Value | None
    kind: Kind
    """`right` stands for "has a value" here."""

    @property
    def compared(self) -> Value | None:
        """The finished value to compare with a gold; `±1` has one too, though only a gold of both values is equal."""
        both = self.value is not None and self.value.brackets == BOTH_SIGNS
        return self.value if self.kind is Kind.RIGHT or both else None


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
    if target.value is not None and reading.compared is not None:
        return same_value(reading.compared, target.value)
    return (target.value is None or target.symbolic) and same_text(answer, target.text)


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
    return Reading(_both_signs(plain) if "±" in plain and not remark else None, hedges.kind_of(body))


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


def _both_signs(body: str) -> Value | None:
    """The two values of `±1` or `x = ±\\sqrt{3}`."""
    label, body, equation = hedges.split_label(body)
    if label is None or equation or body[:1] != "±":
        return None
    value = _signed(body[1:].strip())
    if value is None or value.number is None or not value.number.evaluated or value.others:
        return None
    negative = replace(value, number=replace(value.number, coefficient=-value.number.coefficient))
    return Value(items=(("", value), ("", negative)), brackets=BOTH_SIGNS)


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
    named = _NUMBER_WORD.match(body, at)
    if named:
        body = str(NUMBER_WORDS[named.group().lower()]) + body[named.end() :]
        at = 0
    read_at = read_number(body, at)
    if read_at is None:
        return None
    number, end = read_at
    rest = body[end:]
    if rest:
        rest = body[_ordinal_end(body, at, end) :]
    suffix = read_suffix(rest) if rest else PLAIN
    if suffix is None or (suffix.percent and unit):
        return None
    return _with_suffix(number, sign, unit, suffix)


def _ordinal_end(body: str, at: int, end: int) -> int:
    """Where "8th" ends when the integer at `at` is followed by its right ordinal ending, else `end`."""
    found = _ORDINAL.match(body, at)
    if not found or found.end(2) != end:
        return end
    tens, last, ending = found.group(1)[-1:], found.group(2), found.group(3).lower()
    expected = "th" if tens == "1" else {"1": "st", "2": "nd", "3": "rd"}.get(last, "th")
    return found.end() if ending == expected else end


def _with_suffix(number: Number, sign: int, unit: str, suffix: Suffix) -> Value | None:
    coefficient = number.coefficient * suffix.scale if suffix.scale != 1 else number.coefficient
    coefficient = -coefficient if sign < 0 else coefficient
    signed = number if coefficient is number.coefficient else replace(number, coefficient=coefficient)
    if suffix.percent:
        if signed.rational is None:
            return None
        return Value(number=Number(coefficient / 100, evaluated=number.evaluated), others=(coefficient,), unit="%")
    if suffix.dozen:
        if signed.rational is None:
            return None
        return Value(number=Number(coefficient * 12), others=(coefficient,))
    return Value(number=signed, unit=unit or suffix.unit)


_SPLIT = re.compile(r"\s*[,;]\s*(?:and\s+|or\s+)?|\s+(?:and|or)\s+")
_BRACKET = re.compile(r"[(\[⦃{)\]⦄}]")
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
    pieces, joints = _pieces(inner)
    if not pieces or len(pieces) > MAX_ITEMS or (len(pieces) < 2 and brackets not in ("⦃⦄", "[]")):
        return None
    items: list[tuple[str, Value]] = []
    for piece in pieces:
        value = _item(piece, depth)
        if value is None:
            return None
        items.append(value)
    others: tuple[Fraction, ...] = ()
    alternatives = sum("or" in joint for joint in joints)
    if alternatives and brackets:
        return None
    if alternatives:
        brackets = "or" if alternatives == len(joints) else MIXED
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


def _pieces(inner: str) -> tuple[list[str], list[str]]:
    """(items, what joins them) at commas, semicolons, "and", "or" outside brackets and braces."""
    if len(inner) > 4000:
        return [], []
    if not _BRACKET.search(inner):
        return _SPLIT.split(inner), _SPLIT.findall(inner)
    marks = []
    level = 0
    for ch in inner:
        if ch in "([⦃{":
            level += 1
        marks.append(level)
        if ch in ")]⦄}":
            level -= 1
    pieces, joints, at = [], [], 0
    for found in _SPLIT.finditer(inner):
        if marks[found.start()] == 0:
            pieces.append(inner[at : found.start()].strip())
            joints.append(found.group())
            at = found.end()
    pieces.append(inner[at:].strip())
    return pieces, joints
