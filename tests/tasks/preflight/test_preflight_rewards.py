"""The audit of the run's own rewards: bad functions are named before anything trains."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline_config.contract import ContractConfig
from pipeline_config.rewards import RewardConfig
from tasks.contract.answers import same_answer
from tasks.findings import Finding
from tasks.preflight.rewards import check_rewards, own_problem, own_problems

Rows = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def check(
    make_rows: Rows, build: Any, reward_config: Callable[..., RewardConfig], contract: ContractConfig
) -> Callable[..., dict[str, Finding]]:
    """Findings by name of functions of the user's module, on two problems."""

    def run(
        *names: str, golds: tuple[str, ...] = ("17", "2345"), order_faults: Any = "fail", **options: Any
    ) -> dict[str, Finding]:
        config = reward_config(*names, **options)
        found = check_rewards(build(config), config, contract, make_rows(*golds), order_faults)
        return {finding.name: finding for finding in found}

    return run


def failed(found: dict[str, Finding]) -> set[str]:
    return {name for name, finding in found.items() if finding.status == "fail"}


@pytest.mark.parametrize("golds", [("17", "2345"), ("-3", "1/2", "0.25"), ("yes", "B", "x^2"), ("1,234",), ("0",)])
def test_the_default_rewards_pass_on_any_golds(check: Any, golds: tuple[str, ...]) -> None:
    found = check(golds=golds)
    del found["rewards.fast"]  # a busy machine is slow
    assert {name: finding for name, finding in found.items() if finding.status != "ok"} == {}


def test_the_tutorials_inversions_are_warnings(check: Any) -> None:
    found = check(preset="self_llm")
    assert failed(found) == set()
    finding = found["rewards.right_above_wrong"]
    assert finding.status == "warn" and finding.evidence.startswith("the tutorial's values: ")


@pytest.mark.parametrize(
    ("function", "name", "evidence"),
    [
        ("raises", "rewards.no_exception", "raised ValueError: the parser gave up"),
        ("short", "rewards.no_exception", "returned 1 value for"),
        ("none", "rewards.no_exception", "returned None instead of a list"),
        ("nan", "rewards.finite", "returned nan instead of a finite number"),
        ("constant", "rewards.two_outcomes", "every completion gets 0.5"),
        ("tie", "rewards.right_above_wrong", "and [right: "),
        ("verbose", "rewards.right_above_wrong", "[malformed: "),
    ],
)
def test_bad_functions(check: Any, function: str, name: str, evidence: str) -> None:
    found = check(function)
    failures = {key: finding for key, finding in found.items() if finding.status == "fail"}
    shown = " ".join(finding.evidence for finding in failures.values())
    assert name in failures or (name == "rewards.no_exception" and "rewards.finite" in failures), failures
    assert evidence in shown


def test_a_strict_reward_is_accepted_only_on_purpose(check: Any) -> None:
    found = check("exact")
    assert failed(found) == {"rewards.right_above_wrong"}
    assert "preflight.reward_audit=warn" in found["rewards.right_above_wrong"].fix
    found = check("exact", order_faults="warn")
    assert failed(found) == set()
    assert found["rewards.right_above_wrong"].status == "warn"
    assert found["rewards.right_above_wrong"].evidence.startswith("accepted (preflight.reward_audit): ")


@pytest.mark.parametrize(
    ("function", "name"), [("raises", "no_exception"), ("nan", "finite"), ("constant", "two_outcomes")]
)
def test_a_reward_that_cannot_teach_is_never_accepted(check: Any, function: str, name: str) -> None:
    found = failed(check(function, order_faults="warn"))
    assert found & {f"rewards.{name}", "rewards.no_exception"}


def test_two_rewards_that_cancel_out(check: Any) -> None:
    # Each varies, and their sum, which is all that GRPO sees, is 0 for every completion.
    found = check("exact", "opposite")
    assert "rewards.two_outcomes" in failed(found)
    assert "every completion gets 0" in found["rewards.two_outcomes"].evidence


def test_an_empty_answer_that_is_part_of_every_gold(check: Any) -> None:
    found = check("contained")
    assert "rewards.right_above_wrong" in failed(found)


def test_a_function_that_hangs(check: Any) -> None:
    found = check("hangs", timeout_s=0.5)
    assert "rewards.no_exception" in failed(found)
    assert "hangs did not return within" in found["rewards.no_exception"].evidence


def test_a_tie_of_right_and_wrong_beside_the_default_rewards_is_no_tie(check: Any) -> None:
    assert failed(check("constant", preset="sound")) == set()


def test_a_function_of_the_users_is_only_asked_the_runs_kind_of_problem(check: Any) -> None:
    evidence = check("constant")["rewards.two_outcomes"].evidence
    assert "every completion gets" in evidence
    only_ints = check("exact")["rewards.gold_scores_maximum"]
    assert "all 2 golds" in only_ints.evidence


def test_faults_that_can_be_gamed_are_warnings_for_functions_of_the_users(check: Any) -> None:
    assert check("verbose")["rewards.longer_never_higher"].status == "warn"


# -- own problems -------------------------------------------------------------------------------------------------


def test_a_problem_from_an_integer() -> None:
    made = own_problem("q", "1234", Fraction(1234))
    assert made.right == (" 1234 ", "$1234$", r"\boxed{1234}", "**1234**", "1234.0", "1,234")
    assert made.wrong == ("8669", "1235", "12340", "-1234", "1234.5", "617")
    assert made.expression == "1233 + 1"


def test_a_problem_from_zero_has_no_wrong_answer_that_is_right() -> None:
    assert own_problem("q", "0", Fraction(0)).wrong == ("31", "1", "0.5")


def test_a_problem_from_a_grouped_gold_and_from_a_fraction() -> None:
    assert "1234" in own_problem("q", "1,234", Fraction(1234)).right
    assert own_problem("q", "1/3", Fraction(1, 3)).wrong[:2] == ("100/3", "4/3")


@given(st.fractions(min_value=-(10**6), max_value=10**6, max_denominator=1000))
def test_own_problems_are_sound(value: Fraction) -> None:
    gold = str(value)
    made = own_problem("q", gold, value)
    assert all(same_answer(text, gold) for text in made.right) and len(made.right) >= 3
    assert not any(same_answer(text, gold) for text in made.wrong) and len(made.wrong) >= 3


def test_which_problems_are_taken(make_rows: Rows) -> None:
    assert [p.gold for p in own_problems(make_rows("yes", "5", "6", "70%", "4321"))] == ["4321", "5"]
    assert own_problems(make_rows("yes", "no", "nan")) == []
    # Neither str() of an int of 5,000 digits nor float() of one of 400 exists.
    assert [p.gold for p in own_problems(make_rows("9" * 5000, "9" * 400, "1/" + "3" * 400, "7"))] == ["7"]
