"""The reward audit on the run's own rewards and a few of its own problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, Literal

from pipeline_config.contract import ContractConfig
from pipeline_config.rewards import RewardConfig
from tasks.contract.answers import same_answer
from tasks.contract.golds import read_gold
from tasks.findings import Finding
from tasks.rewards.audit import audit_rewards
from tasks.rewards.build import Rewards
from tasks.rewards.cases import PROBLEMS, Problem

OWN_PROBLEMS = 2
LARGEST = 10**15

FATAL = frozenset({"no_exception", "finite", "two_outcomes", "gold_scores_maximum", "right_above_wrong"})
"""Audit checks of the user's own functions without which a run cannot learn, or learns the wrong thing."""

ORDER = frozenset(
    {"gold_scores_maximum", "right_above_wrong", "wrong_above_hedged", "wrong_above_malformed", "longer_never_higher"}
)
"""Audit checks of the order. The preset `self_llm` fails them by design: its values are the tutorial's. The user may accept such
faults (`preflight.reward_audit`)."""


def check_rewards(
    rewards: Rewards,
    config: RewardConfig,
    contract: ContractConfig,
    rows: Sequence[Mapping[str, Any]],
    order_faults: Literal["fail", "warn"] = "fail",
) -> list[Finding]:
    """One finding per check of the audit, named `rewards.<check>`.

    Args:
        order_faults: what a wrong order is (`preflight.reward_audit`); a reward that cannot teach at all fails in any case.

    The presets are asked the audit's own problems too; a function of the user's may be made for the run's kind of
    problem alone, so it is asked only those.
    """
    own = own_problems(rows)
    problems = list(own) if config.functions and own else [*own, *PROBLEMS]
    report = audit_rewards(rewards, contract, problems=problems)
    return [_judged(finding, config, order_faults) for finding in report.findings]


def _judged(finding: Finding, config: RewardConfig, order_faults: str) -> Finding:
    name = f"rewards.{finding.name}"
    if finding.status != "fail":
        return replace(finding, name=name)
    if config.preset == "self_llm" and finding.name in ORDER:
        return replace(finding, name=name, status="warn", evidence=f"the tutorial's values: {finding.evidence}")
    if config.functions and finding.name not in FATAL:
        return replace(finding, name=name, status="warn")
    if finding.name in ORDER:
        if order_faults == "warn":
            return replace(
                finding, name=name, status="warn", evidence=f"accepted (preflight.reward_audit): {finding.evidence}"
            )
        fix = "; or accept it on purpose with preflight.reward_audit=warn"
        return replace(finding, name=name, fix=finding.fix + fix)
    return replace(finding, name=name)


def own_problems(rows: Sequence[Mapping[str, Any]]) -> list[Problem]:
    """Audit problems made from the first rows whose golds are numbers, one of them of four digits or more if any is.

    Larger numbers than `LARGEST` are passed over: neither a float nor Python's decimal text holds all of them.
    """
    read = ((row, _number(str(row["answer"]))) for row in rows[:2000])
    numeric = [
        (row, value)
        for row, value in read
        if value is not None and abs(value) < LARGEST and value.denominator < LARGEST
    ]
    large = [item for item in numeric if abs(item[1]) >= 1000]
    chosen = [*large[:1], *(item for item in numeric if item not in large[:1])][:OWN_PROBLEMS]
    return [own_problem(str(row["question"]), str(row["answer"]), value) for row, value in chosen]


def own_problem(question: str, gold: str, value: Fraction) -> Problem:
    """Natural spellings of a numeric gold, and wrong answers of which the first is far off."""
    right = [f" {gold} ", f"${gold}$", rf"\boxed{{{gold}}}", f"**{gold}**"]
    if value.denominator == 1:
        right += [f"{int(value)}.0", f"{int(value):,}", str(int(value))]
    candidates = [7 * value + 31, value + 1, value * 10, -value, value + Fraction(1, 2), value / 2]
    wrong = [text for number in candidates if not same_answer(text := _text(number), gold)]
    return Problem(
        question=question,
        working="Step by step.",
        gold=gold,
        right=tuple(dict.fromkeys(text for text in right if same_answer(text, gold) and text != gold)),
        wrong=tuple(dict.fromkeys(wrong)),
        expression=f"{_text(value - 1)} + 1",
    )


def _number(gold: str) -> Fraction | None:
    """The value of a plain number; units, percentages and lists are left to the audit's own problems."""
    read = read_gold(gold)
    if read.value is None or read.value.items is not None or read.value.others or read.value.unit:
        return None
    return read.value.fraction


def _text(value: Fraction) -> str:
    """A decimal where it is short and exact, else a fraction."""
    if value.denominator == 1:
        return str(value.numerator)
    return (
        str(float(value))
        if value.denominator in (2, 4, 5, 8, 10, 20, 100)
        else f"{value.numerator}/{value.denominator}"
    )
