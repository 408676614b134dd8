"""What the gate measures and decides, on numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline_config.training import GateSettings
from tasks.contract.grading import Grade
from tasks.contract.kinds import Kind
from tasks.errors import GateRefused
from tasks.format_gate.measure import decide, measure, raise_unless_go

R = Grade(Kind.RIGHT, "5", right=True, well_formed=True)
W = Grade(Kind.WRONG, "6", right=False, well_formed=True)
LOOSE = Grade(Kind.RIGHT, "5", right=True, well_formed=False)
NONE = Grade(Kind.NO_ANSWER, None, right=False, well_formed=False)
DRIFT = Grade(Kind.TAG_DRIFT, None, right=False, well_formed=False)
CUT = Grade(Kind.TRUNCATED, None, right=False, well_formed=False)
HEDGED = Grade(Kind.HEDGED, "5 or 6", right=False, well_formed=True)

EASY_GATE = GateSettings(min_format_rate=0.0, max_truncation_rate=1.0, max_dead_groups=1.0)


def measured(*groups: list[Grade], rewards: list[list[float]] | None = None, truncated: int = 0) -> dict[str, Any]:
    """Rewards by default: 1 for right, 0.25 for well-formed, 0 for the rest."""
    values = rewards or [[1.0 if g.right else 0.25 if g.well_formed else 0.0 for g in group] for group in groups]
    return measure(groups, values, truncated)


def test_rates_of_three_groups_of_four() -> None:
    m = measured([R, R, R, R], [W, W, W, W], [R, NONE, CUT, W], truncated=1)
    assert (m["prompts"], m["completions"]) == (3, 12)
    assert m["format_rate"] == 10 / 12
    assert m["truncation_rate"] == 1 / 12
    assert m["pass_at_1"] == 5 / 12
    assert m["pass_at_group"] == 2 / 3
    assert (m["dead_groups"], m["dead_all_right"], m["dead_all_wrong"]) == (2 / 3, 1 / 3, 1 / 3)
    assert m["kinds"] == {"no_answer": 1, "right": 5, "truncated": 1, "wrong": 5}
    # Wilson, 10 of 12, z = 1.959964: centre (0.833333 + 3.841459 / 24) / (1 + 3.841459 / 12) = 0.752501,
    # half width 1.959964 / 1.320122 * sqrt(0.138889 / 12 + 3.841459 / 576) = 0.200533.
    assert m["format_rate_low"] == pytest.approx(0.551968, abs=2e-6)
    assert m["format_rate_high"] == pytest.approx(0.953034, abs=2e-6)


def test_a_group_is_dead_by_its_rewards_not_by_its_grades() -> None:
    """A reward that pays for length keeps a group of right answers alive; one that pays everybody kills a mixed one."""
    m = measured([R, R], [R, W], rewards=[[1.0, 0.9], [0.5, 0.5]])
    assert (m["dead_groups"], m["dead_all_right"], m["dead_all_wrong"]) == (0.5, 0.0, 0.0)


def test_rewards_that_could_not_be_computed() -> None:
    nan = float("nan")
    assert measured([R, W], rewards=[[nan, nan]])["dead_groups"] == 1.0
    assert measured([R, W, R], rewards=[[nan, 1.0, 1.0]])["dead_groups"] == 1.0
    assert measured([R, W, R], rewards=[[1.0, nan, 0.0]])["dead_groups"] == 0.0


@pytest.mark.parametrize(
    ("groups", "truncated", "gate", "verdict", "evidence", "fix"),
    [
        ([[R, W]] * 50, 0, {}, "go", "whole format 100.0% (lower bound 96.3%), pass@1 50.0%, 0% of groups", ""),
        (
            [[R, CUT]] * 50,
            31,
            {},
            "truncated",
            "31.0% of 100 completions hit the length limit (allowed 30%)",
            "raise grpo.max_completion_length",
        ),
        ([[R, W]] * 50, 30, {}, "go", "", ""),
        (
            [[R, DRIFT], [NONE, DRIFT]] * 25,
            0,
            {},
            "format_not_learnt",
            "whole format in 25.0% of 100 completions, 95 % lower bound 17.5%, needed 80%; "
            "75 malformed, mostly tag_drift",
            "more SFT",
        ),
        # Right answers with text after the closing tag: malformed, though no answer is missing.
        ([[LOOSE, HEDGED]] * 50, 0, {}, "format_not_learnt", "50 malformed, mostly text outside the tags", "more SFT"),
        (
            [[R, R]] * 46 + [[R, W]] * 4,
            0,
            {},
            "too_easy",
            "92% of groups have equal rewards and 92% are all right",
            "harder problems",
        ),
        (
            [[W, W]] * 48 + [[R, W]] * 2,
            0,
            {},
            "too_hard",
            "96% of groups have equal rewards and 96% are all wrong",
            "easier problems",
        ),
        ([[W, W]] * 45 + [[R, W]] * 5, 0, {}, "go", "90% of groups without spread", ""),
        ([[W, W]] * 50, 0, {"max_dead_groups": 1.0}, "go", "", ""),
    ],
)
def test_decisions(
    groups: list[list[Grade]], truncated: int, gate: dict[str, float], verdict: str, evidence: str, fix: str
) -> None:
    found = decide(measured(*groups, truncated=truncated), GateSettings(**gate))
    assert found[0] == verdict
    assert evidence in found[1] and fix in found[2]


def test_causes_come_before_their_consequences() -> None:
    """Truncated completions are malformed too, and malformed ones are all wrong: the first cause is named."""
    everything = measured([CUT, CUT], [CUT, NONE], truncated=3)
    assert decide(everything, GateSettings())[0] == "truncated"
    assert decide(everything, GateSettings(max_truncation_rate=1.0))[0] == "format_not_learnt"
    assert decide(everything, GateSettings(max_truncation_rate=1.0, min_format_rate=0.0))[0] == "too_hard"
    assert decide(everything, EASY_GATE)[0] == "go"


def test_refusal_is_an_error_with_a_cause() -> None:
    with pytest.raises(GateRefused) as caught:
        raise_unless_go(measured(*[[W, W]] * 50), GateSettings())
    error = caught.value
    assert (error.cause, error.exit_code, error.retryable) == ("too_hard", 20, False)
    assert error.where == "format_gate" and error.fix
    assert raise_unless_go(measured(*[[R, W]] * 50), GateSettings()).startswith("whole format 100.0%")


@given(st.lists(st.lists(st.sampled_from([R, W, LOOSE, NONE, DRIFT, HEDGED]), min_size=3, max_size=3), min_size=1))
def test_rates_are_rates(groups: list[list[Grade]]) -> None:
    m = measured(*groups)
    rates = [value for key, value in m.items() if key not in ("prompts", "completions", "kinds")]
    assert all(0.0 <= rate <= 1.0 for rate in rates)
    assert m["format_rate_low"] <= m["format_rate"] <= m["format_rate_high"]
    assert m["dead_all_right"] + m["dead_all_wrong"] <= m["dead_groups"] + 1e-12
    assert m["pass_at_1"] <= m["pass_at_group"] + 1e-12
    assert sum(m["kinds"].values()) == m["completions"]
    assert decide(m, EASY_GATE)[0] == "go"
