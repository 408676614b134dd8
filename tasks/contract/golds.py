"""Reading a gold: a value, a LaTeX expression for the symbolic comparison, a word, or nothing that can be matched."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from tasks.contract.answers import MAX_CHARS, MAX_TEXT, read
from tasks.contract.hedges import is_approximate, without_introduction
from tasks.contract.kinds import Kind
from tasks.contract.layout import tidy
from tasks.contract.values import Value
from tasks.contract.words import FORBIDDEN

_HASHES = re.compile(r"####\s*([^\n]+)")
_NOT_FINITE = frozenset({"nan", "inf", "+inf", "-inf", "none", "null", "n/a", "na", "<na>"})
_MATHS = re.compile(
    r"[\\^=+*/(){}\[\]|√π∞<>≤≥_°]|\d\s*!|\d\s*[A-Za-z]\b|(?<![A-Za-z])[A-Za-z0-9]\s*-\s*[A-Za-z0-9](?![A-Za-z])"
)
_PRODUCT = re.compile(r"\d{1,6}([a-dkm-np-z]{2,3})|[xyz]{2,3}")
"""`2xy`, `xy`. Without a number only these letters: `ab` may name options or be a text, whose order matters."""
_SPACES = re.compile(r"\s+")
_CHOICE = re.compile(r"\(?\s*([a-z])\s*\)?")
_DIGIT = re.compile(r"\d")
_MAX_WORD_GOLD = 60
_MAX_LATEX_GOLD = 400


@dataclass(frozen=True)
class Gold:
    """A gold that was read: `value` when it is literal or a radical, `text` the tidied text, `kind` RIGHT or BAD_GOLD."""

    text: str
    value: Value | None
    kind: Kind
    symbolic: bool
    """Whether an answer that cannot be decided exactly may be asked of the symbolic comparison."""
    source: str = ""
    """The gold as written, without the worked solution around it."""


def read_gold(gold: str) -> Gold:
    """Read a gold. A whole worked solution counts as what stands after its last `####` or in its last `\\boxed{}`."""
    if len(gold) <= 18 and gold.isdecimal() and gold.isascii():
        return Gold(gold, read(gold).value, Kind.RIGHT, symbolic=False, source=gold)
    return _read_gold(gold) if len(gold) <= 2000 else _read_gold.__wrapped__(gold)


@lru_cache(maxsize=8192)
def _read_gold(gold: str) -> Gold:
    if len(gold) > MAX_CHARS:
        return Gold("", None, Kind.BAD_GOLD, False)
    marked = _HASHES.findall(gold)
    if marked:
        gold = marked[-1]
    elif "\\boxed" in gold and gold.strip() and not gold.strip().startswith(("\\boxed", "$")):
        gold = last_boxed(gold) or gold
    text = tidy(gold[:MAX_TEXT])
    if not text or text.lower() in _NOT_FINITE:
        return Gold(text, None, Kind.BAD_GOLD, False)
    reading = read(gold)
    value = reading.value
    if value is not None and reading.kind in (Kind.RIGHT, Kind.UNFINISHED, Kind.HEDGED):
        return Gold(text, value, Kind.RIGHT, symbolic=not value.literal, source=gold)
    if reading.kind is Kind.WRONG:
        return Gold(text, None, Kind.BAD_GOLD, False)
    words = text.split()
    if not _MATHS.search(text) and _DIGIT.search(text) and (_sentence(words, 1) or is_approximate(text)):
        return Gold(text, None, Kind.BAD_GOLD, False)
    if _CHOICE.fullmatch(text.lower()):
        return Gold(text, None, Kind.RIGHT, symbolic=False, source=gold)
    if (_MATHS.search(text) or _is_product(text)) and len(text) <= _MAX_LATEX_GOLD and not _sentence(words):
        return Gold(text, None, Kind.RIGHT, symbolic=True, source=gold)
    if len(text) <= _MAX_WORD_GOLD and not _sentence(words):
        return Gold(text, None, Kind.RIGHT, symbolic=False, source=gold)
    return Gold(text, None, Kind.BAD_GOLD, False)


def _is_product(text: str) -> bool:
    """Whether a text is a number and variables that a word or a time of day (`8pm`) would not spell."""
    found = _PRODUCT.fullmatch(text)
    return found is not None and found.group(1) not in FORBIDDEN


def _sentence(words: list[str], limit: int = 4) -> bool:
    """More than `limit` words; a gold such as "She has 8 apples" is no single value and no word either."""
    return sum(word.isalpha() and len(word) > 1 for word in words) > limit


def last_boxed(text: str) -> str | None:
    """Contents of the last `\\boxed{...}` with balanced braces, or None."""
    at = text.rfind("\\boxed")
    opened = text.find("{", at) if at >= 0 else -1
    if opened < 0:
        return None
    level = 0
    for i in range(opened, min(len(text), opened + MAX_CHARS)):
        if text[i] == "{":
            level += 1
        elif text[i] == "}":
            level -= 1
            if level == 0:
                return text[opened + 1 : i]
    return None


def same_text(answer: str, gold: str) -> bool:
    """Equal as texts once layout, blanks and case are gone; a choice letter may stand in brackets."""
    one, other = _plain(without_introduction(answer[: MAX_TEXT + 1])), _plain(gold)
    if one == other:
        return one != ""
    choice, wanted = _CHOICE.fullmatch(one), _CHOICE.fullmatch(other)
    return bool(choice and wanted and choice.group(1) == wanted.group(1))


def _plain(text: str) -> str:
    if len(text) > MAX_TEXT:
        return ""
    return _SPACES.sub("", tidy(text)).casefold()
