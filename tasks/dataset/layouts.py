"""From a raw row to a problem: the rules of every known layout, and the faults a row can have."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from pipeline_config.sources import Columns, FileSource, HubSource, Layout, columns_of, layout_of
from tasks.dataset.columns import Wanted
from tasks.dataset.problem import Problem

Row = Mapping[str, Any]
RowRule = Callable[[Row], tuple[str, str, str]]

_GSM8K_GOLD = re.compile(r"\n?[ \t]*####[ \t]*(\S[^\n]*?)\s*\Z")
_CALCULATOR = re.compile(r"<<[^<>]*>>")
_THINK = re.compile(r"<think>(.*?)</think>", re.DOTALL)
_DAPO_HEAD = (
    "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: $Answer (without quotes) where $Answer is the answer to the problem."
)
_DAPO_TAIL = 'Remember to put your answer on its own line after "Answer:".'


class BadRow(Exception):
    """A row that cannot become a problem: `reason` is a key for counting, `column` where it is."""

    def __init__(self, reason: str, message: str, column: str = "") -> None:
        self.reason, self.message, self.column = reason, message, column
        super().__init__(message)


def wanted_columns(source: FileSource | HubSource) -> Wanted:
    """Every column that the rule of the source looks at."""
    layout = layout_of(source)
    if layout == "columns":
        columns = columns_of(source)
        names = [columns.question, columns.answer] + ([columns.working] if columns.working else [])
        return Wanted(tuple(dict.fromkeys(names)))
    return {
        "gsm8k": Wanted(("question", "answer")),
        "math": Wanted(("problem", "answer"), optional=("solution",)),
        "aime": Wanted(("answer",), one_of=("problem", "question")),
        "openmath": Wanted(("problem", "expected_answer"), optional=("generated_solution",)),
        "dapo": Wanted(("prompt",), one_of=("solution", "reward_model.ground_truth")),
    }[layout]


def rule_for(source: FileSource | HubSource) -> RowRule:
    """The function that turns a raw row into (question, gold, working), or raises BadRow."""
    layout: Layout = layout_of(source)
    if layout == "gsm8k":
        return gsm8k_row
    if layout in ("dapo", "aime"):
        return dapo_row if layout == "dapo" else aime_row
    keep = source.think == "keep"
    if layout == "openmath":
        return lambda row: openmath_row(row, keep)
    if layout == "math":
        return lambda row: math_row(row, keep)
    columns = columns_of(source)
    return lambda row: columns_row(row, columns, keep)


def to_problem(rule: RowRule, row: object, kind: str, where: str) -> Problem:
    """Apply a rule; question and gold must not be empty."""
    if not isinstance(row, Mapping):
        raise BadRow("not_an_object", f"the row is a {type(row).__name__}, not an object with named columns")
    question, gold, working = rule(row)
    for name, text in (("question", question), ("answer", gold), ("working", working)):
        if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
            raise BadRow("not_text", f"the {name} holds half a surrogate pair, which is no text")
    return Problem(question, gold, working, kind, "", where)


def columns_row(row: Row, columns: Columns, keep_thoughts: bool = True) -> tuple[str, str, str]:
    """Named columns. A question may be a list of chat messages, a gold may be a number."""
    working = ""
    if columns.working is not None:
        working = strip_think(text_of(row, columns.working, empty_ok=True), keep_thoughts)
    return question_of(row, columns.question), gold_of(row, columns.answer), working


def gsm8k_row(row: Row) -> tuple[str, str, str]:
    """`answer` is a worked solution whose last line is `#### N`. The calculator marks `<<48/2=24>>` are removed."""
    answer = text_of(row, "answer")
    match = _GSM8K_GOLD.search(answer)
    if match is None:
        raise BadRow("no_gold", "no gold: the last line of the answer is not `#### N`", "answer")
    return question_of(row, "question"), match.group(1), _CALCULATOR.sub("", answer[: match.start()]).strip()


def math_row(row: Row, keep_thoughts: bool = True) -> tuple[str, str, str]:
    """MATH and MATH-500: `problem`, `answer` (LaTeX), and `solution` where there is one."""
    working = strip_think(text_of(row, "solution", empty_ok=True), keep_thoughts) if "solution" in row else ""
    return question_of(row, "problem"), gold_of(row, "answer"), working


def aime_row(row: Row) -> tuple[str, str, str]:
    """The shapes in which AIME is published: `problem` or `question`, and an `answer` that is a number or a text, perhaps
    padded with zeros."""
    return question_of(row, "problem" if "problem" in row else "question"), gold_of(row, "answer"), ""


def openmath_row(row: Row, keep_thoughts: bool = True) -> tuple[str, str, str]:
    """OpenMathReasoning: `problem`, `expected_answer`, `generated_solution` (thoughts, then a summary)."""
    working = strip_think(text_of(row, "generated_solution", empty_ok=True), keep_thoughts)
    return question_of(row, "problem"), gold_of(row, "expected_answer"), working


def dapo_row(row: Row) -> tuple[str, str, str]:
    """DAPO-Math-17k, processed (`prompt` text, `solution` the gold) or original (`prompt` messages,
    `reward_model.ground_truth`). The instruction around the question asks for another format, so it is removed."""
    question = strip_dapo(question_of(row, "prompt"))
    if not question:
        raise BadRow("no_question", "the question is empty", "prompt")
    gold = gold_of(row, "solution" if "solution" in row else "reward_model.ground_truth")
    return question, gold, ""


def strip_dapo(text: str) -> str:
    """Remove the instruction that DAPO puts around a question, if it is there."""
    return text.strip().removeprefix(_DAPO_HEAD).removesuffix(_DAPO_TAIL).strip()


def strip_think(text: str, keep: bool) -> str:
    """Remove the marks <think> and </think>, and with `keep` false also what is between them."""
    if not keep:
        text = _THINK.sub("", text)
        if "</think>" in text:  # thoughts whose opening mark was part of the prompt
            text = text.rsplit("</think>", 1)[1]
    return text.replace("<think>", "").replace("</think>", "").strip()


def cell(row: Row, column: str) -> Any:
    """The value of a column, or of a nested one (`reward_model.ground_truth`); a column of that very name wins."""
    if column in row:
        return row[column]
    value: Any = row
    for part in column.split("."):
        if not isinstance(value, Mapping) or part not in value:
            names = ", ".join(sorted(map(str, row)))[:300]
            raise BadRow("missing_column", f"the column is missing; the row has: {names or 'none'}", column)
        value = value[part]
    return value


def text_of(row: Row, column: str, *, empty_ok: bool = False) -> str:
    """A text cell; null counts as empty."""
    value = cell(row, column)
    if value is None:
        value = ""
    if not isinstance(value, str):
        raise BadRow("wrong_type", f"should be text and is {_name(value)}", column)
    if not value.strip() and not empty_ok:
        raise BadRow("empty", "is empty", column)
    return value.strip()


def question_of(row: Row, column: str) -> str:
    """The question: text, or the last user message of a list of chat messages."""
    value = cell(row, column)
    if isinstance(value, list):
        said = [m.get("content") for m in value if isinstance(m, Mapping) and m.get("role") == "user"]
        if not said:
            raise BadRow("no_question", "the list of messages has no user message", column)
        value = said[-1]
    if value is None or (isinstance(value, str) and not value.strip()):
        raise BadRow("no_question", "the question is empty", column)
    if not isinstance(value, str):
        raise BadRow("wrong_type", f"should be text or a list of messages and is {_name(value)}", column)
    return value.strip()


def gold_of(row: Row, column: str) -> str:
    """The gold answer: text, a whole number, a finite float (36.0 is 36) or a decimal (digit for digit)."""
    value = cell(row, column)
    if value is None or (isinstance(value, str) and not value.strip()):
        raise BadRow("no_gold", "no gold: the answer is empty", column)
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, Decimal) and value.is_finite():
        return format(value, "f")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadRow("wrong_type", f"should be text or a number and is {_name(value)}", column)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise BadRow("no_gold", f"no gold: {value} is not a number", column)
        return str(int(value)) if value.is_integer() else repr(value)
    return str(value)


def _name(value: object) -> str:
    names = {bool: "true or false", list: "a list", dict: "an object", int: "a number", float: "a number"}
    return names.get(type(value), f"a {type(value).__name__}")
