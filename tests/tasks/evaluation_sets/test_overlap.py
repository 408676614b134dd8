"""Overlap of evaluation problems with training texts, counted by hand."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tasks.dataset.problem import normalise
from tasks.evaluation_sets.overlap import Overlap, overlaps, scan_tables, words_of

TEN = "one two three four five six seven eight nine ten"


def shares(n: int, questions: list[str], *training: str, working: str = "") -> list[float]:
    index = Overlap(n)
    for question in questions:
        index.add(question)
    for i, text in enumerate(training):
        index.scan("train", str(i), text, working)
    return [index.found(question)[0] for question in questions]


def test_words() -> None:
    assert words_of("What is 1,234 + 5?  (A well-known SUM.)") == [
        "what",
        "is",
        "1234",
        "+",
        "5",
        "a",
        "well",
        "known",
        "sum",
    ]
    assert words_of("小明有3个苹果。") == ["小", "明", "有", "3", "个", "苹", "果"]


def test_share_of_n_grams_by_hand() -> None:
    # Ten words have three windows of eight. A text with the first nine words holds two of them.
    assert shares(8, [TEN], "One, two, three four five six seven EIGHT nine!") == [2 / 3]
    assert shares(8, [TEN], "so: " + TEN + " and more") == [1.0]
    assert shares(8, [TEN], "one two three four five six seven", "two three four five six seven eight") == [0.0]
    assert shares(8, [TEN], "one two three four FIVE AND six seven eight nine ten") == [0.0]
    # The two halves of an n-gram in two texts are none.
    assert shares(4, ["a b c d"], "a b", "c d") == [0.0]


def test_several_texts_add_up_and_the_working_counts() -> None:
    question = "a b c d e"  # windows of three: abc bcd cde
    assert shares(3, [question], "a b c x", "y c d e") == [2 / 3]
    assert shares(3, [question], "x", working="now b c d again") == [1 / 3]


def test_a_short_question_is_found_only_as_a_whole_question() -> None:
    assert shares(8, ["What is 27 + 35?"], "what is 27+35") == [1.0]
    assert shares(8, ["What is 27 + 35?"], "What is 27 + 35 + 1?") == [0.0]
    assert shares(8, ["What is 27 + 35?"], "x", working="What is 27 + 35? It is 62.") == [0.0]
    assert shares(8, ["小明有3个苹果"], "小明有 3 个苹果。") == [1.0]
    assert shares(8, ["What is (2+3)*4?"], "What is 2+(3*4)?") == [0.0]
    assert shares(8, ["What is (2+3)*4?"], "what is ( 2+3 ) * 4") == [1.0]


def test_brackets_do_not_hide_a_copy() -> None:
    question = "Find the value of f(x) + g(x) at x = 2 when both are linear"
    assert shares(8, [question], "Find the value of f x + g x, at (x = 2), when both are linear") == [1.0]
    assert shares(8, [question], r"Find the value of $f\left(x\right) + g[x]$ at $x=2$ when both are linear") == [1.0]


def test_rows_name_where_a_problem_was_seen() -> None:
    index = Overlap(3)
    rows: list[dict[str, Any]] = [{"id": "q", "question": "a b c d e f"}, {"id": "r", "question": "p q r"}]
    for row in rows:
        index.add(row["question"])
    tables = {
        "sft": [{"id": "s1", "question": "a b c", "working": "d e f"}],
        "train": [{"id": "t1", "question": "z"}, {"id": "t2", "question": "x b c d e"}],
    }
    assert scan_tables(index, tables) == 3
    # abc and def by the SFT row, bcd and cde by the second training row: all four; the first row with most of them.
    assert overlaps(rows, index, 0.7) == [
        {"id": "q", "overlap": 1.0, "contaminated": True, "table": "sft", "row": "s1"},
        {"id": "r", "overlap": 0.0, "contaminated": False, "table": None, "row": None},
    ]
    assert overlaps(rows, Overlap(3, index.vocabulary, index.grams, dict.fromkeys(index.seen)), 0.7)[0]["overlap"] == 0


@given(st.lists(st.text(alphabet="ab ", max_size=12), min_size=1, max_size=6), st.text(alphabet="abc ", max_size=40))
def test_against_the_definition(questions: list[str], training: str) -> None:
    n, words = 3, words_of(training)
    windows = {tuple(words[i : i + n]) for i in range(len(words) - n + 1)}
    for question, share in zip(questions, shares(n, questions, training), strict=True):
        own = words_of(question)
        if len(own) < n:
            assert share == float(normalise(question) == normalise(training))
        else:
            grams = {tuple(own[i : i + n]) for i in range(len(own) - n + 1)}
            assert share == len(grams & windows) / len(grams)


def test_many_questions_against_a_long_text() -> None:
    index = Overlap(8)
    for i in range(500):
        index.add(f"question {i} " + TEN)
    scan_tables(index, {"sft": [{"id": str(i), "question": TEN, "working": f"{TEN} x {i} " * 5} for i in range(100)]})
    # Twelve words, five windows: three within the ten words, and "5 one two ... seven" from the working of row 5.
    assert index.found("question 5 " + TEN) == (4 / 5, "sft", "0")
    assert index.found("question 300 " + TEN) == (3 / 5, "sft", "0")
