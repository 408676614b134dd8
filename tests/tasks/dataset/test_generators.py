"""Generated problems: hand-computed traces, determinism, independence of items, and golds checked by another route."""

from __future__ import annotations

import ast
import json
import operator
import random
import re
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline_config.sources import ArithmeticSource, LegsSource, SumSource, WordSource
from tasks.dataset.generators import (
    apply,
    columns,
    generate,
    legs_working,
    level_of,
    listed,
    reduced,
    shown,
    story_working,
    sum_short,
    sum_steps,
)
from tasks.dataset.templates import ANIMALS, STORIES

ROOT = Path(__file__).resolve().parents[3]
SOURCES = [
    SumSource(),
    SumSource(min_terms=2, max_terms=5, max_operand=9999, style="plain", trace="short"),
    ArithmeticSource(),
    ArithmeticSource(min_operations=1, max_operations=6, max_operand=50, negative=True, trace="short"),
    ArithmeticSource(operations=("/",), max_operations=4),
    WordSource(max_steps=3),
    WordSource(max_steps=3, max_operand=4, style="plain", trace="short"),
    LegsSource(max_kinds=4),
    LegsSource(trace="none"),
]


# Worked examples, computed by hand.


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        ([27, 35], "27+35: 7+5=12, 2+3+1=6, 62"),
        ([95, 27], "95+27: 5+7=12, 9+2+1=12, 122"),
        ([20, 5], "20+5: 0+5=5, 25"),
        ([5, 27], "5+27: 5+7=12, 2+1=3, 32"),
        ([0, 0], "0+0: 0+0=0, 0"),
        ([500, 3], "500+3: 0+3=3, 503"),
        ([999, 1], "999+1: 9+1=10, 9+1=10, 9+1=10, 1000"),
        ([99, 99, 99], "99+99+99: 9+9+9=27, 9+9+9+2=29, 297"),
    ],
)
def test_short_trace_of_a_sum(terms: list[int], expected: str) -> None:
    assert sum_short(terms) == expected


def test_steps_of_a_sum() -> None:
    assert sum_steps([27, 35]) == "Ones: 7 + 5 = 12, write 2, carry 1.\nTens: 2 + 3 + 1 = 6.\nThe sum is 62."
    assert sum_steps([95, 27]) == "Ones: 5 + 7 = 12, write 2, carry 1.\nTens: 9 + 2 + 1 = 12.\nThe sum is 122."
    assert sum_steps([20, 5]) == "Ones: 0 + 5 = 5.\nTens: 2.\nThe sum is 25."


@given(st.lists(st.integers(0, 10**9 - 1), min_size=2, max_size=12))
def test_columns_add_up(terms: list[int]) -> None:
    steps = columns(terms)
    digits = str(steps[-1][1]) + "".join(str(total % 10) for _, total in reversed(steps[:-1]))
    assert int(digits) == sum(terms)
    assert all(sum(parts) == total for parts, total in steps)


def test_arithmetic_works_products_first() -> None:
    assert reduced([12, "-", 3, "*", 4]) == ("12-3*4: 3*4=12, 12-12=0, 0", 0)
    assert reduced([12, "-", 3, "*", 4], "steps") == (
        "3 * 4 = 12, so we have 12 - 12.\n12 - 12 = 0.",
        0,
    )
    assert reduced([2, "-", 11, "-", 14, "*", -10]) == (
        "2-11-14*(-10): 14*(-10)=-140, 2-11=-9, -9-(-140)=131, 131",
        131,
    )
    assert reduced([16, "/", 2, "/", 4], "none") == ("", 2)
    assert shown([-5, "-", -6]) == "-5 - (-6)"


def test_division_must_be_exact() -> None:
    assert apply(-12, "/", 4) == -3
    with pytest.raises(ValueError, match="not a whole number"):
        apply(7, "/", 2)


def test_legs() -> None:
    herd = [(3, "cow", "cows", 4), (1, "duck", "ducks", 2)]
    assert legs_working(herd, "short") == (14, "3*4=12, 1*2=2, 12+2=14, 14")
    assert legs_working(herd, "steps") == (
        14,
        "A cow has 4 legs: 3 * 4 = 12.\nA duck has 2 legs: 1 * 2 = 2.\nIn total: 12 + 2 = 14.",
    )
    assert legs_working([(2, "ant", "ants", 6)], "short") == (12, "2*6=12, 12")
    assert legs_working([(2, "ant", "ants", 6)], "steps") == (12, "An ant has 6 legs: 2 * 6 = 12.")


def test_word_problem() -> None:
    story = next(s for s in STORIES if [step[1] for step in s.steps] == ["*", "-", "+"])
    numbers = {"a": 5, "b": 4, "c": 8, "d": 3}
    assert story_working(story, numbers, "short") == ("5*4=20, 20-8=12, 12+3=15, 15", 15)
    assert story_working(story, numbers, "steps")[0].splitlines()[1] == "After spending: 20 - 8 = 12."


def test_lists_in_words() -> None:
    assert [listed(list("abc")[:n]) for n in (1, 2, 3)] == ["a", "a and b", "a, b and c"]


def test_plain_sum_asks_one_short_question() -> None:
    problem = generate(SumSource(min_operand=10, style="plain", trace="short"), 0, 0)
    first, second = map(int, re.findall(r"\d+", problem.question))
    assert problem.question == f"What is {first} + {second}?"
    assert problem.gold == str(first + second)
    assert problem.working == sum_short([first, second])


# What holds for every item.

_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def _value(expression: str) -> Fraction:
    """An expression evaluated by Python's own grammar, with fractions."""

    def walk(node: ast.expr) -> Fraction:
        if isinstance(node, ast.BinOp):
            return _OPERATORS[type(node.op)](walk(node.left), walk(node.right))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -walk(node.operand)
        assert isinstance(node, ast.Constant)
        return Fraction(node.value)

    return walk(ast.parse(expression, mode="eval").body)


def _expression(question: str) -> str:
    if " and " in question:
        return "+".join(re.findall(r"\d+", question))
    found = re.search(r"-?\d[\d +*/()-]*[\d)]|\d", question)
    assert found is not None
    return found.group()


@pytest.mark.parametrize("source", SOURCES[:5], ids=lambda s: f"{s.problem}-{level_of(s)[:40]}")
def test_golds_are_the_value_of_the_question(source: SumSource | ArithmeticSource) -> None:
    for index in range(400):
        problem = generate(source, 3, index)
        assert _value(_expression(problem.question)) == int(problem.gold), problem.question


@pytest.mark.parametrize("source", SOURCES, ids=lambda s: f"{s.problem}-{level_of(s)[:40]}")
def test_every_step_of_a_trace_is_true_and_the_gold_is_its_end(source: SumSource) -> None:
    for index in range(200):
        problem = generate(source, 1, index)
        int(problem.gold)
        for left, right in re.findall(r"([-\d][\d +*/()-]*?) ?= ?(-?\d+)", problem.working):
            assert _value(left) == int(right), problem.working
        if source.trace == "none":
            assert problem.working == ""
        else:
            assert re.findall(r"-?\d+", problem.working)[-1] == problem.gold


def test_numbers_stay_within_the_level() -> None:
    for index in range(300):
        numbers = [
            int(n) for n in re.findall(r"\d+", generate(SumSource(min_operand=10, max_operand=20), 0, index).question)
        ]
        assert len(numbers) == 2
        assert all(10 <= n <= 20 for n in numbers)
        mixed = generate(ArithmeticSource(max_operations=5, max_operand=12, negative=True), 0, index)
        assert all(abs(int(n)) <= 12 for n in re.findall(r"\d+", mixed.question))
        word = generate(WordSource(max_steps=3, max_operand=15), 0, index)
        assert all(int(n) <= 15 for n in re.findall(r"\d+", word.question))
        legs = generate(LegsSource(max_kinds=3, max_count=7), 0, index)
        assert all(1 <= int(n) <= 7 for n in re.findall(r"\d+", legs.question))


def test_nothing_in_a_story_goes_below_zero() -> None:
    for index in range(500):
        problem = generate(WordSource(max_steps=3, max_operand=30, trace="short"), 5, index)
        assert "-" not in re.sub(r"(?<=\d)-(?=\d)", "", problem.working)
        assert int(problem.gold) >= 0


def test_stories_and_animals_are_well_made() -> None:
    for story in STORIES:
        assert len(story.says) == len(story.steps)
        letters = {name for step in story.steps for name in (step[0], step[2]) if name != "_"}
        assert letters == set(re.findall(r"{([a-d])}", story.text))
        assert [step[0] for step in story.steps[1:]] == ["_"] * (len(story.steps) - 1)
        assert all(step[1] != "/" for step in story.steps[1:]), "only a first division can be made exact"
    assert len({one for one, _, _ in ANIMALS}) == len(ANIMALS)


# Determinism and independence.


def test_an_item_depends_on_seed_level_and_index_only() -> None:
    a = [generate(SumSource(), 7, index) for index in range(20)]
    b = [generate(SumSource(), 7, index) for index in reversed(range(20))]
    assert a == b[::-1]


def test_style_and_trace_do_not_change_the_numbers() -> None:
    for index in range(50):
        golds = {
            generate(SumSource(style=style, trace=trace, share=share), 0, index).gold
            for style in ("plain", "varied")
            for trace in ("short", "steps", "none")
            for share in (1.0, 2.0)
        }
        assert len(golds) == 1


def test_neighbouring_seeds_share_no_run_of_items() -> None:
    """Seeding item i with seed + i, as some generators do, makes seeds 42 and 43 share all but one item."""
    source = SumSource(max_operand=999_999, style="plain")
    one, two = ({generate(source, seed, i).question for i in range(500)} for seed in (42, 43))
    assert not one & two


def test_levels_do_not_share_a_random_stream() -> None:
    easy, hard = SumSource(max_operand=99), SumSource(max_operand=100)
    assert [generate(easy, 0, i).gold for i in range(20)] != [generate(hard, 0, i).gold for i in range(20)]


def test_the_same_in_another_process(tmp_path: Path) -> None:
    program = (
        "import json\n"
        "from pipeline_config.sources import *\n"
        "from tasks.dataset.generators import generate\n"
        "sources = [SumSource(), ArithmeticSource(negative=True), WordSource(), LegsSource()]\n"
        "print(json.dumps([generate(s, 11, i).question for s in sources for i in (0, 1, 2**40)]))\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={"PYTHONHASHSEED": hash_seed, "PATH": ""},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for hash_seed in ("0", "1")
    }
    (output,) = outputs
    sources = [SumSource(), ArithmeticSource(negative=True), WordSource(), LegsSource()]
    assert json.loads(output) == [generate(s, 11, i).question for s in sources for i in (0, 1, 2**40)]


def test_items_are_frozen() -> None:
    """The items that published results were made with: a change here is a new version of the dataset stage."""
    assert [generate(SumSource(min_operand=10, style="plain"), 0, i).question for i in range(3)] == [
        "What is 54 + 75?",
        "What is 14 + 76?",
        "What is 14 + 47?",
    ]


def test_the_global_random_state_is_left_alone() -> None:
    random.seed(5)
    expected = random.random()
    random.seed(5)
    generate(WordSource(), 0, 0)
    assert random.random() == expected


def test_varied_questions_vary() -> None:
    starts = {generate(SumSource(), 0, i).question.split()[0] for i in range(200)}
    assert len(starts) >= 6
