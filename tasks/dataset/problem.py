"""A problem, and what makes two problems the same."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from dataclasses import dataclass

_OPERATORS = "+-*/^%=<>|!"
_UNIFIED = str.maketrans(
    {
        "\u2212": "-",
        "\u2013": "-",
        "\u2014": "-",
        "\u00d7": "*",
        "\u00b7": "*",
        "\u00f7": "/",
        "\u2044": "/",
        "\u2215": "/",
    }
)
_LETTER = r"[^\W\d_]"
_HYPHEN = re.compile(rf"(?<={_LETTER}{_LETTER})-(?={_LETTER})|(?<={_LETTER})-(?={_LETTER}{_LETTER})")
_THOUSANDS = re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")
_LONE_BANG = re.compile(r"(?<![0-9])!")
_LONE_POINT = re.compile(r"(?<![0-9])\.|\.(?![0-9])")
_SPACED = re.compile(r"([+\-*/^%=<>|])")


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem. `kind` names its source, `level` its difficulty, `where` the row or index it came from."""

    question: str
    gold: str
    working: str = ""
    kind: str = ""
    level: str = ""
    where: str = ""


def normalise(question: str) -> str:
    """The form in which two questions are compared.

    Unicode NFKC and case folding; punctuation and white space collapse to single spaces. Signs that change the
    meaning of a sum stay (+ - * / ^ % = < > | and the ! of a factorial, the point in 3.5), a thousands comma goes
    (1,234 is 1234), and a hyphen inside a word is a space. Applying it twice changes nothing.
    """
    text = question
    for _ in range(2):  # folding can undo NFKC and the other way round; twice is stable
        text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    text = _THOUSANDS.sub("", text.translate(_UNIFIED))
    text = _HYPHEN.sub(" ", text)
    text = _LONE_POINT.sub(" ", _LONE_BANG.sub(" ", text))
    return " ".join(_SPACED.sub(r" \1 ", text.translate(_KEPT)).split())


class _Kept(dict[int, int]):
    """Code point -> itself for what is part of a question, else a space. Filled as characters are met."""

    def __missing__(self, code: int) -> int:
        char = chr(code)
        self[code] = code if char in _OPERATORS or char == "." or _is_word(char) else ord(" ")
        return self[code]


_KEPT = _Kept()


def _is_word(char: str) -> bool:
    """Letters, marks, digits and mathematical symbols; not punctuation, currency, modifiers, spaces or controls."""
    category = unicodedata.category(char)
    return category[0] in "LMN" or category in ("Sm", "So")


def content_digest(question: str) -> str:
    """128 bits of SHA-256 over the normalised question, in hex: the id of a problem."""
    return hashlib.sha256(normalise(question).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def unit_hash(*terms: object) -> float:
    """A number in [0, 1) that depends only on the terms."""
    text = "\x1f".join(str(term) for term in terms)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big") / float(1 << 56)


def gold_in_question(gold: str, question: str) -> bool:
    """Whether the gold stands in the question as a whole number or word (so that it could be copied)."""
    needle = gold.strip().replace(",", "")
    if not needle:
        return False
    text = _THOUSANDS.sub("", question)
    return re.search(rf"(?<![\w.]){re.escape(needle)}(?![\w]|\.[0-9])", text) is not None
