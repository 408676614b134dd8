"""Which questions count as the same, content digests, and golds that stand in the question."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.dataset.problem import content_digest, gold_in_question, normalise, unit_hash


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("What is 2 + 3?", "what is 2+3"),
        ("What is 2 + 3?", "  WHAT  is\n2 + 3 ?  "),
        ("What is ２＋３？", "What is 2 + 3?"),
        ("Tom has 1,234 apples.", "Tom has 1234 apples"),
        ("5 − 3", "5 - 3"),
        ("5 × 3", "5 * 3"),
        ("6 ÷ 3", "6 / 3"),
        ("a well-known sum", "a well known sum"),
        ("Straße", "STRASSE"),
        ("Find $x$ if $x+1=2$.", "Find x if x + 1 = 2"),
        ("“How many?”", '"How many?"'),
        ("½ of 6", "1/2 of 6"),
        ("e.g. this", "e g this"),
        ("(2+3)*4", "( 2 + 3 ) * 4"),
        (r"$\left( 2+3 \right) \times 4$", r"\( (2+3)\times4 \)"),
        (r"4\cdot\left(6\div2\right)", "4 × (6 ÷ 2)"),
        (r"\sqrt{2}", r"\sqrt2"),
        (r"\Bigl[ x+1 \Bigr]^2", "[x + 1]^2"),
        (r"\\(x+1\\)", "x+1"),
        (r"\[x^{2}+1\]", "x^2 + 1"),
        (r"\{1, 2\}", "{1, 2}"),
        ("x^{2+1}", "x^(2+1)"),
        ("x²⁺¹", "x^{2+1}"),
        ("10⁻³", "10^{-3}"),
        ("10^-3", "10^(-3)"),
        (r"\frac{1}{2} and x_{1}", r"\frac 1 2 and x_1"),
        ("f'(2)", "f’ (2)"),
        ("f''(2)", "f″(2)"),
        ("3½ cups", "3 1/2 cups"),
        ("101₂ in decimal", "101_2 in decimal"),
        ("What is .5 + 1?", "What is 0.5 + 1?"),
        ("Tom has 3 apples (red ones).", "Tom has 3 apples, red ones."),
        ("Wie lang (in cm)?", "Wie lang, in cm"),
        ("多长（单位：米）？", "多长，单位：米"),
        ("A) 3 B) 4 :)", "A. 3 B. 4"),
        ("the letter 'x'", "the letter x"),
        ("the dogs' tails", "the dogs tails"),
    ],
)
def test_same(one: str, other: str) -> None:
    assert normalise(one) == normalise(other)
    assert content_digest(one) == content_digest(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("What is 5 + 3?", "What is 5 - 3?"),
        ("What is 5 + 3?", "What is 5 * 3?"),
        ("What is -5 + 3?", "What is 5 + 3?"),
        ("What is 3.5 + 1?", "What is 35 + 1?"),
        ("What is 5!?", "What is 5?"),
        ("2^3", "2 3"),
        ("x < 3", "x > 3"),
        ("x - y = 3", "x y = 3"),
        ("50% of 8", "50 of 8"),
        ("What is 27 + 35?", "What is 35 + 27?"),
        ("1, 234", "1234"),
        ("|x|", "x"),
        ("(2+3)*4", "2+(3*4)"),
        ("(2+3)*4", "2+3*4"),
        ("10-(3-2)", "(10-3)-2"),
        ("2^(1+2)", "2^1+2"),
        ("sin(x)+1", "sin(x+1)"),
        ("(ab)^2", "ab^2"),
        ("(total cost + tax) * 2", "total cost + tax * 2"),
        ("(2+3)!", "(2+3)"),
        ("2^(3)!", "2^3"),
        ("[0, 1)", "(0, 1)"),
        ("f'(2)", "f(2)"),
        ("f''(2)", "f'(2)"),
        ("10²", "102"),
        ("101₂", "1012"),
        ("3½", "31/2"),
        ("x^{2}+1", "x^{2+1}"),
        (r"\frac{a b}{c}", r"\frac{a}{b c}"),
        (r"\sqrt{x}+1", r"\sqrt{x+1}"),
        ("x_{n}+1", "x_{n+1}"),
        ("⌊x⌋ + 0.5", "⌊x + 0.5⌋"),
        (".5 + 1", "5 + 1"),
    ],
)
def test_different(one: str, other: str) -> None:
    assert normalise(one) != normalise(other)
    assert content_digest(one) != content_digest(other)


def test_form() -> None:
    assert normalise("  Tom's total: 1,234.50 (that is, 5!) — why?") == "tom s total 1234.50 that is 5! - why"


@given(st.text())
def test_normalising_twice_changes_nothing(text: str) -> None:
    once = normalise(text)
    assert normalise(once) == once


@given(st.text(alphabet="aZ09.,!- +*/^%()|$½ßİŉ\u0345\u2212\u00ad\n'_^~", max_size=30))
def test_normalising_twice_changes_nothing_on_awkward_text(text: str) -> None:
    once = normalise(text)
    assert normalise(once) == once
    assert once == once.strip()
    assert "  " not in once


@given(st.text(alphabet="aZ2.!'\u2032+-^*_ ()[]{}\\\u2082\u00b2\u207d\u207b\u00bd\u7c73", max_size=30))
def test_normalising_twice_changes_nothing_in_formulas(text: str) -> None:
    once = normalise(text)
    assert normalise(once) == once


@given(st.text(alphabet="ab2+*^!,() ", max_size=30))
def test_brackets_that_stay_have_partners_and_the_rest_is_as_without_them(text: str) -> None:
    kept = normalise(text)
    depth = 0
    for token in kept.split():
        depth += (token == "(") - (token[0] == ")")
        assert depth >= 0
    assert depth == 0
    if "!" not in text:
        bare = text.replace("(", " ").replace(")", " ")
        assert kept.replace("(", " ").replace(")", " ").split() == normalise(bare).split()


@given(st.text(max_size=40))
def test_case_and_spacing_do_not_matter(text: str) -> None:
    assert normalise(f" {text}\n") == normalise(text)


def test_digest_of_odd_text() -> None:
    assert len(content_digest("\ud800 lone surrogate")) == 32
    assert len(content_digest("")) == 32


@given(st.text(), st.integers())
def test_unit_hash_is_a_share(text: str, seed: int) -> None:
    assert 0 <= unit_hash(text.encode("utf-8", "replace"), seed) < 1


def test_unit_hash_is_even() -> None:
    values = [unit_hash("split", i) for i in range(10_000)]
    assert abs(sum(v < 0.1 for v in values) - 1000) < 120  # four standard deviations of 30
    assert unit_hash("a", "b") != unit_hash("ab")


@pytest.mark.parametrize(
    ("gold", "question", "expected"),
    [
        ("12", "Tom has 12 apples", True),
        ("12", "Tom has 12.", True),
        ("12", "Tom has 12.5 apples", False),
        ("12", "Tom has 112 apples", False),
        ("2", "Tom has 1.2 apples", False),
        ("1,234", "a total of 1234", True),
        ("1234", "a total of 1,234", True),
        ("-5", "from -5 to 5", True),
        ("5", "$5 each", True),
        ("x", "solve for x", True),
        ("x", "a box", False),
        ("", "anything", False),
    ],
)
def test_gold_in_question(gold: str, question: str, expected: bool) -> None:
    assert gold_in_question(gold, question) is expected
