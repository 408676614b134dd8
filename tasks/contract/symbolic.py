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
from tasks.contract.units import known_unit
from tasks.contract.values import units_clash

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
_BLANK = r"(?:\s|\\[,;:! ]|~)"
_UNIT_TEXT = re.compile(rf"{_BLANK}*\\(?:text|mathrm|textrm|rm|mbox)\s*\{{([^{{}}]{{1,40}})\}}(\^\s*\{{?[23]\}}?)?\s*$")
_PLAIN_UNIT = re.compile(rf"(?<=[\d)}}\]]){_BLANK}*([A-Za-z][A-Za-z/. ]{{1,30}}(\^\{{?[23]\}}?)?)\s*$")
_TEXT_LETTERS = re.compile(r"\\(?:text|mathrm|textrm|textbf|mathbf|rm|mbox)\s*\{\s*(?!if\b)([^\W_]{1,3})\s*\}")
_EQUALS = re.compile(r"(?<![<>!:])=|≡")
_AND = re.compile(r"\s*,?\s*(?:\\(?:text|mathrm|textrm|mbox)\s*\{\s*and\s*\}|(?<![\\A-Za-z])and(?![A-Za-z]))\s*")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_LETTERS = re.compile(r"[A-Za-z]+")
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
    gold, gold_source = target.text, target.source
    if _top_level(gold, ","):
        span, gold, gold_source = (_AND.sub(", ", text) for text in (span, gold, gold_source))
    nouns = frozenset(word.lower() for word in _WORD.findall(gold))
    refused = _no_single_value(tidy(hedges.without_introduction(span)), gold, nouns)
    if refused is not None:
        return Kind.WRONG if refused is Kind.UNFINISHED and reading.kind is Kind.RIGHT else refused
    answer, unit = _split_unit(_bare(span), nouns)
    wanted, gold_unit = _split_unit(_bare(gold_source), nouns)
    if units_clash(unit, gold_unit):
        return Kind.WRONG
    answer, wanted = _commands(answer), _commands(wanted)
    if _unsolved(tidy(span), gold):
        left, equals, _ = answer.partition("=")
        if not equals or not latex.same_latex(left, wanted):
            return Kind.WRONG if reading.kind is Kind.RIGHT else Kind.UNFINISHED
    return Kind.RIGHT if latex.same_latex(answer, wanted) else Kind.WRONG


def _no_single_value(answer: str, gold: str, nouns: frozenset[str]) -> Kind | None:
    """`hedged` or `unfinished` for answers that must not reach the algebra system, else None."""
    hedged = hedges.kind_of(answer) is Kind.HEDGED and hedges.kind_of(gold) is not Kind.HEDGED
    if hedged or any(_top_level(answer, sign) > _top_level(gold, sign) for sign in ",;"):
        return Kind.HEDGED
    sides = _EQUALS.split(answer)
    if len(sides) - 1 > max(1, len(_EQUALS.findall(gold))) or (
        len(sides) == 2 and sides[0].strip() == sides[1].strip()
    ):
        return Kind.HEDGED
    if "'" in sides[-1] and "'" not in gold:
        return Kind.UNFINISHED  # a derivative, whose mark the algebra system drops
    allowed = _FUNCTIONS.union(_WORD.findall(gold))
    if any(word not in allowed for word in _WORD.findall(_split_unit(answer, nouns)[0])):
        return Kind.UNFINISHED
    if _ADDING.search(answer) and not _ADDING.search(gold):
        return Kind.UNFINISHED
    return None


def _unsolved(answer: str, gold: str) -> bool:
    """Whether an answer is an equation for something else than the gold: `2x = 10`, `x^2 = 25`, `3 = 1+\\sqrt{3}`.

    The algebra system would take its right side alone. A gold that is an equation itself (`y = 2x+1`) is left to it,
    unless that only names a value (`x = 1+\\sqrt{3}`).
    """
    sides, gold_sides = _EQUALS.split(answer), _EQUALS.split(gold)
    if len(sides) == 1 or len(gold_sides) > 2:
        return False
    if len(gold_sides) == 2 and (hedges.equation_label(gold_sides[0].strip()) is None or _has_variables(gold_sides[1])):
        return False
    return hedges.equation_label(sides[0].strip()) is None


def _has_variables(text: str) -> bool:
    """Whether letters stand for something unknown: not functions, e, or the imaginary unit."""
    words = _LETTERS.findall(_COMMAND.sub(" ", text))
    return any(set(word) - set("ei") for word in words if word not in _FUNCTIONS)


def _top_level(text: str, sign: str) -> int:
    count = level = 0
    for ch in text:
        level += (ch in "([{⦃") - (ch in ")]}⦄")
        count += ch == sign and level <= 0
    return count


def _split_unit(text: str, nouns: frozenset[str]) -> tuple[str, str]:
    """(text without a unit at its end, canonical unit or ""). Words of the gold (`nouns`) may be counted, no others."""
    found = _UNIT_TEXT.search(text)
    if found:
        suffix = known_unit(found.group(1) + (found.group(2) or ""), nouns)
    else:
        found = _PLAIN_UNIT.search(text)
        letters = found.group(1).removesuffix(found.group(2) or "") if found else ""
        # Beside variables two letters are a product: "x + 1 ms".
        product = len(letters) <= 2 and found is not None and _has_variables(text[: found.start()])
        suffix = known_unit(found.group(1), nouns) if found and not product else None
    if not found or not found.start() or suffix is None:
        return text, ""
    return text[: found.start()], suffix.unit


def latex_source(text: str) -> str:
    """An answer or gold as LaTeX for math-verify: outer layout and trailing units off, Unicode signs as commands."""
    return _commands(_split_unit(_bare(text), frozenset())[0])


def _bare(text: str) -> str:
    """Without an introduction and outer layout."""
    text = strip_outer(fold_unicode(hedges.without_introduction(text)))
    return last_boxed(text) or text if text.startswith("\\boxed") else text


def _commands(text: str) -> str:
    """Names and Unicode signs as LaTeX commands. Short texts become letters: math-verify would drop `\\text{k}`."""
    text = _TEXT_LETTERS.sub(r" \1 ", text)
    text = _NAMES.sub(lambda word: "\\" + word.group(1).replace("infinity", "infty") + " ", text)
    text = _ROOT_NUMBER.sub(r"\\sqrt{\1}", _ROOT_BRACKETS.sub(r"\\sqrt{\1}", text))
    for sign, command in _TO_LATEX:
        text = text.replace(sign, command)
    return _EXPONENT_BRACKETS.sub(r"^{\1}", _EXPONENT_NUMBER.sub(r"^{\1}", text)).strip()
