"""Grading one completion: the one function that rewards, gate, evaluation and export call."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pipeline_config.contract import ContractConfig
from tasks.contract.answers import read
from tasks.contract.extraction import Extraction, extract, last_block, strip_end_marks
from tasks.contract.golds import Gold, last_boxed, read_gold, same_text
from tasks.contract.kinds import Kind
from tasks.contract.layout import fold_unicode
from tasks.contract.symbolic import judge_symbolic
from tasks.contract.values import MIXED, same_value

__all__ = ["Grade", "Kind", "grade", "lenient"]

_ANSWER_PHRASE = re.compile(r"(?:answer|答案)\s*(?:is|=|:|是|为|：)+\s*:?\s*([^\n]{1,200})", re.IGNORECASE)
_LAST_NUMBER = re.compile(
    r"(?<![\w)])-?(?:\$\s?)?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:\s*/\s*\d+)?%?"
    r"|(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:\s*/\s*\d+)?%?"
    r"|-?\\[dt]?frac\s*\{\s*-?\d+\s*\}\s*\{\s*\d+\s*\}"
)
_TAIL = 4000


@dataclass(frozen=True)
class Grade:
    """The verdict on one completion."""

    kind: Kind
    span: str | None
    """Extracted answer text, not stripped; None when no answer could be read."""
    right: bool
    well_formed: bool
    """Optional reasoning_start at the very beginning, working, one reasoning_end, one answer block, nothing else."""
    detail: str = ""
    """For tag_drift, what was written instead of the tag."""


def grade(completion: str, gold: str, contract: ContractConfig, *, truncated: bool = False) -> Grade:
    """Grade a completion against a gold.

    Args:
        completion: what the model wrote after the prompt (a leading `reasoning_start` is allowed).
        gold: the gold answer as the data set holds it.
        truncated: the completion was cut at the length limit; without a closed answer it is then `truncated`.

    Never raises. Milliseconds unless the gold is not a literal, when a symbolic comparison with a hard limit may follow.
    """
    target = read_gold(_as_text(gold))
    found = extract(_as_text(completion), contract)
    if found.span is None:
        kind = found.kind or Kind.NO_ANSWER
        if truncated and kind is not Kind.DUPLICATED:
            kind = Kind.TRUNCATED
        if target.kind is Kind.BAD_GOLD:
            kind = Kind.BAD_GOLD
        return Grade(kind, None, right=False, well_formed=False, detail=found.detail)
    kind = Kind.BAD_GOLD if target.kind is Kind.BAD_GOLD else _judge_spans(found, target)
    return Grade(kind, found.span, right=kind is Kind.RIGHT, well_formed=found.well_formed, detail=found.detail)


def lenient(completion: str, gold: str, contract: ContractConfig) -> bool:
    """Whether the completion gives the gold in any form: tags or not.

    Tried in turn, the first that exists decides: the answer span; the last answer block anywhere; the last `\\boxed{}`;
    the last `#### x`; the last "answer is x"; the last number.
    """
    target = read_gold(_as_text(gold))
    if target.kind is Kind.BAD_GOLD:
        return False
    completion = _as_text(completion)
    found = extract(completion, contract)
    if found.span is not None:
        return _judge_spans(found, target) is Kind.RIGHT
    text = strip_end_marks(completion, contract)
    candidate = last_block(text, contract) or last_boxed(text) or _after_hashes(text)
    if candidate is not None:
        return _judge(candidate, target) is Kind.RIGHT
    tail = fold_unicode(text[-_TAIL:])
    phrases = _ANSWER_PHRASE.findall(tail)
    if phrases:
        phrase = phrases[-1]
        if _judge(phrase, target) is Kind.RIGHT or _judge(phrase.split(". ")[0], target) is Kind.RIGHT:
            return True
        tail = phrase
    numbers = _LAST_NUMBER.findall(tail)
    return bool(numbers) and _judge(numbers[-1], target) is Kind.RIGHT


def _as_text(value: object) -> str:
    """Columns of a data set may hold numbers or nothing where a text is meant."""
    if isinstance(value, str):
        return value
    return "" if value is None else str(value)


def _after_hashes(text: str) -> str | None:
    at = text.rfind("####")
    if at < 0:
        return None
    return text[at + 4 :].strip().split("\n")[0].strip() or None


def _judge_spans(found: Extraction, target: Gold) -> Kind:
    """One span is judged; two must say the same."""
    if len(found.spans) > 1:
        first, second = read(found.spans[0]), read(found.spans[-1])
        same = same_text(found.spans[0], found.spans[-1]) or (
            first.value is not None and second.value is not None and same_value(first.value, second.value)
        )
        if not same:
            return Kind.HEDGED
    return _judge(found.spans[-1], target)


def _judge(span: str, target: Gold) -> Kind:
    reading = read(span)
    value = reading.compared
    if value is not None and target.value is not None:
        if same_value(value, target.value):
            return Kind.RIGHT
        if value.items is not None and (target.value.items is None or value.brackets == MIXED):
            return Kind.HEDGED
        return Kind.WRONG
    if target.value is None or target.symbolic:
        return judge_symbolic(span, reading, target)
    return Kind.WRONG if reading.kind is Kind.RIGHT else reading.kind
