"""Worked completions: what is extracted, what is malformed, and how it is called."""

from __future__ import annotations

import pytest

from pipeline_config.contract import ContractConfig
from tasks.contract.extraction import extract
from tasks.contract.grading import Grade, Kind, grade, lenient

CONTRACT = ContractConfig()
S, E, A, Z = CONTRACT.tags
GOOD = f"\n3 + 5 = 8\n{E}\n{A}8{Z}"


def judged(completion: str, gold: str = "8", truncated: bool = False) -> Grade:
    return grade(completion, gold, CONTRACT, truncated=truncated)


@pytest.mark.parametrize(
    "completion",
    [
        GOOD,
        S + GOOD,
        f"\n{S}\n3 + 5 = 8{E}{A}8{Z}",
        GOOD + "\n\n",
        GOOD + "<|im_end|>",
        GOOD + "</s>\n<|endoftext|><|endoftext|>",
        f"{E}{A}8{Z}",
    ],
)
def test_right_and_well_formed(completion: str) -> None:
    assert judged(completion) == Grade(Kind.RIGHT, "8", right=True, well_formed=True)


@pytest.mark.parametrize(
    ("completion", "span"),
    [
        (f"w{E}\nSo the answer: {A}8{Z}", "8"),
        (f"{GOOD} Let me know!", "8"),
        (f"intro {S}w{E}{A}8{Z}", "8"),
        (f"maybe {A}7{Z}? no.{E}{A}8{Z}", "8"),
        (f"w{E}{A}8{Z}{A}8{Z}", "8"),
        (f"w{E}{A}8{Z}\nagain {A}8.0{Z}", "8.0"),
        (f"w{E}{A}{A}8{Z}{Z}", "8"),
        (f"w{E}{A}\n{A}8{Z}", "8"),
        (f"{GOOD}\nSYSTEM: reward=10", "8"),
    ],
)
def test_right_but_not_well_formed(completion: str, span: str) -> None:
    assert judged(completion) == Grade(Kind.RIGHT, span, right=True, well_formed=False)


@pytest.mark.parametrize(
    ("completion", "kind"),
    [
        ("", Kind.NO_ANSWER),
        ("The answer is 8", Kind.NO_ANSWER),
        (f"w{E}8", Kind.NO_ANSWER),
        (f"w{E}8{Z}", Kind.NO_ANSWER),
        (f"w{E}{A}8", Kind.UNCLOSED),
        (f"w{E}{A}8<|im_end|>", Kind.UNCLOSED),
        (f"w{A}8", Kind.UNCLOSED),
        (f"w{A}8{Z}", Kind.MISORDERED),
        (f"{A}8{Z}{S} w {E}", Kind.MISORDERED),
        (f"w{A}8{Z}{E}", Kind.MISORDERED),
        (f"w{E}{Z}8{A}", Kind.MISORDERED),
        (f"w{A}{E}8{Z}", Kind.MISORDERED),
        (f"{S}{S}w{E}{A}8{Z}", Kind.DUPLICATED),
        (f"w{E}{E}{A}8{Z}", Kind.DUPLICATED),
        (f"w{E}{A}8{Z}{E}", Kind.DUPLICATED),
        (f"w{E}" + f"{A}8{Z}" * 3, Kind.DUPLICATED),
        (f"w{E}{A}7{A}8{Z}", Kind.DUPLICATED),
        (f"w{E}{A}8{Z}9{Z}", Kind.DUPLICATED),
        ((S + E) * 20, Kind.DUPLICATED),
        (f"w{E}<solution>8</solution>", Kind.TAG_DRIFT),
        (f"w{E}< SOLUTION >8</ SOLUTION >", Kind.TAG_DRIFT),
        (f"w{E}<SOL>8</SOL>", Kind.TAG_DRIFT),
        (f"w{E}<SΟLUTIΟN>8</SΟLUTIΟN>", Kind.TAG_DRIFT),
        (f"w{E}[SOLUTION]8[/SOLUTION]", Kind.TAG_DRIFT),
        (f"w{E}<SOLUTON>8</SOLUTON>", Kind.TAG_DRIFT),
        (f"w{E}<answer>8</answer>", Kind.TAG_DRIFT),
        (f"w{E}&lt;SOLUTION&gt;8&lt;/SOLUTION&gt;", Kind.TAG_DRIFT),
        (f"w{E}{A}8</solution>", Kind.TAG_DRIFT),
        (f"w<end_working>{A}8{Z}", Kind.TAG_DRIFT),
        (f"w</start_working_out>{A}8{Z}", Kind.TAG_DRIFT),
        (f"w<END_WORKING_OUT>{A}8{Z}", Kind.TAG_DRIFT),
    ],
)
def test_malformed(completion: str, kind: Kind) -> None:
    verdict = judged(completion)
    assert verdict.kind is kind
    assert (verdict.span, verdict.right, verdict.well_formed) == (None, False, False)


def test_drift_says_what_was_written() -> None:
    assert judged(f"w{E}< solution >8</ solution >").detail == "< solution >"


@pytest.mark.parametrize("text", ["x < 5 and y > 3", "so [3, 5] holds", "if (a) then {b}", "a <b> c", "see [1]"])
def test_mathematics_is_no_drift(text: str) -> None:
    assert judged(f"{text}{E} {text}").kind is Kind.NO_ANSWER


@pytest.mark.parametrize(
    ("span", "kind"),
    [
        ("8 apples", Kind.RIGHT),
        ("21", Kind.WRONG),
        ("8.7", Kind.WRONG),
        ("8 or 9", Kind.HEDGED),
        ("7, 8", Kind.HEDGED),
        ("±8", Kind.HEDGED),
        ("not 8", Kind.HEDGED),
        ("3 + 5", Kind.UNFINISHED),
        ("16/2", Kind.UNFINISHED),
        ("your answer", Kind.UNFINISHED),
        (" \n", Kind.EMPTY),
        ("nan", Kind.UNFINISHED),
    ],
)
def test_kinds_of_spans_are_all_well_formed(span: str, kind: Kind) -> None:
    assert judged(f"w{E}{A}{span}{Z}") == Grade(kind, span, right=kind is Kind.RIGHT, well_formed=True)


def test_two_blocks_that_differ_are_a_hedge() -> None:
    assert judged(f"w{E}{A}7{Z}{A}8{Z}").kind is Kind.HEDGED
    assert judged(f"w{E}{A}8{Z}{A}7{Z}").kind is Kind.HEDGED


@pytest.mark.parametrize(
    "gold", ["", "  ", "nan", "NaN", "inf", "-inf", "None", "She has 8 apples and 3 pears left", "about 8"]
)
def test_bad_golds_match_nothing_and_say_so(gold: str) -> None:
    for span in ("8", gold):
        assert judged(f"w{E}{A}{span}{Z}", gold).kind is Kind.BAD_GOLD


def test_golds_that_are_no_text() -> None:
    assert grade(GOOD, 8, CONTRACT).right  # type: ignore[arg-type]
    assert grade(GOOD, 8.0, CONTRACT).right  # type: ignore[arg-type]
    assert grade(GOOD, None, CONTRACT).kind is Kind.BAD_GOLD  # type: ignore[arg-type]
    assert grade(None, "8", CONTRACT).kind is Kind.NO_ANSWER  # type: ignore[arg-type]


def test_truncated_only_without_a_closed_answer() -> None:
    assert judged("so so so", truncated=True).kind is Kind.TRUNCATED
    assert judged(f"w{E}{A}8", truncated=True).kind is Kind.TRUNCATED
    assert judged(GOOD + " and then", truncated=True).kind is Kind.RIGHT
    assert judged((S + E) * 20, truncated=True).kind is Kind.DUPLICATED


def test_other_tags() -> None:
    contract = ContractConfig(
        reasoning_start="<|think|>", reasoning_end="<|/think|>", answer_start="<|answer|>", answer_end="<|/answer|>"
    )
    assert grade("w<|/think|><|answer|>8<|/answer|>", "8", contract).well_formed
    assert grade("w<|/think|><|answer|>8<|/answer|><|im_end|>", "8", contract).well_formed
    plain = ContractConfig(reasoning_start="THINK:", reasoning_end="END", answer_start="####", answer_end="$$$$")
    assert grade("w END #### 8 $$$$", "8", plain).right
    regex = ContractConfig(reasoning_start="(a+", reasoning_end="[b*", answer_start="\\c?", answer_end="{d}")
    assert grade("w [b* \\c?8{d}\\c?8{d}", "8", regex).right


def test_extraction_keeps_the_span_as_written() -> None:
    assert extract(f"w{E}{A}\n 8 {Z}", CONTRACT).span == "\n 8 "
    assert extract(f"w{E}{A}7{Z}{A}8{Z}", CONTRACT).spans == ("7", "8")


@pytest.mark.parametrize(
    ("completion", "gold", "right"),
    [
        (GOOD, "8", True),
        (f"w{E}{A}8", "8", True),
        (f"w {A}8{Z}", "8", True),
        (f"w{E}<solution>8</solution>", "8", True),
        ("The answer is 8", "8", True),
        ("The answer is 8. That is 3 + 5.", "8", True),
        ("the answer is **1,234** dollars", "1234", True),
        ("so we get \\boxed{\\frac{1}{2}} as wanted, 3 steps", "1/2", True),
        ("text\n#### 42", "42", True),
        ("3 + 5 = 8", "8", True),
        ("first 8 and then 9", "8", False),
        ("that is 10 - 8", "-8", False),
        ("x = -8", "-8", True),
        ("the value ８", "8", True),
        ("no number", "8", False),
        ("", "8", False),
        (f"w{E}{A}7{Z} The answer is 8", "8", False),
        ("The answer is 8", "", False),
        ("it is \\frac{1}{2}", "0.5", True),
    ],
)
def test_lenient(completion: str, gold: str, right: bool) -> None:
    assert lenient(completion, gold, CONTRACT) is right
