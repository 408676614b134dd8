"""How a model reasons, counted: self-checks, repetition, loops, lengths. What a score hides when two models are equal.

The self-check list follows those used to look for "aha moments": Liu et al. 2025 (arXiv 2503.20783, keyword detection),
with the Chinese forms beside the English ones. A phrase counts what was written, not whether anything was checked.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

NGRAM = 4
"""Length of the word n-grams whose repetition is counted (seq-rep-4 of Welleck et al. 2020, arXiv 1908.04319)."""
LOOP_REPEATS, LOOP_CHARS = 3, 40
"""A completion ends in a loop when its end is one piece of text at least 3 times in a row, over at least 40 characters."""
MAX_LOOP_CHARS = 20_000
"""Characters at the end of a completion in which a loop is looked for."""

SELF_CHECKS: dict[str, str] = {
    # A pause, not the verb: "Wait, ...", "wait! ...", but not "they wait for 5 minutes".
    "wait": r"(?i:\bwait\b(?=\s*(?:[,!—–…-]|\.{2,})))|(?:^|[.!?]\s+)Wait\b(?! for| until)",
    "hold on": r"\bhold on\b",
    "hmm": r"\bhmm+\b",
    "let me check": r"\b(?:let me|let's|let us|i(?:'ll| will| should| need to)) (?:\w+ly )?(?:check|verify|confirm)\b",
    "double-check": r"\b(?:double|cross)[- ]check",
    "check again": r"\b(?:check|verify|think|try|compute|calculate|count)(?: \w+)? again\b|\bre-?check",
    "reconsider": r"\bre-?(?:think|consider|assess|evaluate|examine|calculate|compute|verify)\b",
    "go over": r"\bgo (?:back )?over (?:the|my|these|this|that)\b",
    "mistake": r"\b(?:i|i've|i have) made (?:a|an) (?:\w+ )?(?:mistake|error)\b|\bthat(?:'s| is) (?:not right|wrong|incorrect)\b",
    "等等": r"等等(?=[，,。！!…、]|\s|$)|等一下|稍等|且慢",
    "检查": r"(?:检查|验证|核对|核实|验算|检验|确认)(?:一下|一遍|一次)|(?:让我|我们来|我来|再|来)(?:检查|验证|核对|核实|验算|检验|确认)",
    "重新": r"重新(?:计算|检查|考虑|审视|思考|验证|算|想)|再(?:算|想|看|检查)一(?:遍|次|下)",
    "不对": r"(?:^|[，。！？,.!?\n\s])(?:不对|不，|算错|我错)",
}
"""Name -> pattern, matched without case except where a capital letter is meant."""
_PATTERNS = {
    name: re.compile(pattern, re.MULTILINE if name == "wait" else re.MULTILINE | re.IGNORECASE)
    for name, pattern in SELF_CHECKS.items()
}
# A word, a number, one CJK character, or one sign: Chinese has no blanks between words.
_TOKEN = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]|[^\W_\u3400-\u9fff\uf900-\ufaff]+|[^\w\s]")


def self_checks(text: str) -> dict[str, int]:
    """Phrase -> how often it occurs, without the zeros."""
    counts = {name: sum(1 for _ in pattern.finditer(text)) for name, pattern in _PATTERNS.items()}
    return {name: n for name, n in counts.items() if n}


def repeated_share(text: str, n: int = NGRAM) -> float:
    """Share of word n-grams that occurred before in the same text: 1 - distinct / all; 0 for fewer than n words."""
    words = [word.lower() for word in _TOKEN.findall(text)]
    total = len(words) - n + 1
    if total < 1:
        return 0.0
    return 1 - len(set(zip(*(words[i:] for i in range(n)), strict=False))) / total


def loop_share(text: str) -> float:
    """Share of a text that is its final loop, 0 if it does not end in one. An unfinished last turn belongs to it.

    The loop is found as the longest end of the text that has a period, by the prefix function of the reversed text.
    """
    tail = text[-MAX_LOOP_CHARS:][::-1]
    best, border = 0, [0] * len(tail)
    matched = 0
    for i in range(1, len(tail)):
        while matched and tail[i] != tail[matched]:
            matched = border[matched - 1]
        matched += tail[i] == tail[matched]
        border[i] = matched
        length = i + 1
        if length >= LOOP_CHARS and length >= LOOP_REPEATS * (length - matched):
            best = length
    return best / len(text) if best else 0.0


def behaviour_of(text: str) -> dict[str, Any]:
    """What is counted of one completion: `self_checks` by phrase, `repetition` and `loop` as shares."""
    return {
        "self_checks": self_checks(text),
        "repetition": round(repeated_share(text), 4),
        "loop": round(loop_share(text), 4),
    }


def quantiles(values: Iterable[float]) -> dict[str, float]:
    """min, p10, p25, median, p75, p90, p99 and max by nearest rank; empty for no values."""
    ordered = sorted(values)
    names = (("min", 0.0), ("p10", 0.1), ("p25", 0.25), ("median", 0.5), ("p75", 0.75), ("p90", 0.9), ("p99", 0.99))
    return {
        name: ordered[max(0, math.ceil(share * len(ordered)) - 1)] for name, share in (*names, ("max", 1.0)) if ordered
    }


def totals(items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Counts over the items of a model; items need `behaviour`, `tokens` and `right`.

    Returns:
        `self_checks`: completions with at least one, how many of these are right, and completions by phrase;
        `repetition`: mean and quantiles; `loops`: completions that end in a loop; `tokens`: quantiles, of right and of
        wrong completions too.
    """
    found = [item["behaviour"] for item in items]
    checking = [item for item in items if item["behaviour"]["self_checks"]]
    phrases: dict[str, int] = {}
    for item in checking:
        for name in item["behaviour"]["self_checks"]:
            phrases[name] = phrases.get(name, 0) + 1
    return {
        "n": len(items),
        "self_checks": {
            "completions": len(checking),
            "right": sum(bool(item["right"]) for item in checking),
            "phrases": dict(sorted(phrases.items(), key=lambda pair: (-pair[1], pair[0]))),
        },
        "repetition": {
            "mean": sum(b["repetition"] for b in found) / len(found),
            **quantiles(b["repetition"] for b in found),
        },
        "loops": sum(b["loop"] > 0 for b in found),
        "tokens": {
            "all": quantiles(item["tokens"] for item in items),
            "right": quantiles(item["tokens"] for item in items if item["right"]),
            "wrong": quantiles(item["tokens"] for item in items if not item["right"]),
        },
    }
