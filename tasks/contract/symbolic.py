"""Judging answers to golds that are no literal: words by text, LaTeX by the guarded symbolic comparison.

An algebra system would call `3 + 5` equal to 8 and find `x` in "x or y". So what is hedged, lists more than the gold, adds
where the gold does not, or is prose is sorted out before it is asked.
"""

from __future__ import annotations

import re

from tasks.contract import hedges, latex
from tasks.contract.answers import MAX_TEXT, Reading
from tasks.contract.golds import Gold, last_boxed, same_text
from tasks.contract.kinds import Kind
from tasks.contract.layout import fold_unicode, strip_outer, tidy
from tasks.contract.units import read_suffix

_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}")
_FUNCTIONS = frozenset(
    [
        "sin",
        "cos",
        "tan",
        "cot",
        "sec",
        "csc",
        "arcsin",
        "arccos",
        "arctan",
        "sinh",
        "cosh",
        "tanh",
        "log",
        "ln",
        "exp",
        "sqrt",
        "max",
        "min",
        "gcd",
        "lcm",
        "mod",
        "det",
        "abs",
        "pmatrix",
        "bmatrix",
        "matrix",
        "vmatrix",
        "cases",
        "array",
        "begin",
        "end",
        "binom",
        "frac",
        "pi",
        "infty",
        "text",
        "mathbb",
        "left",
        "right",
        "cup",
        "cap",
    ]
)
_ADDING = re.compile(r"(?<=[\w)}\]⦄π∞°!'])\s*[+\-±]")
_UNIT_TEXT = re.compile(
    r"\s*(?:\\[,;! ]|~)*\s*\\(?:text|mathrm|textrm|rm|mbox)\s*\{([^{}]{1,40})\}(\^\s*\{?[23]\}?)?\s*$"
)
_PLAIN_UNIT = re.compile(r"(?<=[\d)}\]])\s+([A-Za-z][A-Za-z/ ]{0,30}(?:\^\{?[23]\}?)?)\s*$")
_TO_LATEX = (("π", r"\pi "), ("∞", r"\infty "), ("≤", r"\le "), ("≥", r"\ge "), ("≠", r"\ne "), ("±", r"\pm "), ("÷", r"\div "),
             ("∪", r"\cup "), ("∩", r"\cap "), ("°", r"^{\circ}"), ("**", "^"), ("θ", r"\theta "), ("∈", r"\in "))  # fmt: skip
_ROOT_BRACKETS = re.compile(r"(?:√|(?<![\\A-Za-z])sqrt)\s*\(([^()]{1,80})\)")
_ROOT_NUMBER = re.compile(r"√\s*(\w+)")
_EXPONENT_NUMBER = re.compile(r"\^\s*(-?\d{2,}|-\d)")
_EXPONENT_BRACKETS = re.compile(r"\^\s*\(([^(){}]{1,40})\)")
_NAMES = re.compile(r"(?<![\\A-Za-z])(pi|theta|infinity|sin|cos|tan|ln|log|exp)(?![A-Za-z])")


def judge_symbolic(span: str, reading: Reading, target: Gold) -> Kind:
    """The kind of an answer whose gold is a word or LaTeX."""
    if reading.kind is Kind.EMPTY:
        return Kind.EMPTY
    if same_text(span, target.text):
        return Kind.RIGHT
    if not target.symbolic:
        return Kind.HEDGED if reading.kind is Kind.HEDGED else Kind.WRONG
    if len(span) > MAX_TEXT:
        return reading.kind if reading.kind is not Kind.RIGHT else Kind.WRONG
    answer = tidy(hedges.without_introduction(span))
    refused = _no_single_value(answer, target.text)
    if refused is not None:
        return refused
    return Kind.RIGHT if latex.same_latex(latex_source(span), latex_source(target.source)) else Kind.WRONG


def _no_single_value(answer: str, gold: str) -> Kind | None:
    """`hedged` or `unfinished` for answers that must not reach the algebra system, else None."""
    hedged = hedges.kind_of(answer) is Kind.HEDGED and hedges.kind_of(gold) is not Kind.HEDGED
    if hedged or any(_top_level(answer, sign) > _top_level(gold, sign) for sign in ",;"):
        return Kind.HEDGED
    if answer.count("=") > max(1, gold.count("=")):
        return Kind.HEDGED
    allowed = _FUNCTIONS.union(_WORD.findall(gold))
    body = _PLAIN_UNIT.sub(_drop_unit, answer)
    if any(word not in allowed for word in _WORD.findall(body)):
        return Kind.UNFINISHED
    if _ADDING.search(answer) and not _ADDING.search(gold):
        return Kind.UNFINISHED
    return None


def _top_level(text: str, sign: str) -> int:
    count = level = 0
    for ch in text:
        level += (ch in "([{⦃") - (ch in ")]}⦄")
        count += ch == sign and level <= 0
    return count


def _drop_unit(found: re.Match[str]) -> str:
    return "" if len(found.group(1)) > 1 and read_suffix(" " + found.group(1)) is not None else found.group()


def latex_source(text: str) -> str:
    """An answer or gold as LaTeX for math-verify: outer layout and trailing units off, Unicode signs as commands."""
    text = strip_outer(fold_unicode(hedges.without_introduction(text)))
    if text.startswith("\\boxed"):
        text = last_boxed(text) or text
    unit = _UNIT_TEXT.search(text)
    if unit and unit.start() and read_suffix(" " + unit.group(1).strip()) is not None:
        text = text[: unit.start()]
    text = _PLAIN_UNIT.sub(_drop_unit, text)
    text = _NAMES.sub(lambda word: "\\" + word.group(1).replace("infinity", "infty") + " ", text)
    text = _ROOT_NUMBER.sub(r"\\sqrt{\1}", _ROOT_BRACKETS.sub(r"\\sqrt{\1}", text))
    for sign, command in _TO_LATEX:
        text = text.replace(sign, command)
    return _EXPONENT_BRACKETS.sub(r"^{\1}", _EXPONENT_NUMBER.sub(r"^{\1}", text)).strip()
