"""What the gate measures, on numbers worked out by hand."""

from __future__ import annotations

import pytest
from gate_support import CUT, DRIFT, HEDGED, LOOP, LOOSE, NAN, NONE, R, W, block, measured, rollout
from hypothesis import given
from hypothesis import strategies as st

from tasks.format_gate.measure import component, without_examples
from tasks.statistics import mean_interval


def test_rates_of_three_groups_of_four() -> None:
    m = measured([R, R, R, R], [W, W, W, W], [R, NONE, CUT, W])
    assert (m["prompts"], m["completions"], m["group_size"]) == (3, 12, 4)
    assert m["format_rate"] == 10 / 12
    assert m["truncation_rate"] == 1 / 12
    assert m["pass_at_1"] == pytest.approx(5 / 12)
    assert m["pass_at_group"] == 2 / 3
    assert (m["dead_groups"], m["dead_all_right"], m["dead_all_wrong"]) == (2 / 3, 1 / 3, 1 / 3)
    assert m["kinds"] == {"no_answer": 1, "right": 5, "truncated": 1, "wrong": 5}
    assert m["prompts_by_right"] == [1, 1, 0, 0, 1]
    # Wilson, 10 of 12, z = 1.959964: centre (0.833333 + 3.841459 / 24) / (1 + 3.841459 / 12) = 0.752501,
    # half width 1.959964 / 1.320122 * sqrt(0.138889 / 12 + 3.841459 / 576) = 0.200533.
    assert m["format_rate_low"] == pytest.approx(0.551968, abs=2e-6)
    assert m["format_rate_high"] == pytest.approx(0.953034, abs=2e-6)
    assert (m["pass_at_1_low"], m["pass_at_1_high"]) == mean_interval([1, 0, 1 / 4])


def test_a_group_is_dead_by_its_rewards_not_by_its_grades() -> None:
    """A reward that pays for length keeps a group of right answers alive; one that pays everybody kills a mixed one."""
    alive = [rollout(block("5"), reward=1.0), rollout(block("5"), reward=0.9)]
    killed = [rollout(block("5"), reward=0.5), rollout(block("6"), reward=0.5)]
    m = measured(alive, killed)
    assert (m["dead_groups"], m["dead_all_right"], m["dead_all_wrong"]) == (0.5, 0.0, 0.0)


def test_copies() -> None:
    """Of four completions, one distinct text is a copy group; it counts as dead copies only where it is dead."""
    other = rollout(block("6", working="3 + 3"))
    m = measured([W, W, W, W], [W, other, W, W], [R, R, R, R])
    assert m["dead_copies"] == 2 / 3
    assert m["distinct_completions"] == pytest.approx((1 / 4 + 2 / 4 + 1 / 4) / 3)


def test_rewards_that_could_not_be_computed() -> None:
    void = rollout(block("5"), reward=NAN)
    assert measured([void, void])["dead_groups"] == 1.0
    assert measured([void, R, R])["dead_groups"] == 1.0
    assert measured([void, R, W])["dead_groups"] == 0.0


def test_spread_of_a_component() -> None:
    """Groups (0, 2), (1, 1), (3, not scored): values 0 2 1 1 3, mean 7/5, variance 15/5 - 49/25 = 26/25; within: 1, 0, 0."""
    found = component([[0.0, 2.0], [1.0, 1.0], [3.0, NAN]])
    assert found["mean"] == pytest.approx(1.4)
    assert found["std"] == pytest.approx(1.04**0.5)
    assert found["std_within"] == pytest.approx(1 / 3)
    assert found["dead_groups"] == pytest.approx(2 / 3)
    assert (found["min"], found["max"]) == (0.0, 3.0)
    assert component([[NAN, NAN]])["mean"] is None


def test_malformed_shapes_have_an_example_each() -> None:
    m = measured([LOOSE, HEDGED, NONE, R], [DRIFT, CUT, LOOP, R])
    assert {name: item["count"] for name, item in m["shapes"].items()} == {
        "no_answer": 1,
        "tag_drift": 1,
        "text_outside": 2,
        "truncated": 2,
    }
    assert m["shapes"]["no_answer"]["example"] == "2 + 3 = 5"
    assert m["looping"] == 1
    assert "example" not in str(without_examples(m)) and "example" in str(m)
    assert without_examples(m)["tags"]["answer_start"]["forms"] == [{"kind": "case", "form": "<solution>", "count": 1}]


@given(st.lists(st.lists(st.sampled_from([R, W, LOOSE, NONE, DRIFT, HEDGED, CUT]), min_size=3, max_size=3), min_size=1))
def test_rates_are_rates(groups: list[list[object]]) -> None:
    m = measured(*groups)  # type: ignore[arg-type]
    rates = [
        m[key] for key in m if key.endswith(("_rate", "_low", "_high", "_groups", "_all_right", "_wrong", "_copies"))
    ]
    assert all(0.0 <= rate <= 1.0 for rate in rates)
    assert m["format_rate_low"] <= m["format_rate"] <= m["format_rate_high"]
    assert m["dead_all_right"] + m["dead_all_wrong"] <= m["dead_groups"] + 1e-12
    assert m["pass_at_1"] <= m["pass_at_group"] + 1e-12
    assert sum(m["kinds"].values()) == m["completions"] == sum(m["prompts_by_right"]) * 3
    for item in m["tags"].values():
        outcomes = item["right"] + item["repeated"] + item["cut"] + item["missing"] + sum(item["instead"].values())
        assert outcomes == m["completions"]
