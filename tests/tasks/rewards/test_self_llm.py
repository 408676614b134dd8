"""The values of the tutorial's notebook, faults included; expected totals were measured on its own functions."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline_config.contract import ContractConfig
from tasks.rewards.self_llm import (
    answer_value,
    approximate_format_value,
    find_answer,
    find_number,
    number_value,
    self_llm_specs,
)

CONTRACT = ContractConfig()
END, OPEN, CLOSE = "<end_working_out>", "<SOLUTION>", "</SOLUTION>"


def total(text: str, gold: str) -> float:
    return sum(spec.function(completions=[text], answer=[gold])[0] for spec in self_llm_specs(CONTRACT))


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("8", "8", 10.0),
        (" 8 ", "8", 8.5),
        ("8.0", "8", 7.0),
        ("8.7", "8", 2.0),  # wrong within 10 %
        ("9.5", "8", 1.5),  # wrong within 20 %
        ("21", "8", -2.5),
        ("8 apples", "8", 0.5),  # right, and below the near miss
        ("1,234", "1234", 0.5),
        (r"\boxed{8}", "8", 0.5),
        ("n/a.", "8", -3.0),
        ("1", "0", -4.5),  # division by zero, hidden in the original
        ("0.0", "0", 0.5),
        ("1/2", "0.5", -4.5),
        ("many", "8", -5.5),
        ("nan", "8", -3.5),
        ("not 8", "8", 0.5),
        ("3 + 5", "8", -4.5),
    ],
)
def test_totals_of_well_formed_answers(write: Callable[..., str], answer: str, gold: str, expected: float) -> None:
    assert total(write(answer), gold) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The answer is 8", -7.5),
        (f"w{END}{OPEN}8", 1.5),  # never closed
        (f"w{END}{OPEN}8{CLOSE} Good luck!", 3.0),  # text after the answer
        (f"{OPEN}8{CLOSE} w {END}", 3.0),  # answer before the working
        (f"w{END}{CLOSE}8{OPEN}", -3.0),
        (f"w{END}{OPEN}7{CLOSE}{OPEN}8{CLOSE}", -7.5),
        (f"w{OPEN}8{CLOSE}{END}{OPEN}21{CLOSE}", -0.5),
    ],
)
def test_totals_of_malformed_completions(text: str, expected: float) -> None:
    assert total(text, "8") == expected


def test_single_functions() -> None:
    assert approximate_format_value("", CONTRACT) == -3.0
    assert answer_value("no tags", "8", CONTRACT) == -2.0
    assert number_value("no tags", "8", CONTRACT) == -2.5
    assert number_value(f"{OPEN}1,234{CLOSE}", "1234", CONTRACT) == 3.5


def test_the_exact_match_is_off_unless_asked_for(write: Callable[..., str]) -> None:
    assert [spec.name for spec in self_llm_specs(CONTRACT)] == [
        "match_format_approximately",
        "check_answer",
        "check_numbers",
    ]
    exact = self_llm_specs(CONTRACT, exact_match=True)[0]
    assert exact.function(completions=[write("8"), "8"]) == [3.0, 0.0]


def test_declared_outcomes_cover_the_values(write: Callable[..., str]) -> None:
    texts = [write(a) for a in ("8", " 8", "8.5", "9.5", "21", "many", "n/a.", "")] + ["", f"w{END}{OPEN}8", f"w{END}"]
    for spec in self_llm_specs(CONTRACT, exact_match=True):
        assert spec.outcomes is not None
        assert set(spec.function(completions=texts, answer=["8"] * len(texts))) <= set(spec.outcomes.values())
        assert (spec.maximum, spec.minimum) == (max(spec.outcomes.values()), min(spec.outcomes.values()))


FORMAT = re.compile(rf"{END}.*?{OPEN}(.+?){CLOSE}[\s]{{0,}}[\s]{{0,}}$", re.MULTILINE | re.DOTALL)
NUMBERS = re.compile(OPEN + r".*?[\s]{0,}([-]?[\d\.\,]{1,})", re.MULTILINE | re.DOTALL)


@given(
    st.lists(st.sampled_from([END, OPEN, CLOSE, "8", "-", ".", ",", "\n", " ", "x", "\t", "\r"]), max_size=14).map(
        "".join
    )
)
def test_the_linear_searches_find_what_the_original_expressions_find(text: str) -> None:
    expected = FORMAT.search(text)
    assert find_answer(text, CONTRACT) == (expected.group(1) if expected else None)
    number = NUMBERS.search(text)
    assert find_number(text, CONTRACT) == (number.group(1) if number else None)
