from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline_config.contract import ContractConfig
from pipeline_config.rewards import OverlongPenalty, RewardConfig
from tasks.contract.grading import Grade
from tasks.contract.kinds import Kind
from tasks.rewards.grader import Grader
from tasks.rewards.sound import nearness, overshoot, sound_spec, value

CONTRACT = ContractConfig()


def score(texts: list[str], gold: str = "8", ids: list[list[int]] | None = None, **settings: Any) -> list[float | None]:
    grader = Grader(CONTRACT, max_completion_length=100, eos_ids=[2])
    return sound_spec(RewardConfig(**settings), grader).function(
        completions=texts, completion_ids=ids, answer=[gold] * len(texts)
    )


def made(kind: Kind, well_formed: bool = True) -> Grade:
    return Grade(kind, None, right=kind is Kind.RIGHT, well_formed=well_formed)


@pytest.mark.parametrize(
    ("grade", "expected"),
    [
        (made(Kind.RIGHT), 1.0),
        (made(Kind.RIGHT, False), 0.75),
        (made(Kind.WRONG), 0.25),
        (made(Kind.WRONG, False), 0.125),
        (made(Kind.HEDGED), 0.125),
        (made(Kind.HEDGED, False), 0.0),
        (made(Kind.EMPTY), 0.125),
        (made(Kind.TRUNCATED, False), 0.0),
        (made(Kind.DUPLICATED, False), 0.0),
        (made(Kind.BAD_GOLD), None),
    ],
)
def test_values_with_the_default_shares(grade: Grade, expected: float | None) -> None:
    assert value(grade, RewardConfig()) == expected


def test_right_scales_everything() -> None:
    assert value(made(Kind.WRONG), RewardConfig(right=4.0)) == 1.0


def test_worked_completions(write: Callable[..., str]) -> None:
    texts = [write("8"), write("8 apples"), write("1,234"), write("21"), write("8 or 9"), "The answer is 8", ""]
    assert score(texts) == [1.0, 1.0, 0.25, 0.25, 0.125, 0.0, 0.0]
    assert score([write("1,234")], gold="1234") == [1.0]


def test_conversational_and_plain_completions_are_the_same(write: Callable[..., str]) -> None:
    plain = [write("8"), write("9")]
    chat = [[{"role": "assistant", "content": text}] for text in plain]
    assert score(plain) == score(chat)  # type: ignore[arg-type]


def test_overlong_is_linear_past_the_soft_cap() -> None:
    penalty = OverlongPenalty(start=0.8, max_penalty=0.3)
    assert [overshoot(n, 100, penalty) for n in (0, 80, 90, 100, 150)] == [0.0, 0.0, 0.5, 1.0, 1.0]
    assert overshoot(100, None, penalty) == overshoot(100, 100, None) == 0.0


def test_overlong_takes_its_share_and_keeps_the_order(write: Callable[..., str]) -> None:
    ids = [[1] * 90 + [2], [1] * 9 + [2], [1] * 99 + [2]]
    got = score(
        [write("8"), write("9"), write("8")], ids=ids, overlong_penalty=OverlongPenalty(start=0.8, max_penalty=0.3)
    )
    assert got == pytest.approx([1 - 0.3 * 11 / 20, 0.25, 0.7])


def test_full_length_without_eos_is_truncated(write: Callable[..., str]) -> None:
    grader = Grader(CONTRACT, max_completion_length=100, eos_ids=[2])
    assert grader.truncated([1] * 100) and not grader.truncated([1] * 99 + [2]) and not grader.truncated([1] * 99)
    offered = {"completions": ["so so so", write("8")], "completion_ids": [[1] * 100] * 2, "answer": ["8", "8"]}
    assert [g.kind for g in grader.grades(offered)] == [Kind.TRUNCATED, Kind.RIGHT]


def test_proximity_is_off_by_default_and_linear_when_on(write: Callable[..., str]) -> None:
    assert score([write("9"), write("8.4")], gold="8") == [0.25, 0.25]
    # 9 against 8: distance 0.125 of a band of 0.2, so nearness 0.375
    assert score([write("9"), write("10"), write("8")], gold="8", proximity=0.2) == pytest.approx(
        [0.25 + 0.2 * 0.375, 0.25, 1.0]
    )


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("110", "100", 0.5),
        ("120", "100", 0.0),
        ("-100", "100", 0.0),
        ("0.1", "0", 0.5),
        ("x", "1", 0.0),
        ("1/2", "0.6", 0.5),
    ],
)
def test_nearness(answer: str, gold: str, expected: float) -> None:
    assert nearness(answer, gold) == pytest.approx(expected)


def test_hacks_stay_in_their_bands_and_order(hacks: list[dict[str, Any]]) -> None:
    got = dict(zip([row["id"] for row in hacks], score([row["completion"] for row in hacks]), strict=True))
    right, wrong, nothing = got["00_correct"], got["01_wrong"], got["02_malformed"]
    assert right is not None and wrong is not None and nothing is not None and right > wrong > nothing
    for row in hacks:
        this = got[row["id"]]
        assert this is not None and math.isfinite(this) and this <= right, row["id"]
        share = (this - nothing) / (right - nothing)
        assert (row["share_min"] or -math.inf) <= share <= row["share_max"], row["id"]
        if row["share_max"] <= 0.25:
            assert this <= wrong, row["id"]
        if row["share_min"] == 1.0:
            assert this > wrong, row["id"]


PIECES = [
    "<start_working_out>",
    "<end_working_out>",
    "<SOLUTION>",
    "</SOLUTION>",
    "8",
    "9^{9^{9^{9}}}",
    "\n",
    " ",
    "nan",
    "1e999",
]


@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=8)), max_size=30).map("".join), st.integers(0, 200))
@example("<end_working_out><SOLUTION>" + "9" * 5000 + "</SOLUTION>", 5)
@example("\ud800 lone surrogate", 0)
def test_any_text_is_finite_in_range_and_the_same_twice(text: str, length: int) -> None:
    settings: dict[str, Any] = {"proximity": 0.2, "overlong_penalty": OverlongPenalty(max_penalty=0.3)}
    first = score([text], ids=[[1] * length], **settings)[0]
    assert first is not None and 0.0 <= first <= 1.0
    assert first == score([text], ids=[[1] * length], **settings)[0]
