"""Exact values of written numbers: decimals, groups of three, fractions, mixed numbers, powers of ten, radicals, pi.

Works on text from `layout.tidy`. Nothing is evaluated and no float is made: a number is `sign * coefficient * sqrt(radicand)
* pi**power`, held as fractions. Sizes are capped before any arithmetic, so every text is read in well under 10 ms.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from math import isqrt

MAX_DIGITS = 20_000
"""Digits of one integer; longer ones are not read."""
MAX_FRACTION_DIGITS = 6_000
"""Digits of a decimal with a fractional part, or of either part of a fraction: reducing them is quadratic."""
MAX_EXPONENT = 10_000
"""Largest power of ten in scientific notation, either sign."""
_CHUNK = 4000
"""Digits converted at once: Python refuses int() of more than 4300."""
_MAX_DEPTH = 6

_INT = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d{1,3}(?:[ ]\d{3})+(?![\d/]|\s*[\\]frac)|\d{1,3}(?:'\d{3})+(?!\d)|\d{1,3}(?:_\d{3})+(?!\d)|\d+)"
_EURO = r"(?:\d{1,3}(?:\.\d{3})+,\d+|\d{1,3}(?:\.\d{3}){2,}(?!\d))"
_DEC = rf"(?:{_EURO}|{_INT}(?:\.\d+(?:[ ]\d{{3}})*|\.(?!\d|\.))?|\.\d+)"
_DECIMAL = re.compile(_DEC)
_EXPONENT = re.compile(r"[eE]([+-]?\d+)(?![\d.])")
_TEN_POWER = re.compile(
    r"\s*(?:\*|[xX])\s*10\s*(?:\^\s*(?:\{\s*([+-]?\s*\d+)\s*\}|\(\s*([+-]?\s*\d+)\s*\)|([+-]?\s*\d+))|\*\*\s*([+-]?\d+))(?![\d.])"
)
_BARE_TEN = re.compile(r"10\s*\^\s*(?:\{\s*([+-]?\s*\d+)\s*\}|\(\s*([+-]?\s*\d+)\s*\)|([+-]?\s*\d+))(?![\d.])")
_SLASH = re.compile(r"\s*/\s*([+-]?)\s*(\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?![\d.,]\d|\s*/|\d|!|\^)")
_MIXED = re.compile(r"(\d+)\s+(?:and\s+)?(\d+)\s*/\s*(\d+)(?![\d.,]\d|\s*/|\d)")
_REPEATING = re.compile(r"(\d+)\.(\d*)(?:\\(?:overline|dot|bar)\s*\{\s*(\d+)\s*\}|\((\d+)\))")
_SIGN = re.compile(r"\s*([+-]?)\s*")
_NAMED_SIGN = re.compile(r"\s*(?:(?:negative|minus)\s+|负\s*)(?=[\da-z.$])", re.IGNORECASE)


@dataclass(frozen=True)
class Number:
    """sign of `coefficient` * sqrt(`radicand`) * pi**`pi`, exactly."""

    coefficient: Fraction
    radicand: int = 1
    pi: int = 0
    evaluated: bool = True
    """False when arithmetic is left to do: 48/2, sqrt(16)."""

    @property
    def key(self) -> tuple[bool, Fraction, int]:
        """Equal exactly when the values are equal (pi is transcendental, so powers of it never mix)."""
        square = self.coefficient * self.coefficient * self.radicand
        return self.coefficient < 0 and square != 0, square, self.pi if square else 0

    @property
    def rational(self) -> Fraction | None:
        """The value when it was written without radicals and pi."""
        return self.coefficient if self.radicand == 1 and self.pi == 0 else None


def to_int(digits: str) -> int:
    """int() without Python's limit on the number of digits. Quadratic: cap the length first."""
    if len(digits) <= _CHUNK:
        return int(digits)
    value = 0
    for at in range(0, len(digits), _CHUNK):
        piece = digits[at : at + _CHUNK]
        value = value * 10 ** len(piece) + int(piece)
    return value


def read_number(text: str, at: int = 0) -> tuple[Number, int] | None:
    """The number that starts at `at` (no sign, no currency) and where it ends; None when there is none.

    The longest reading is taken; what follows must be judged by the caller.
    """
    if len(text) - at > 3 * MAX_DIGITS:
        return None
    return _monomial(text, at, 0)


def read_sign(text: str, at: int) -> tuple[int, int]:
    """(1 or -1, position after the sign and blanks)."""
    found = _SIGN.match(text, at)
    assert found is not None
    if not found.group(1):
        named = _NAMED_SIGN.match(text, at)
        if named:
            return -1, named.end()
    return (-1 if found.group(1) == "-" else 1), found.end()


def _decimal(text: str, at: int) -> tuple[Fraction, int, bool] | None:
    """(value, end, is a plain integer) of a decimal numeral."""
    found = _DECIMAL.match(text, at)
    if not found:
        return None
    written = found.group()
    if len(written) > MAX_DIGITS:
        return None
    if ("." in written and "," in written and written.rfind(",") > written.rfind(".")) or written.count(".") > 1:
        whole, _, part = written.partition(",")
        whole = whole.replace(".", "")
    else:
        whole, _, part = written.partition(".")
    whole = re.sub(r"[ ,'_]", "", whole)
    part = part.replace(" ", "")
    if len(whole) > 1 and whole[0] == "0" and re.match(r"0+[ ,'_]", written):
        return None  # 0,123 is no group of thousands
    if part and len(whole) + len(part) > MAX_FRACTION_DIGITS:
        return None
    value = Fraction(to_int((whole + part) or "0"), 10 ** len(part)) if part else Fraction(to_int(whole))
    return value, found.end(), "." not in written and "," not in part


def _scaled(value: Fraction, exponent: str) -> Fraction | None:
    digits = exponent.replace(" ", "").lstrip("+-").lstrip("0")
    power = int(digits or 0) if len(digits) <= 5 else MAX_EXPONENT + 1
    if power > MAX_EXPONENT:
        return None
    scale = Fraction(10**power)
    return value / scale if "-" in exponent else value * scale


def _monomial(text: str, at: int, depth: int) -> tuple[Number, int] | None:
    if depth > _MAX_DEPTH:
        return None
    head = text[at : at + 1]
    if head.isdigit() or head == ".":
        return _from_digits(text, at, depth)
    if head == "\\" and text.startswith("\\frac", at):
        found = _latex_fraction(text, at + 5, depth)
        return _with_factors(text, found, depth) if found else None
    if head == "√" or head == "π" or text.startswith("\\sqrt", at) or _is_pi_word(text, at):
        return _with_factors(text, (Number(Fraction(1)), at), depth)
    return None


def _from_digits(text: str, at: int, depth: int) -> tuple[Number, int] | None:
    mixed = _MIXED.match(text, at)
    if mixed:
        whole, over, under = (to_int(part) if len(part) <= 1000 else 0 for part in mixed.groups())
        if 0 < over < under:
            return Number(whole + Fraction(over, under)), mixed.end()
    repeating = _REPEATING.match(text, at)
    if repeating and repeating.end() - at <= 500:
        whole_text, fixed, cycle = repeating.group(1), repeating.group(2), repeating.group(3) or repeating.group(4)
        value = Fraction(to_int(whole_text + fixed), 10 ** len(fixed))
        return Number(value + Fraction(to_int(cycle), 10 ** len(fixed) * (10 ** len(cycle) - 1))), repeating.end()
    bare = _BARE_TEN.match(text, at)
    if bare:
        scaled = _scaled(Fraction(1), next(group for group in bare.groups() if group))
        return (Number(scaled), bare.end()) if scaled is not None else None
    read = _decimal(text, at)
    if read is None:
        return None
    value, end, integer = read
    exponent = _EXPONENT.match(text, end) or _TEN_POWER.match(text, end)
    if exponent:
        scaled = _scaled(value, next(group for group in exponent.groups() if group))
        return (Number(scaled), exponent.end()) if scaled is not None else None
    if not integer:
        return _with_factors(text, (Number(value), end), depth)
    slash = _SLASH.match(text, end)
    if slash:
        sign, under_text = slash.groups()
        short = max(len(under_text), end - at) <= MAX_FRACTION_DIGITS
        under = to_int(under_text.replace(",", "")) if short else 0
        if under == 0:
            return None
        return _quotient(value, Fraction(-under if sign == "-" else under)), slash.end()
    if text.startswith("\\frac", end) or text.startswith(" \\frac", end):
        part = _latex_fraction(text, text.index("\\frac", end) + 5, depth)
        if part is None or part[0].rational is None or not 0 < part[0].coefficient < 1:
            return None
        return Number(value + part[0].coefficient), part[1]
    return _with_factors(text, (Number(value), end), depth)


def _quotient(over: Fraction, under: Fraction) -> Number:
    value = over / under
    return Number(value, evaluated=value.denominator != 1 or abs(under) == 1)


def _is_pi_word(text: str, at: int) -> bool:
    return text.startswith("pi", at) and not text[at + 2 : at + 3].isalnum()


def _with_factors(text: str, start: tuple[Number, int], depth: int) -> tuple[Number, int] | None:
    """Radicals and pi that follow a coefficient, then a division by an integer: `2\\sqrt{3}`, `5π/6`, `√2/2`."""
    number, end = start
    seen = False
    for _ in range(3):
        at = end
        while text[at : at + 1] in (" ", "*") and at - end < 4:
            at += 1
        if text.startswith("π", at) or _is_pi_word(text, at):
            number = Number(number.coefficient, number.radicand, number.pi + 1, number.evaluated)
            end, seen = at + (1 if text[at] == "π" else 2), True
        elif text.startswith("√", at) or text.startswith("\\sqrt", at):
            root = _radicand(text, at + (1 if text[at] == "√" else 5))
            if root is None or number.radicand != 1:
                return None
            under, end = root
            simple = is_square(under)
            number = Number(number.coefficient, under, number.pi, number.evaluated and not simple)
            seen = True
        else:
            break
    if not seen:
        return number, end
    slash = _SLASH.match(text, end)
    if slash and len(slash.group(2)) <= 50:
        divisor = int(slash.group(2).replace(",", "")) * (-1 if slash.group(1) == "-" else 1)
        if divisor == 0:
            return None
        return Number(number.coefficient / divisor, number.radicand, number.pi, number.evaluated), slash.end()
    return number, end


def is_square(value: int) -> bool:
    """Whether an integer is a perfect square."""
    return isqrt(value) ** 2 == value


_ROOT_ARG = re.compile(r"\s*(?:\{\s*(\d{1,50})\s*\}|\(\s*(\d{1,50})\s*\)|(\d{1,50})(?![\d.,]))")


def _radicand(text: str, at: int) -> tuple[int, int] | None:
    found = _ROOT_ARG.match(text, at)
    if not found:
        return None
    digits = next(group for group in found.groups() if group)
    if found.group(3) and text[at - 1] == "t" and len(digits) > 1:
        return int(digits[0]), at + len(found.group()) - len(digits) + 1  # \sqrt12 is sqrt(1) 2 in LaTeX
    return int(digits), found.end()


_FRAC_DIGIT = re.compile(r"\s*(\d)")
_FRAC_OPEN = re.compile(r"\s*\{\s*([+-]?)\s*")
_FRAC_CLOSE = re.compile(r"\s*\}")


def _frac_part(text: str, at: int, depth: int) -> tuple[Number, int] | None:
    opened = _FRAC_OPEN.match(text, at)
    if opened:
        inner = _monomial(text, opened.end(), depth + 1)
        if inner is None:
            return None
        closed = _FRAC_CLOSE.match(text, inner[1])
        if not closed:
            return None
        number = inner[0]
        if opened.group(1) == "-":
            number = Number(-number.coefficient, number.radicand, number.pi, number.evaluated)
        return number, closed.end()
    digit = _FRAC_DIGIT.match(text, at)
    return (Number(Fraction(int(digit.group(1)))), digit.end()) if digit else None


def _latex_fraction(text: str, at: int, depth: int) -> tuple[Number, int] | None:
    """`\\frac` arguments: braced or single digits; the denominator must be rational and not zero."""
    over = _frac_part(text, at, depth)
    under = _frac_part(text, over[1], depth) if over else None
    if over is None or under is None or under[1] - at > 2 * MAX_FRACTION_DIGITS:
        return None
    top, bottom = over[0], under[0].rational
    if not bottom or not top.evaluated or not under[0].evaluated:
        return None
    if (top.coefficient.denominator != 1 and top.rational is not None) or bottom.denominator != 1:
        return None  # a quotient of decimals or of fractions is work left to do
    if top.rational is not None:
        return _quotient(top.coefficient, bottom), under[1]
    return Number(top.coefficient / bottom, top.radicand, top.pi, top.evaluated), under[1]
