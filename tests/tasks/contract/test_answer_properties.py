"""Properties of answer reading on invented text: it never raises, never pays for another value, and takes every spelling."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline_config.contract import ContractConfig
from tasks.contract.answers import parse_answer, read, same_answer
from tasks.contract.golds import read_gold
from tasks.contract.grading import Kind, grade, lenient

CONTRACT = ContractConfig()
S, E, A, Z = CONTRACT.tags

_PIECES = st.sampled_from(
    [
        *"0123456789.,;:+-*/^=()[]{}<>%$#!?'\"_~|&°×−½²√π∞，。％个或不约万\\ \n",
        "10", "1,234", "\\frac", "\\sqrt", "\\text{", "\\boxed{", "\\left(", "\\pi", "\\times", "e3", "1e", " or ", " and ",
        "not ", "about ", "x", "x = ", "cm", " cm^2", " apples", " dollars", "the answer is ", "答案是", "\\overline{", "{,}",
    ]
)  # fmt: skip
noise = st.one_of(st.text(max_size=40), st.lists(_PIECES, max_size=14).map("".join))
integers = st.integers(-(10**9), 10**9)
fractions = st.fractions(max_denominator=1000)


@settings(max_examples=400, deadline=None)
@given(answer=noise, gold=noise)
@example(answer="1 000 000 1/2", gold="1")
@example(answer="\\frac" * 9, gold="{" * 9)
def test_never_raises(answer: str, gold: str) -> None:
    same_answer(answer, gold)
    read(answer)


@settings(max_examples=400, deadline=None)
@given(answer=noise, gold=fractions)
def test_never_accepts_another_value(answer: str, gold: Fraction) -> None:
    """An accepted answer parses to exactly the gold, or is a percentage or dozens whose plain number is the gold."""
    accepted = same_answer(answer, str(gold))
    value = parse_answer(answer)
    if accepted:
        assert value is not None
        assert value.fraction == gold or gold in value.others
    elif value is not None and value.fraction is not None:
        assert value.fraction != gold or read_gold(str(gold)).value is None


@settings(max_examples=200, deadline=None)
@given(one=fractions, other=fractions)
def test_exactness_between_fractions(one: Fraction, other: Fraction) -> None:
    written = f"{one.numerator}/{one.denominator}"
    assert same_answer(written, f"{other.numerator}/{other.denominator}") is (one == other)


SPELLINGS = [
    "{n}", " {n}\n", "{n}.", "{n}.0", "{n}.00", "{n:,}", "{n:,}.0", "{n:_}", "+{n}", "00{n}", "${n:,}", "\\${n:,}.00", "{n} apples",
    "{n:,} dollars", "{n} cm^2", "{n}\\text{{ cm}}^2", "{n}个苹果", "{n}°", "{n}^\\circ", "\\boxed{{{n}}}", "\\boxed{{{n:,}}}",
    "$\\boxed{{{n}}}$", "\\text{{{n}}}", "**{n}**", "${n}$", "({n})", "x = {n}", "x={n:,}", "The answer is {n}.", "Answer: {n:,}",
    "答案是{n}", "{n}/1", "\\frac{{{n}}}{{1}}", "{n}e0", "{n} \\times 10^{{0}}", "{n}×10⁰", "{n} km/h", "€{n:,}", "{n}元",
    "0 + {n} = {n}", "{n} (apples)", "{n}%", "`{n}`",
]  # fmt: skip


@pytest.mark.parametrize("spelling", SPELLINGS)
@settings(max_examples=25, deadline=None)
@given(n=st.integers(0, 10**12))
@example(n=0)
@example(n=999)
@example(n=1000)
def test_every_spelling_of_an_integer(spelling: str, n: int) -> None:
    written = spelling.format(n=n)
    assert same_answer(written, str(n))
    assert not same_answer(written, str(n + 1))
    assert not same_answer(written, str(-n - 1))
    assert grade(f"w{E}{A}{written}{Z}", str(n), CONTRACT).right


@settings(max_examples=100, deadline=None)
@given(n=integers)
def test_signs(n: int) -> None:
    for written in (str(n), str(n).replace("-", "−"), str(n).replace("-", "- "), str(n).replace("-", "－")):
        assert same_answer(written, str(n))
        assert n == 0 or not same_answer(written, str(-n))


@settings(max_examples=150, deadline=None)
@given(value=fractions.filter(lambda v: v.denominator > 1))
def test_spellings_of_a_fraction(value: Fraction) -> None:
    over, under = abs(value.numerator), value.denominator
    sign = "-" if value < 0 else ""
    whole, rest = divmod(over, under)
    spellings = [
        f"{sign}{over}/{under}", f"{sign}\\frac{{{over}}}{{{under}}}", f"{sign}\\dfrac{{{over}}}{{{under}}}",
        f"\\frac{{{sign}{over}}}{{{under}}}", f"{sign}{over} / {under}", f"{sign}{3 * over}/{3 * under}",
    ]  # fmt: skip
    if whole:
        spellings += [f"{sign}{whole} {rest}/{under}", f"{sign}{whole}\\frac{{{rest}}}{{{under}}}"]
    for written in spellings:
        assert same_answer(written, str(value)), written
        assert not same_answer(written, str(value + Fraction(1, 10**9))), written


@settings(max_examples=150, deadline=None)
@given(digits=st.integers(-(10**12), 10**12), places=st.integers(0, 9))
def test_decimals_are_exact(digits: int, places: int) -> None:
    value = Fraction(digits, 10**places)
    scaled = f"{digits}e-{places}"
    assert same_answer(scaled, str(value))
    sign, text = ("-" if digits < 0 else ""), str(abs(digits)).rjust(places + 1, "0")
    written = f"{sign}{text[: len(text) - places]}.{text[len(text) - places :]}" if places else f"{sign}{text}"
    assert same_answer(written, str(value))
    assert same_answer(written + "0" if places else written, str(value))
    assert not same_answer(written, str(value + Fraction(1, 10**12)))


@settings(max_examples=150, deadline=None)
@given(
    n=integers,
    other=integers,
    join=st.sampled_from([" or ", " and ", ", ", "; ", " to ", " ± ", "、", "或", "/2/", " | ", "\n", " vs "]),
)
def test_two_values_are_never_one(n: int, other: int, join: str) -> None:
    written = f"{n}{join}{other}"
    assert not same_answer(written, str(n))
    assert not same_answer(written, str(other))


@settings(max_examples=150, deadline=None)
@given(n=st.integers(0, 10**6), soften=st.sampled_from(["not {}", "about {}", "~{}", "≈{}", "{}?", "maybe {}", "at least {}", "> {}", "±{}", "约{}", "{}左右", "不是{}", "{}!", "{}x", "half of {}", "{} squared"]))  # fmt: skip
def test_softened_and_changed_values_are_refused(n: int, soften: str) -> None:
    assert not same_answer(soften.format(n), str(n))


@settings(max_examples=300, deadline=None)
@given(
    completion=st.lists(st.one_of(st.sampled_from([S, E, A, Z, A.lower(), "<SOL>", "8", " ", "\n", "</s>", "or"]), st.text(max_size=8)), max_size=12).map("".join),
    truncated=st.booleans(),
)  # fmt: skip
def test_grading_any_completion(completion: str, truncated: bool) -> None:
    verdict = grade(completion, "8", CONTRACT, truncated=truncated)
    assert verdict.right is (verdict.kind is Kind.RIGHT)
    assert verdict == grade(completion, "8", CONTRACT, truncated=truncated)
    if verdict.span is None:
        assert not verdict.right and not verdict.well_formed
    if verdict.well_formed:
        assert completion.count(E) == completion.count(A) == completion.count(Z) == 1
    if verdict.right:
        assert lenient(completion, "8", CONTRACT)
