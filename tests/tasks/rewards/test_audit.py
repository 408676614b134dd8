from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from pipeline_config.contract import ContractConfig
from pipeline_config.rewards import OverlongPenalty, RewardConfig
from tasks.errors import ConfigError
from tasks.rewards.audit import audit, audit_rewards
from tasks.rewards.build import build_rewards
from tasks.rewards.cases import PROBLEMS, Family, cases
from tasks.rewards.report import AuditReport, render, render_cases
from tasks.rewards.spec import RewardSpec, text_of

OTHER_TAGS = ContractConfig(
    reasoning_start="<think>",
    reasoning_end="</think>",
    answer_start="<answer>",
    answer_end="</answer>",
    system_prompt="",
)


def preset(name: str, contract: ContractConfig | None = None, **settings: Any) -> AuditReport:
    contract = contract or ContractConfig()
    config = RewardConfig(preset=name, **settings)  # type: ignore[arg-type]
    with build_rewards(config, contract, max_completion_length=512) as rewards:
        return audit_rewards(rewards, contract)


def failed(report: AuditReport) -> set[str]:
    return {finding.name for finding in report.findings if finding.status == "fail"}


def texts(values: Callable[[str, str], Any]) -> Callable[..., Any]:
    """A reward from a function of (text, gold)."""

    def reward(completions: Any, answer: Any, **_: Any) -> Any:
        return [values(text_of(c), gold) for c, gold in zip(completions, answer, strict=True)]

    return reward


def test_every_family_has_several_cases_with_names_of_their_own(contract: ContractConfig) -> None:
    for problem in PROBLEMS:
        made = cases(problem, contract)
        assert len({case.name for case in made}) == len(made) > 40
        for family in Family:
            assert sum(case.family is family for case in made) >= 4


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"format_weight": 0.0},
        {"format_weight": 0.45},
        {"overlong_penalty": OverlongPenalty(start=0.1, max_penalty=0.5)},
        {"proximity": 0.4},
        {"right": 7.0},
    ],
)
def test_sound_passes_with_every_setting(settings: dict[str, Any]) -> None:
    report = preset("sound", **settings)
    assert report.passed, [finding for finding in report.findings if finding.status == "fail"]


def test_sound_passes_with_other_tags_and_no_system_prompt() -> None:
    assert preset("sound", OTHER_TAGS).passed


def test_the_inversions_of_self_llm_are_found_by_name() -> None:
    report = preset("self_llm")
    assert not report.passed
    assert failed(report) == {"right_above_wrong", "wrong_above_hedged", "wrong_above_malformed", "gold_scores_maximum"}
    totals = {row.case.name: row.total for row in report.rows if row.gold == "8"}
    near, unit, honest = totals["wrong '8.7'"], totals["spelling '8 apples'"], totals["wrong '21'"]
    assert (near, unit, honest, totals["no tags"]) == (2.0, 0.5, -2.5, -7.5)
    paid = {(p.worse.case.name, p.better.case.name) for p in report.pairs["right_above_wrong"] if p.worse.gold == "8"}
    assert ("wrong '8.7'", "spelling '8 apples'") in paid
    over_honest = {p.worse.case.name for p in report.pairs["wrong_above_malformed"] if p.worse.gold == "8"}
    assert over_honest == {"answer before working", "draft only", "no end of working", "unclosed", "prompt echoed"}
    assert "negation" in {p.worse.case.name for p in report.pairs["wrong_above_hedged"]}


def test_evidence_names_the_cases_and_what_they_get() -> None:
    evidence = preset("self_llm").finding("right_above_wrong").evidence
    assert "[malformed: answer before working] gets 3 but [right: spelling" in evidence and "more" in evidence


def test_paying_for_length_is_found(contract: ContractConfig) -> None:
    report = audit([texts(lambda text, gold: len(text) / 1e5)], None, contract)
    assert "longer_never_higher" in failed(report)


def test_a_constant_reward_is_found(contract: ContractConfig) -> None:
    report = audit([texts(lambda text, gold: -2.0)], None, contract)
    assert "two_outcomes" in failed(report)
    assert "every completion gets -2" in report.finding("two_outcomes").evidence


def test_the_last_number_as_answer_is_found_to_pay_without_tags(contract: ContractConfig) -> None:
    report = audit([texts(lambda text, gold: float(gold in text.split()[-1:] or f">{gold}<" in text))], None, contract)
    assert {"right_above_wrong", "wrong_above_malformed"} <= failed(report)


def test_a_maximum_that_no_gold_gets_is_found(contract: ContractConfig) -> None:
    function = texts(lambda text, gold: 1.0 if f">{gold}<" in text else 0.0)
    report = audit([RewardSpec("mine", function, maximum=2.0)], [0.5], contract)
    finding = report.finding("gold_scores_maximum")
    assert finding.status == "fail" and "mine gives 1.0, declared maximum 2" in finding.evidence


def test_a_reward_for_other_tags_is_found_though_it_never_fails(contract: ContractConfig) -> None:
    report = audit([texts(lambda text, gold: 1.0 if rf"\boxed{{{gold}}}" in text else 0.0)], None, contract)
    assert "gold_scores_maximum" in failed(report)


def test_an_exception_on_one_kind_of_text_is_found(contract: ContractConfig) -> None:
    report = audit(
        [texts(lambda text, gold: float(text.split("<SOLUTION>")[1].split("</SOLUTION>")[0]))], None, contract
    )
    assert "no_exception" in failed(report)
    evidence = report.finding("no_exception").evidence
    assert "raised ValueError" in evidence and "gold 8" in evidence


def test_what_is_not_a_finite_number_is_found(contract: ContractConfig) -> None:
    report = audit([texts(lambda text, gold: float("nan") if "nan" in text else 1.0)], None, contract)
    assert "finite" in failed(report) and "returned nan" in report.finding("finite").evidence


def test_chance_is_found(contract: ContractConfig) -> None:
    rng = random.Random(0)
    assert "deterministic" in failed(audit([texts(lambda text, gold: rng.random())], None, contract))


def test_slowness_is_a_warning_with_the_time(contract: ContractConfig) -> None:
    def slow(text: str, gold: str) -> float:
        time.sleep(0.02 if "power" in text or "9^{9" in text else 0.0)
        return 0.0

    finding = audit([texts(slow)], None, contract, problems=PROBLEMS[:1]).finding("fast")
    assert finding.status == "warn" and "power tower" in finding.evidence


def test_a_hanging_function_is_killed_and_named(build: Callable[..., Any], contract: ContractConfig) -> None:
    rewards = build("hangs_holding_the_lock", timeout_s=0.5)
    report = audit_rewards(rewards, contract)
    assert "did not return within" in report.finding("no_exception").evidence
    assert report.finding("right_above_wrong").status == "not_measured"
    assert not report.passed and len(report.rows) < 100  # it gave up after the first problem


def test_a_users_own_sound_function_passes_in_its_process(build: Callable[..., Any], contract: ContractConfig) -> None:
    report = audit_rewards(build("length", preset="sound", options={"weight": 0.0}), contract)
    assert report.passed


def test_nothing_scored_is_no_pass(build: Callable[..., Any], contract: ContractConfig) -> None:
    assert failed(audit_rewards(build("not_for_these", options={"allow_none": True}), contract)) == {"two_outcomes"}


def test_golds_under_another_name(contract: ContractConfig) -> None:
    def mine(completions: Any, solution: Any) -> list[float]:
        return [float(f">{gold}<" in text_of(c)) for c, gold in zip(completions, solution, strict=True)]

    with pytest.raises(ConfigError, match="needs 'solution'"):
        audit([mine], None, contract)
    assert audit([mine], None, contract, gold_columns=["solution"]).finding("gold_scores_maximum").status == "ok"


def test_async_functions_can_be_audited(contract: ContractConfig) -> None:
    async def waits(completions: Any, **_: Any) -> list[float]:
        return [0.0 for _ in completions]

    assert failed(audit([waits], None, contract)) == {"two_outcomes", "right_above_wrong"}


def test_report_as_table_and_json() -> None:
    report = preset("self_llm")
    data = json.loads(json.dumps(report.to_json()))
    assert data["passed"] is False and data["functions"] == [
        "match_format_approximately",
        "check_answer",
        "check_numbers",
    ]
    by_name = {finding["name"]: finding for finding in data["findings"]}
    pair = by_name["right_above_wrong"]["pairs"][0]
    assert pair["gap"] == pair["worse"]["total"] - pair["better"]["total"] > 0
    assert {"gold", "family", "case", "completion", "total", "values", "errors"} <= set(data["cases"][0])
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(render(report))
    console.print(render_cases(report))
    text = console.export_text()
    assert "right_above_wrong" in text and "failed" in text and "spelling '8 apples'" in text
