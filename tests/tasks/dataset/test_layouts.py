"""Rows of the published schemas become problems. The rows are invented; columns and types are those of the data sets."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline_config.sources import Columns, FileSource, HubSource
from tasks.contract.answers import same_answer
from tasks.dataset.layouts import (
    BadRow,
    columns_row,
    dapo_row,
    gsm8k_row,
    openmath_row,
    rule_for,
    strip_dapo,
    strip_think,
    to_problem,
    wanted_columns,
)

HEAD = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: $Answer "
    "(without quotes) where $Answer is the answer to the problem.\n\n"
)
TAIL = '\n\nRemember to put your answer on its own line after "Answer:".'
DIVISORS = "Let $S$ be the sum of all positive divisors of $60$. Find the remainder when $S$ is divided by $100$."
PAIRS = r"Find the number of ordered pairs $(a,b)$ of positive integers such that $a+b=74$ and $\gcd(a,b)=1$."

GSM8K = {
    "question": "Ann had 48 cups and sold half of them. How many are left, if 2,101 are added?",
    "answer": "She sold 48/2=<<48/2=24>>24 cups.\nThen 24 + 2101 = <<24+2101=2125>>2,125 are there.\n#### 2,125",
}
DAPO_ORIGINAL: dict[str, Any] = {
    "data_source": "math_dapo",
    "prompt": [{"content": HEAD + DIVISORS + TAIL, "role": "user"}],
    "ability": "MATH",
    "reward_model": {"ground_truth": "68", "style": "rule-lighteval/MATH_v2"},
    "extra_info": {"index": "00000000-0000-4000-8000-000000000001"},
}
DAPO_PROCESSED: dict[str, Any] = {
    **DAPO_ORIGINAL,
    "prompt": DIVISORS,
    "solution": "68",
    "source_prompt": DAPO_ORIGINAL["prompt"],
}
OPENMATH = {
    "expected_answer": "4",
    "problem_type": "has_answer_extracted",
    "problem_source": "aops_c4_high_school_math",
    "generation_model": "DeepSeek-R1",
    "pass_rate_72b_tir": "0.96875",
    "problem": "Determine the value of $x$ if $3^{x+1} - 3^{x} = 162$.",
    "generated_solution": "<think>\nFactor out 3^x, so 3^x = 81 and x = 4.\n</think>\nHence \n\\[\n\\boxed{4}\n\\]",
    "inference_mode": "cot",
}
MATH500 = {
    "problem": "What is $\\frac{30}{56}$ in lowest terms?",
    "solution": "It is $\\boxed{\\frac{15}{28}}$.",
    "answer": "\\frac{15}{28}",
    "subject": "Prealgebra",
    "level": 2,
    "unique_id": "test/prealgebra/99901.json",
}


def test_gsm8k() -> None:
    question, gold, working = gsm8k_row(GSM8K)
    assert question == GSM8K["question"]
    assert gold == "2,125"
    assert working == "She sold 48/2=24 cups.\nThen 24 + 2101 = 2,125 are there."


@pytest.mark.parametrize("answer", ["12 apples", "#### ", "####", "#### 5\nand more", "so ### 5"])
def test_gsm8k_without_a_gold(answer: str) -> None:
    with pytest.raises(BadRow) as error:
        gsm8k_row({"question": "How many?", "answer": answer})
    assert (error.value.reason, error.value.column) == ("no_gold", "answer")


@pytest.mark.parametrize(
    ("answer", "gold"), [("#### 5", "5"), ("a\n####  -10 \n", "-10"), ("a\n#### 1\nb\n#### 2", "2")]
)
def test_gsm8k_golds(answer: str, gold: str) -> None:
    assert gsm8k_row({"question": "How many?", "answer": answer})[1] == gold


def test_openmath_keeps_the_thoughts_and_drops_the_marks() -> None:
    question, gold, working = openmath_row(OPENMATH)
    assert (question, gold) == (OPENMATH["problem"], "4")
    assert working == "Factor out 3^x, so 3^x = 81 and x = 4.\n\nHence \n\\[\n\\boxed{4}\n\\]"


def test_openmath_can_keep_the_summary_only() -> None:
    assert openmath_row(OPENMATH, keep_thoughts=False)[2] == "Hence \n\\[\n\\boxed{4}\n\\]"
    assert strip_think("thoughts whose mark was in the prompt</think>\nso 4", keep=False) == "so 4"
    assert strip_think("<think>never closed", keep=False) == "never closed"


@pytest.mark.parametrize("row", [DAPO_PROCESSED, DAPO_ORIGINAL, {**DAPO_PROCESSED, "prompt": HEAD + DIVISORS + TAIL}])
def test_dapo_in_all_its_forms(row: dict[str, Any]) -> None:
    assert dapo_row(row) == (DIVISORS, "68", "")


def test_dapo_aime_with_integer_index() -> None:
    row = {
        "data_source": "math_dapo",
        "prompt": [{"content": HEAD + PAIRS + TAIL, "role": "user"}],
        "ability": "MATH",
        "reward_model": {"ground_truth": "36", "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": 2, "raw_problem": PAIRS, "split": None},
        "__index_level_0__": 7,
    }
    assert dapo_row(row) == (PAIRS, "36", "")


def test_the_instruction_of_dapo_alone_is_no_question() -> None:
    assert strip_dapo(HEAD + "x" + TAIL) == "x"
    with pytest.raises(BadRow, match="the question is empty"):
        dapo_row({"prompt": HEAD.strip() + TAIL, "solution": "1"})


@pytest.mark.parametrize(
    ("row", "columns", "expected"),
    [
        (
            MATH500,
            Columns(question="problem", working="solution"),
            (MATH500["problem"], MATH500["answer"], MATH500["solution"]),
        ),
        ({"problem": PAIRS, "answer": 36}, Columns(question="problem"), (PAIRS, "36", "")),
        ({"problem": PAIRS, "answer": "036"}, Columns(question="problem"), (PAIRS, "036", "")),
        ({"question": PAIRS, "answer": "36"}, Columns(), (PAIRS, "36", "")),
        ({"question": "q", "answer": 36.0}, Columns(), ("q", "36", "")),
        ({"question": "q", "answer": -0.5}, Columns(), ("q", "-0.5", "")),
        ({"question": " q ", "answer": " 3 "}, Columns(), ("q", "3", "")),
        ({"question": "q", "answer": "3", "w": None}, Columns(working="w"), ("q", "3", "")),
        (
            DAPO_ORIGINAL,
            Columns(question="prompt", answer="reward_model.ground_truth"),
            (HEAD + DIVISORS + TAIL, "68", ""),
        ),
        ({"question": "q", "a.b": "1", "a": {"b": "2"}}, Columns(answer="a.b"), ("q", "1", "")),
        (
            {"question": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}], "answer": "1"},
            Columns(),
            ("u", "1", ""),
        ),
    ],
)
def test_named_columns(row: dict[str, Any], columns: Columns, expected: tuple[str, str, str]) -> None:
    assert columns_row(row, columns) == expected


@pytest.mark.parametrize(
    ("row", "reason", "column", "message"),
    [
        ({"question": "q"}, "missing_column", "answer", "the column is missing; the row has: question"),
        ({"answer": "1"}, "missing_column", "question", "the column is missing; the row has: answer"),
        ({}, "missing_column", "question", "the row has: none"),
        ({"question": "q", "answer": ""}, "no_gold", "answer", "no gold: the answer is empty"),
        ({"question": "q", "answer": "  "}, "no_gold", "answer", "no gold"),
        ({"question": "q", "answer": None}, "no_gold", "answer", "no gold"),
        ({"question": "q", "answer": float("nan")}, "no_gold", "answer", "nan is not a number"),
        ({"question": "q", "answer": True}, "wrong_type", "answer", "is true or false"),
        ({"question": "q", "answer": [1]}, "wrong_type", "answer", "is a list"),
        ({"question": "q", "answer": {"a": 1}}, "wrong_type", "answer", "is an object"),
        ({"question": "", "answer": "1"}, "no_question", "question", "the question is empty"),
        ({"question": None, "answer": "1"}, "no_question", "question", "the question is empty"),
        (
            {"question": 5, "answer": "1"},
            "wrong_type",
            "question",
            "should be text or a list of messages and is a number",
        ),
        ({"question": [], "answer": "1"}, "no_question", "question", "no user message"),
        ({"question": [{"role": "user"}], "answer": "1"}, "no_question", "question", "empty"),
        ({"question": ["q"], "answer": "1"}, "no_question", "question", "no user message"),
    ],
)
def test_bad_rows(row: dict[str, Any], reason: str, column: str, message: str) -> None:
    with pytest.raises(BadRow, match=message) as error:
        columns_row(row, Columns())
    assert (error.value.reason, error.value.column) == (reason, column)


def test_nested_column_that_is_not_there() -> None:
    with pytest.raises(BadRow) as error:
        columns_row({"question": "q", "reward_model": {"style": "x"}}, Columns(answer="reward_model.ground_truth"))
    assert error.value.column == "reward_model.ground_truth"


@pytest.mark.parametrize("row", [[1, 2], "text", 5, None])
def test_a_row_must_be_an_object(row: object) -> None:
    with pytest.raises(BadRow) as error:
        to_problem(gsm8k_row, row, "file/x", "row 1")
    assert error.value.reason == "not_an_object"


def test_half_a_surrogate_pair_is_no_text() -> None:
    with pytest.raises(BadRow, match="the question holds half a surrogate pair"):
        to_problem(gsm8k_row, json.loads('{"question": "\\ud83d?", "answer": "#### 1"}'), "file/x", "row 1")


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
CELLS = ANY_JSON | st.lists(st.fixed_dictionaries({"role": st.sampled_from(["user", "system"]), "content": ANY_JSON}))
NAMES = ("question", "answer", "prompt", "solution", "problem", "expected_answer", "generated_solution", "reward_model")


@given(
    ANY_JSON | st.dictionaries(st.sampled_from(NAMES), CELLS),
    st.sampled_from(["gsm8k", "math", "aime", "openmath", "dapo", "columns"]),
)
def test_any_row_is_a_problem_or_a_bad_row(row: object, layout: Any) -> None:
    columns = Columns(answer="reward_model.ground_truth", working="answer") if layout == "columns" else None
    rule = rule_for(FileSource(url="a.jsonl", layout=layout, columns=columns))
    try:
        problem = to_problem(rule, row, "file/a.jsonl", "row 1")
    except BadRow as fault:
        assert fault.reason
        assert fault.message
    else:
        assert problem.question.strip() == problem.question != ""
        assert problem.gold.strip() == problem.gold != ""
        f"{problem.question}{problem.gold}{problem.working}".encode()


def test_rules_and_needed_columns_of_the_known_sets() -> None:
    expected = {
        "openai/gsm8k": (("question", "answer"), GSM8K, "2,125"),
        "unsloth/OpenMathReasoning-mini": (("problem", "expected_answer"), OPENMATH, "4"),
        "open-r1/DAPO-Math-17k-Processed": (("prompt",), DAPO_PROCESSED, "68"),
        "BytedTsinghua-SIA/DAPO-Math-17k": (("prompt",), DAPO_ORIGINAL, "68"),
        "HuggingFaceH4/MATH-500": (("problem", "answer", "solution"), MATH500, "\\frac{15}{28}"),
    }
    for name, (columns, row, gold) in expected.items():
        source = HubSource(dataset=name)
        assert wanted_columns(source).needed == columns
        assert rule_for(source)(json.loads(json.dumps(row)))[1] == gold


def test_math_with_and_without_a_solution() -> None:
    rule = rule_for(FileSource(url="math.jsonl", layout="math"))
    assert rule({"problem": "1 + 1?", "answer": "2", "solution": "It is $2$."}) == ("1 + 1?", "2", "It is $2$.")
    assert rule({"problem": "1 + 1?", "answer": 2}) == ("1 + 1?", "2", "")


@pytest.mark.parametrize(
    ("row", "gold"),
    [
        ({"id": 901, "problem": "n?", "solution": "...", "answer": "036", "year": "2024"}, "036"),
        ({"problem_idx": 1, "problem": "n?", "answer": 36}, "36"),
        ({"question": "n?", "answer": "36"}, "36"),
        ({"question": "n?", "answer": 36}, "36"),
    ],
)
def test_aime_in_all_its_shapes(row: dict[str, Any], gold: str) -> None:
    found = rule_for(FileSource(url="aime.jsonl", layout="aime"))(row)
    assert found == ("n?", gold, "") and same_answer(gold, "36")


def test_a_problem_knows_where_it_comes_from() -> None:
    rule = rule_for(FileSource(url="a.jsonl"))
    problem = to_problem(rule, {"question": "q", "answer": 3}, "file/a.jsonl", "row 9")
    assert (problem.question, problem.gold, problem.kind, problem.where) == ("q", "3", "file/a.jsonl", "row 9")
