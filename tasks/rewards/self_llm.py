"""The tutorial's reward functions with the tutorial's values, for those who want to reproduce its runs.

Values: the self-llm notebook (Qwen3 tutorial 10), which took them from Unsloth's Qwen3 GRPO notebook. They are kept as
they are, with the faults that `grpo-pipeline reward audit` shows: a wrong number within 10 % of the gold (2.0 in total)
outranks a right one written `8 apples` or `1,234` (0.5), `check_answer` punishes an answer with a unit (-4.5) more than
no tags at all (-2.0), and a gold of 0 is only matched by the very string. Differences: the printing is left out, and
the regular expressions are written as searches that give the same result in linear time (the originals are quadratic
or worse in tag spam).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pipeline_config.contract import ContractConfig
from tasks.rewards.spec import RewardSpec, text_of

_NUMBER = re.compile(r"-?[\d.,]+")
_LINE_END = re.compile(r"[^\S\n]*(?:\n|\Z)")

ANSWER_OUTCOMES = {
    "exact": 5.0,
    "spaces": 3.5,
    "within_10_percent": 2.0,
    "within_20_percent": 1.5,
    "no_match": -2.0,
    "wrong": -2.5,
    "not_a_number": -4.5,
}
NUMBER_OUTCOMES = {"right": 3.5, "unparsable": 0.0, "wrong": -1.5, "no_number": -2.5}


def find_answer(text: str, contract: ContractConfig) -> str | None:
    """What the notebook's `match_format` captures.

    The pattern is `reasoning_end .*? answer_start (.+?) answer_end \\s* $`, where `.` matches newlines and `$` matches
    before any newline: from the first answer_start after the first reasoning_end to the first answer_end that ends
    its line.
    """
    end = text.find(contract.reasoning_end)
    start = text.find(contract.answer_start, end + len(contract.reasoning_end)) if end >= 0 else -1
    if start < 0:
        return None
    start += len(contract.answer_start)
    close = text.find(contract.answer_end, start + 1)
    while close >= 0:
        if _LINE_END.match(text, close + len(contract.answer_end)):
            return text[start:close]
        close = text.find(contract.answer_end, close + 1)
    return None


def find_number(text: str, contract: ContractConfig) -> str | None:
    """What the notebook's `match_numbers` captures: the first run of digits, dots and commas after answer_start."""
    _, tag, after = text.partition(contract.answer_start)
    found = _NUMBER.search(after) if tag else None
    return found.group() if found else None


def exact_format_value(text: str, contract: ContractConfig) -> float:
    """3.0 for the whole format, else 0."""
    return 3.0 if find_answer(text, contract) is not None else 0.0


def approximate_format_value(text: str, contract: ContractConfig) -> float:
    """+0.5 for each of the three tags that stands there exactly once, -1.0 for each other: -3.0 to 1.5."""
    tags = (contract.reasoning_end, contract.answer_start, contract.answer_end)
    return sum(0.5 if text.count(tag) == 1 else -1.0 for tag in tags)


def answer_value(text: str, gold: str, contract: ContractConfig) -> float:
    """5.0 same string, 3.5 but for spaces, 2.0 / 1.5 within 10 / 20 %, -2.5 wrong, -4.5 no number, -2.0 no match."""
    guess = find_answer(text, contract)
    if guess is None:
        return ANSWER_OUTCOMES["no_match"]
    if guess == gold:
        return ANSWER_OUTCOMES["exact"]
    if guess.strip() == gold.strip():
        return ANSWER_OUTCOMES["spaces"]
    try:
        ratio = float(guess) / float(gold)
    except (ValueError, ZeroDivisionError):  # a gold of 0 falls in here, too: the notebook's bare `except` hides it
        return ANSWER_OUTCOMES["not_a_number"]
    if 0.9 <= ratio <= 1.1:
        return ANSWER_OUTCOMES["within_10_percent"]
    if 0.8 <= ratio <= 1.2:
        return ANSWER_OUTCOMES["within_20_percent"]
    return ANSWER_OUTCOMES["wrong"]


def number_value(text: str, gold: str, contract: ContractConfig) -> float:
    """3.5 if the first number after answer_start equals the gold as a float, -1.5 if not, -2.5 none, 0 unparsable."""
    guess = find_number(text, contract)
    if guess is None:
        return NUMBER_OUTCOMES["no_number"]
    try:
        right = float(guess.strip().replace(",", "")) == float(gold.strip())
    except ValueError:
        return NUMBER_OUTCOMES["unparsable"]
    return NUMBER_OUTCOMES["right" if right else "wrong"]


def self_llm_specs(contract: ContractConfig, *, exact_match: bool = False) -> list[RewardSpec]:
    """The functions with TRL's signature. `exact_match` adds `match_format_exactly`, which the notebook leaves out."""

    def match_format_exactly(completions: Sequence[Any], **_: Any) -> list[float]:
        return [exact_format_value(text_of(c), contract) for c in completions]

    def match_format_approximately(completions: Sequence[Any], **_: Any) -> list[float]:
        return [approximate_format_value(text_of(c), contract) for c in completions]

    def check_answer(completions: Sequence[Any], answer: Sequence[Any], **_: Any) -> list[float]:
        return [answer_value(text_of(c), str(gold), contract) for c, gold in zip(completions, answer, strict=True)]

    def check_numbers(completions: Sequence[Any], answer: Sequence[Any], **_: Any) -> list[float]:
        return [number_value(text_of(c), str(gold), contract) for c, gold in zip(completions, answer, strict=True)]

    tags = {"all_tags": 1.5, "one_wrong": 0.0, "two_wrong": -1.5, "no_tags": -3.0}
    format_outcomes = {"format": 3.0, "no_format": 0.0}
    exactly = RewardSpec("match_format_exactly", match_format_exactly, format_outcomes, maximum=3.0, minimum=0.0)
    return [
        *([exactly] if exact_match else []),
        RewardSpec("match_format_approximately", match_format_approximately, tags, maximum=1.5, minimum=-3.0),
        RewardSpec("check_answer", check_answer, ANSWER_OUTCOMES, maximum=5.0, minimum=-4.5),
        RewardSpec("check_numbers", check_numbers, NUMBER_OUTCOMES, maximum=3.5, minimum=-2.5),
    ]
