"""A problem's row, and the majority vote over its samples."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from pipeline_config.contract import ContractConfig
from tasks.contract.grading import grade
from tasks.evaluate.items import make_item
from tasks.evaluate.voting import majority

CONTRACT = ContractConfig()


class Text(NamedTuple):
    text: str
    tokens: int = 5
    truncated: bool = False


def answered(answer: str) -> str:
    return f"working<end_working_out><SOLUTION>{answer}</SOLUTION>"


def vote(gold: str, *answers: str) -> float:
    return majority([grade(answered(a) if a else "no idea", gold, CONTRACT) for a in answers])


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (["8", "8.0", "7"], 1.0),  # equal by value
        (["7", "7.0", "8"], 0.0),
        (["8", "7"], 0.5),  # one of two that are tied
        (["8", "7", "6"], 1 / 3),
        (["8", "8", "7", "7.", "6"], 0.5),
        (["8", "", "", ""], 1.0),  # no answer is no vote
        (["8", "7 or 8", "7 or 8"], 1.0),  # nor is a hedge
        (["", "7"], 0.0),
        (["", ""], 0.0),
    ],
)
def test_majority(answers: list[str], expected: float) -> None:
    assert vote("8", *answers) == pytest.approx(expected)


def test_right_answers_are_one_answer_whatever_their_spelling() -> None:
    assert vote(r"\frac{1}{2}", "0.5", r"\frac{2}{4}", "3", "3", "1/2") == 1.0
    assert vote("x+1", "1+x", "x+1", "x", "x") == 0.5


def test_wrong_words_are_counted_by_text() -> None:
    assert vote("blue", "Red", "red ", "blue") == 0.0


def test_an_item() -> None:
    row = {"id": "p", "question": "3 + 5?", "answer": "8", "source": "generated/sum"}
    greedy = Text("Wait, 3 + 5 is 8. The answer is 8", 9)
    samples = [Text(answered("8")), Text(answered("7"), 7), Text("so 8", 9, True)]
    item, rows = make_item(row, greedy, samples, CONTRACT)
    assert (item["right"], item["lenient"], item["well_formed"], item["kind"]) == (False, True, False, "no_answer")
    assert (item["tokens"], item["truncated"], item["source"]) == (9, False, "generated/sum")
    assert item["behaviour"]["self_checks"] == {"wait": 1}
    assert (item["samples"], item["sampled_right"], item["sampled_lenient"], item["sampled_truncated"]) == (3, 1, 2, 1)
    assert item["sampled_tokens"] == 7 and item["majority"] == 0.5
    assert [(r["sample"], r["kind"], r["right"], r["lenient"]) for r in rows] == [
        (0, "right", True, True),
        (1, "wrong", False, False),
        (2, "truncated", False, True),
    ]
    item, rows = make_item(row, greedy, [], CONTRACT)
    assert rows == [] and "samples" not in item
