"""Which brackets of a question are part of its mathematics, and which only set off a remark."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import cache

OPENING, CLOSING = "([{", ")]}"
_BINDING = ("*", "/", "^")
_OPERATORS = frozenset("+-*/^=<>|")
_TWO_LETTERS = re.compile(r"[^\W\d_]{2}")


def is_bracket(token: str) -> bool:
    """Whether a token is a bracket (a closing one may carry the ! of a factorial)."""
    return token[0] in OPENING or token[0] in CLOSING


def without_remarks(tokens: Sequence[str]) -> list[str]:
    """The tokens without the brackets that say nothing about what is computed.

    These go: brackets without a partner, empty ones, round and square ones around a remark (words, and no operation), curly
    ones around a single token, and any around the single token of an exponent. The brackets of an exponent that stay
    become round ones: x^{2+1} is x^(2+1). Partners need not be of one kind, for [0, 1) is an interval.

    Every rule looks only at tokens that are no brackets, so applying this twice changes nothing.
    """
    plain = [i for i, token in enumerate(tokens) if not is_bracket(token)]
    rank = {place: i for i, place in enumerate(plain)}
    found: dict[int, str] = {}
    opened: list[tuple[int, int]] = []
    seen = 0
    for place, token in enumerate(tokens):
        if place in rank:
            seen += 1
        elif token in OPENING:
            opened.append((place, seen))
        elif opened:
            start, first = opened.pop()
            inner = [tokens[i] for i in plain[first:seen]]
            before = tokens[plain[first - 1]] if first else ""
            after = tokens[plain[seen]] if seen < len(plain) else ""
            kept = _kept(tokens[start], token, inner, before, after)
            if kept is not None:
                found[start], found[place] = kept
    return [found.get(i, token) for i, token in enumerate(tokens) if i in rank or i in found]


def _kept(opening: str, closing: str, inner: list[str], before: str, after: str) -> tuple[str, str] | None:
    """How a pair is written, or None if it goes. `before` and `after` are the nearest tokens that are no brackets."""
    if not inner:
        return None
    factorial = len(closing) > 1
    if before == "^":
        signed = len(inner) == 2 and inner[0] in "+-"
        return None if (len(inner) == 1 or signed) and not factorial else ("(", ")" + closing[1:])
    if opening == "{":
        return None if len(inner) == 1 and not factorial else (opening, closing)
    computes = any(token in _OPERATORS for token in inner) or before in _BINDING or after in _BINDING
    return (opening, closing) if computes or not any(map(_is_word, inner)) else None


@cache
def _script_has_no_case(char: str) -> bool:
    return unicodedata.category(char) == "Lo"


def _is_word(token: str) -> bool:
    """Whether a token is a word of prose rather than a number or a variable: one ideograph is a word, one letter is not."""
    return _TWO_LETTERS.search(token) is not None or (
        not token.isascii() and any(_script_has_no_case(char) for char in token)
    )
