"""What was written instead of a tag: the kinds, the nearest tag, and what counts as systematic."""

from __future__ import annotations

from typing import Any

import pytest
from gate_support import CONTRACT, block
from hypothesis import given
from hypothesis import strategies as st

from tasks.format_gate.confusion import confusion, edit_distance, forms_in, kind_of, systematic


@pytest.mark.parametrize(
    ("a", "b", "distance"),
    [("", "", 0), ("abc", "abc", 0), ("abc", "", 1), ("kitten", "sitting", 3 / 7), ("solutoin", "solution", 2 / 8)],
)
def test_normalised_edit_distance(a: str, b: str, distance: float) -> None:
    assert edit_distance(a, b) == edit_distance(b, a) == pytest.approx(distance)


@pytest.mark.parametrize(
    ("piece", "tag", "kind"),
    [
        ("<solution>", "<SOLUTION>", "case"),
        ("< SOLUTION >", "<SOLUTION>", "spacing"),
        ("< solution >", "<SOLUTION>", "spacing"),
        ("&lt;SOLUTION&gt;", "<SOLUTION>", "escaped"),
        ("<SΟLUTION>", "<SOLUTION>", "look_alike"),  # a Greek omicron
        ("[SOLUTION]", "<SOLUTION>", "brackets"),
        ("＜SOLUTION＞", "<SOLUTION>", "brackets"),
        ("<SOLUTION", "<SOLUTION>", "broken"),
        ("<SOLUTION 8", "<SOLUTION>", "broken"),
        ("<end-working-out>", "<end_working_out>", "punctuation"),
        ("<\\SOLUTION>", "</SOLUTION>", "punctuation"),
        ("<SOL>", "<SOLUTION>", "shortened"),
        ("</sol>", "</SOLUTION>", "shortened"),
        ("<SOLUTOIN>", "<SOLUTION>", "misspelt"),
        ("<end_work_out>", "<end_working_out>", "misspelt"),
        ("<answer>", "<SOLUTION>", "renamed"),
        ("</SOLUTION>", "<SOLUTION>", None),
        ("<think>", "<SOLUTION>", None),
        ("<8>", "<SOLUTION>", None),
    ],
)
def test_kinds(piece: str, tag: str, kind: str | None) -> None:
    assert kind_of(piece, tag) == kind


def test_a_piece_belongs_to_the_nearest_tag() -> None:
    """`<START_WORKING_OUT>` is five edits of fifteen away from the end tag, and none from the start tag."""
    assert forms_in("<START_WORKING_OUT> 3", CONTRACT) == {
        "reasoning_start": ("case", "<START_WORKING_OUT>", 0),
    }
    assert forms_in("x <end_working>\n<SOLUTION>5</solution>", CONTRACT) == {
        "reasoning_end": ("shortened", "<end_working>", 2),
        "answer_end": ("case", "</solution>", 27),
    }


def test_every_completion_counts_once_per_tag() -> None:
    texts = [
        block("5"),
        "3\n<end_working_out>\n< solution >5</SOLUTION>",
        "3\n<end_working_out>\n< solution >5</SOLUTION>",
        "3\n<end_working_out>\n<SOL>5</SOLUTION>",
        "3\n<end_working_out><end_working_out>\n<SOLUTION>5</SOLUTION>",
        "3 + 2 and so",
        "it is five",
    ]
    found = confusion(texts, [False] * 5 + [True, False], CONTRACT)
    start = found["answer_start"]
    assert (start["tag"], start["right"], start["cut"], start["missing"]) == ("<SOLUTION>", 2, 1, 1)
    assert start["instead"] == {"shortened": 1, "spacing": 2}
    assert start["forms"][0] == {
        "kind": "spacing",
        "form": "< solution >",
        "count": 2,
        "example": "3\n<end_working_out>\n< solution >5</SOLUTION>",
    }
    assert found["reasoning_end"]["right"] == 4 and found["reasoning_end"]["repeated"] == 1


def test_an_example_shows_what_stands_around() -> None:
    found = confusion(["a" * 100 + "<solution>" + "b" * 100], [False], CONTRACT)
    assert found["answer_start"]["forms"][0]["example"] == "…" + "a" * 60 + "<solution>" + "b" * 60 + "…"


def tags(right: int, missing: int, *counts: int) -> dict[str, dict[str, Any]]:
    forms = [{"kind": "case", "form": f"<s{i}>", "count": count} for i, count in enumerate(counts)]
    return {
        "answer_start": {
            "right": right,
            "repeated": 0,
            "cut": 0,
            "missing": missing,
            "instead": {"case": sum(counts)} if counts else {},
            "forms": forms,
        }
    }


def test_one_form_again_and_again_is_systematic_many_forms_are_not() -> None:
    assert systematic(tags(0, 0, 20)) is not None
    assert systematic(tags(5, 10, 12)) is not None
    assert systematic(tags(0, 0, 8, 7, 6)) is None
    assert systematic(tags(30, 0, 20)) is None  # mostly right: a tag that is being learnt
    assert systematic(tags(0, 50, 20)) is None
    assert systematic(tags(40, 0)) is None


@given(st.text(alphabet="<>/&lt;[] SOLUTIONsolution_ende\n", max_size=200))
def test_any_text(text: str) -> None:
    for item in confusion([text], [False], CONTRACT).values():
        assert item["right"] + item["repeated"] + item["cut"] + item["missing"] + sum(item["instead"].values()) == 1
