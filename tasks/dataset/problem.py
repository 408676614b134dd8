"""A problem, and what makes two problems the same."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from dataclasses import dataclass

from tasks.dataset.brackets import is_bracket, without_remarks

_OPERATORS = "+-*/^%=<>|!"
_BRACKETS = "()[]{}"
_FLOORS = "\u230a\u230b\u2308\u2309"
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
        "\u2018": "'",
        "\u2019": "'",
        "\u2032": "'",
    }
)
_LETTER = r"[^\W\d_]"
# NFKC would make 102 of 10\u00b2 and of 10\u2082, and 31/2 of 3\u00bd.
_RAISED = re.compile("[\u00b2\u00b3\u00b9\u2070\u2071\u2074-\u207f]+")
_LOWERED = re.compile("(?<=[0-9])[\u2080-\u208e]+")
_FRACTION = re.compile("[\u00bc-\u00be\u2150-\u215e\u2189]")
_SIZED = re.compile(r"\\+(?:left|right|bigg?[lrm]?)(?![a-z])\s*")
_TIMES, _OVER = re.compile(r"\\+(?:times|cdot)(?![a-z])"), re.compile(r"\\+div(?![a-z])")
_COMMAND = re.compile(r"(\\[a-z]+)(?=[0-9])")
_LATEX_MARKS = re.compile(r"\\+[()\[\]]")
_PRIME = re.compile(rf"(?<![\w'])({_LETTER})('+)(?![^\W_])")
_HYPHEN = re.compile(rf"(?<={_LETTER}{_LETTER})-(?={_LETTER})|(?<={_LETTER})-(?={_LETTER}{_LETTER})")
_THOUSANDS = re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")
_LONE_BANG = re.compile(r"(?<![0-9)\]}])!")
_BARE_POINT = re.compile(r"(?<![\w.])\.(?=[0-9])")
_LONE_POINT = re.compile(r"(?<![0-9])\.|\.(?![0-9])")
_SPACED = re.compile(rf"([+\-*/^%=<>|(\[{{{_FLOORS}]|[)\]}}]!?)")


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

    Unicode NFKC and case folding; punctuation and white space collapse to single spaces. What changes the meaning of a
    formula stays: the signs + - * / ^ % = < > |, the ! of a factorial, the point in 3.5, the prime in f'(2), brackets
    around anything but a remark in words, and the height of a digit (10\u00b2 is 10^2). A thousands comma goes (1,234 is 1234),
    a hyphen inside a word is a space, .5 is 0.5, and LaTeX is read as far as it is another way to write the same: \\times is
    a sign, and \\left, \\right, the marks \\( \\) \\[ \\] and $, and braces around a single token go. Applying it twice changes nothing.
    """
    return " ".join(tokens_of(question))


def tokens_of(question: str) -> list[str]:
    """The parts of `normalise`: words, numbers, signs and brackets."""
    text = question if question.isascii() else _levelled(question)
    for _ in range(2):  # folding can undo NFKC and the other way round; twice is stable
        text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    if "\\" in text:
        text = _LATEX_MARKS.sub(" ", _SIZED.sub("", _OVER.sub("/", _TIMES.sub("*", text))))
        text = _COMMAND.sub(r"\1 ", text)
    text = _THOUSANDS.sub("", text.translate(_UNIFIED))
    if "'" in text:
        text = _PRIME.sub(lambda found: found[1] + "\u2032" * len(found[2]), text).replace("'", " ")
    text = _HYPHEN.sub(" ", text)
    text = _LONE_POINT.sub(" ", _BARE_POINT.sub(" 0.", _LONE_BANG.sub(" ", text)))
    tokens = _SPACED.sub(r" \1 ", text.translate(_KEPT)).split()
    return without_remarks(tokens) if any(map(is_bracket, tokens)) else tokens


def _levelled(text: str) -> str:
    """Raised and lowered characters and fractions set apart from what stands before them, as LaTeX would write them."""
    text = _LOWERED.sub(lambda found: f"_{found[0]} ", _FRACTION.sub(r" \g<0> ", text))
    return _RAISED.sub(lambda found: f"^{{{found[0]}}}", text)


class _Kept(dict[int, int]):
    """Code point -> itself for what is part of a question, else a space. Filled as characters are met."""

    def __missing__(self, code: int) -> int:
        char = chr(code)
        kept = char in _OPERATORS or char in _BRACKETS or char in _FLOORS or char in ".\u2032" or _is_word(char)
        self[code] = code if kept else ord(" ")
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
