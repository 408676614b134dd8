"""What may stand after a number without changing it: units, percent signs, scales, counted nouns; and what may not."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache

from tasks.contract.words import (
    ABBREVIATIONS,
    CJK_SCALED_UNIT,
    EXPONENT_WORDS,
    FORBIDDEN,
    FORBIDDEN_CJK,
    LINKS,
    NO_MEANING,
    NOT_COUNTED,
    NOT_COUNTED_CJK,
    PREFIX_CURRENCY,
    SCALES,
    SINGLE_LETTER_UNITS,
    TWO_LETTER_UNITS,
    UNITS,
)

_PIECE = re.compile(
    r"(?:mm|cm|dm|m|km|in|ft|yd|mi)[23](?!\w)|[^\W\d_]+(?:['-][^\W\d_]+)*|\^\s*\{?\s*-?\d\s*\}?|[°%]|\S"
)
_HYPHEN = re.compile(r"-[^\W\d_]{2}")
_PARTICIPLE = re.compile(r"\w{2,}(?<!e)ed")
_CJK = re.compile(r"[\u3400-\u9fff]")
_LATIN = re.compile(r"[A-Za-z\u0370-\u03ff]")
_BASIS_POINTS = re.compile(r"\bbasis\s+points?\b", re.IGNORECASE)
_PRODUCT = re.compile(r"a?b?c?d?x?y?z?|[u-z]+|[b-df-hj-np-tv-xz]+")
"""Letters that are no word: "8 abc", "8 xyz", "8 pqr"."""
_ACRONYMS = re.compile(r"[A-Z]+s")
_LETTER_PAIRS = frozenset(("nm", "ns", "ms", "ah", "as", "wh", "ws", "js", "va", "vs"))
"""Units of two letters with a blank between, such as "N m"; others are a product of variables: "g t^2"."""
_LETTERS = re.compile(r"[^\W\d_]+")
_KNOWN = frozenset(UNITS).union(NO_MEANING, EXPONENT_WORDS, TWO_LETTER_UNITS, ABBREVIATIONS, ("in", "per"))
_MAX_LENGTH = 64
_MAX_WORDS = 5
_CURRENCY_SIGNS = frozenset("€£¥₹$¢")


@dataclass(frozen=True)
class Suffix:
    """What stands after a number: a scale to multiply by, a unit if known, and whether it is a percentage or dozens."""

    scale: Fraction = Fraction(1)
    unit: str = ""
    percent: bool = False
    dozen: bool = False


PLAIN = Suffix()


@dataclass
class _Seen:
    """State while the pieces of a suffix are read from left to right."""

    glued: bool
    scale: Fraction = Fraction(1)
    percent: bool = False
    dozen: bool = False
    units: list[str] = field(default_factory=list)
    words: int = 0
    previous: str = ""
    exponent: str = ""


def prefix_currency(symbol: str) -> str:
    """Canonical currency of a sign before a number ("$", "US$", "Rs."); empty when unknown."""
    return PREFIX_CURRENCY.get(symbol.strip().lower(), "")


@lru_cache(maxsize=4096)
def read_suffix(text: str) -> Suffix | None:
    """The meaning of what follows a number (blank if it was apart), or None when it makes it something else.

    Examples: `" dollars"`, `" cm^2"`, `"%"`, `"个苹果"`, `" km/h"`, `" million dollars"`; None for `" or so"`, `"x"`,
    `" squared"`, `" more than x"`, `":30"`.
    """
    if len(text) > _MAX_LENGTH or _BASIS_POINTS.search(text):
        return None
    if _HYPHEN.match(text):
        text = " " + text[1:]
    pieces = _PIECE.findall(text)
    seen = _Seen(glued=not text[:1].isspace())
    for at, piece in enumerate(pieces):
        if not _take(seen, piece, at, pieces):
            return None
        seen.previous = piece.lower()
    if seen.exponent or seen.previous in ("per", "/", "*"):
        return None
    lone = seen.words == 1 and seen.previous not in SCALES
    if lone and _PARTICIPLE.fullmatch(seen.previous):
        return None  # "8 doubled", "8 rejected"
    if seen.percent and any(seen.units):
        return None
    unit = "" if any(not name for name in seen.units) else "".join(seen.units)
    return Suffix(seen.scale, unit, seen.percent, seen.dozen)


def known_unit(text: str, nouns: frozenset[str] = frozenset()) -> Suffix | None:
    """The unit that a text names, or None when any word is neither a known unit nor (in lower case) one of `nouns`.

    Scales, percent and dozens are no units. For texts in which an unknown word may be a product of variables.
    """
    suffix = read_suffix(" " + text.strip())
    if suffix is None or suffix.scale != 1 or suffix.dozen or suffix.percent:
        return None
    words = [word for word in _LETTERS.findall(text) if word not in SINGLE_LETTER_UNITS and word not in UNITS]
    return suffix if _KNOWN.union(nouns).issuperset(word.lower() for word in words) else None


def _take(seen: _Seen, piece: str, at: int, pieces: list[str]) -> bool:
    """Read one piece; False when it cannot stand there."""
    lower = piece.lower()
    following = pieces[at + 1].lower() if at + 1 < len(pieces) else ""
    if piece[-1] in "23" and piece[0].isalpha():
        seen.units.extend((UNITS[piece[:-1]], "^" + piece[-1]))
        return True
    if piece[0] == "^":
        seen.units.append("" if "-" in piece else "^" + re.sub(r"\D", "", piece))
        return seen.previous in UNITS or seen.previous in ("unit", "units")
    if lower in ("%", "percent", "percentage", "pct") or (lower == "per" and following == "cent"):
        first = not (seen.percent or seen.units or seen.words)
        seen.percent = True
        return first
    if lower == "cent" and seen.previous == "per" and seen.percent:
        return True
    if lower == "per":
        seen.units.append("/")
        return bool(following)
    if piece == "°":
        seen.units.append("°")
        return at == 0
    if piece[0].isalpha():
        seen.words += 1
        return seen.words <= _MAX_WORDS and _take_word(seen, piece, lower, at, following)
    if piece == "/":
        seen.units.append("/")
        known = following in UNITS and (at > 0 or len(following) > 1 or following == "h")
        return bool(following) and seen.previous not in ("/", "*") and (at > 0 or known)
    if piece == "*":
        seen.units.append("")
        return at > 0 and bool(following) and seen.previous not in ("/", "*")
    if piece in _CURRENCY_SIGNS and len(pieces) == 1:
        seen.units.append(prefix_currency(piece) or "cent")
        return True
    return piece == "." and seen.previous[:1].isalpha()


def _take_word(seen: _Seen, word: str, lower: str, at: int, following: str) -> bool:
    if lower in SCALES:
        seen.scale = Fraction(SCALES[lower])
        return at == 0
    if lower in ("dozen", "dozens"):
        seen.dozen = True
        return at == 0
    if lower in EXPONENT_WORDS:
        seen.exponent = EXPONENT_WORDS[lower]
        return not (seen.glued and at == 0)
    if _CJK.search(word):
        rest = word
        if at == 0:
            seen.scale, rest = _cjk_scale(word)
        seen.units.append(UNITS.get(rest, ""))
        counted = "个" + rest[2:] if rest.startswith("个月") else rest
        return not (_LATIN.search(word) or FORBIDDEN_CJK.search(counted) or NOT_COUNTED_CJK.search(counted))
    if len(word) == 1 == len(seen.previous) and seen.previous.isalpha() and seen.previous + lower not in _LETTER_PAIRS:
        return False
    linked = len(following) > 2 and following[:1].isalpha()
    if not _is_noun(word, lower, seen.glued and at == 0, seen.previous, linked):
        return False
    if lower in NO_MEANING:
        seen.exponent = ""
        return True
    unit = word if seen.previous == "°" else UNITS.get(word) or UNITS.get(lower, "")
    if unit in ("°C", "°F") and seen.units == ["°"]:
        seen.units.clear()
    seen.units.append(unit and unit + seen.exponent)
    seen.exponent = ""
    return True


def _cjk_scale(word: str) -> tuple[Fraction, str]:
    for name in ("百万", "千万", "万", "亿", "千", "百"):
        if word.startswith(name) and not CJK_SCALED_UNIT.match(word):
            return Fraction(SCALES[name]), word[len(name) :]
    return Fraction(1), word


def _is_noun(word: str, lower: str, glued: bool, previous: str, linked: bool) -> bool:
    """Whether a Latin word after a number is a unit or a counted noun."""
    parts = re.split("['-]", lower)
    if ("'" in lower and not lower.endswith("'s")) or not FORBIDDEN.isdisjoint(parts):
        return False
    if not NOT_COUNTED.isdisjoint(parts):
        return False
    if previous == "°":
        return lower in ("c", "f", "celsius", "fahrenheit")
    if lower in LINKS:
        return linked
    if len(word) == 1:
        return word in SINGLE_LETTER_UNITS and not (glued and word in "KA")
    if lower in UNITS or lower in NO_MEANING or lower in ABBREVIATIONS:
        return True
    if len(word) == 2:
        return lower in TWO_LETTER_UNITS or (lower == "in" and not glued)
    if _PRODUCT.fullmatch(lower) and not _ACRONYMS.fullmatch(word):
        return False
    return not glued or (len(word) >= 4 and any(vowel in lower for vowel in "aeiou"))
