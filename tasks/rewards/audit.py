"""Does a list of rewards put completions in the right order? Asked with the task's own tags, before training.

GRPO sees little but the order of the rewards in a group, so that is what is tested, on their weighted sum.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from pipeline_config.contract import ContractConfig
from tasks.rewards.build import Member, Rewards
from tasks.rewards.cases import PROBLEMS, Case, Problem, cases
from tasks.rewards.checks import CHECKS, SLOW_S
from tasks.rewards.grader import Grader
from tasks.rewards.guard import ErrorLog, Guard, InProcess
from tasks.rewards.report import AuditReport, Row
from tasks.rewards.spec import GOLD_COLUMN, RewardFn, RewardSpec, Scores


def audit(
    functions: Sequence[RewardFn | RewardSpec],
    weights: Sequence[float] | None,
    contract: ContractConfig,
    *,
    problems: Sequence[Problem] = PROBLEMS,
    gold_columns: Sequence[str] = (GOLD_COLUMN,),
) -> AuditReport:
    """Audit reward functions with TRL's signature, in this process; a function that hangs hangs the audit.

    Args:
        functions: functions, or specs that also declare a maximum.
        weights: one per function; all 1 when None.
        contract: the tags that the completions of the cases get.
        problems: what the cases are made of.
        gold_columns: names under which the functions find the gold.
    """
    factors = list(weights) if weights is not None else [1.0] * len(functions)
    members = []
    for at, (given, weight) in enumerate(zip(functions, factors, strict=True)):
        name = given.name if isinstance(given, RewardSpec) else getattr(given, "__name__", f"reward_{at}")
        spec = given if isinstance(given, RewardSpec) else RewardSpec(name, given)
        spec = replace(spec, weight=weight)
        members.append(Member(spec, Guard(name, InProcess(spec.function)), ErrorLog(name, 1.0, None)))
    with Rewards(members, Grader(contract)) as rewards:
        return audit_rewards(rewards, contract, problems=problems, gold_columns=gold_columns)


def audit_rewards(
    rewards: Rewards,
    contract: ContractConfig,
    *,
    problems: Sequence[Problem] = PROBLEMS,
    gold_columns: Sequence[str] = (GOLD_COLUMN,),
) -> AuditReport:
    """Audit the rewards of a run as `build_rewards` made them; a function of the user's that hangs is killed."""
    rows: list[Row] = []
    for problem in problems:
        rows += _measure(rewards, problem, contract, gold_columns)
        if all(row.errors for row in rows):
            break  # nothing can be scored: more of the same would only take time
    findings, pairs = [], {}
    for name, check in CHECKS.items():
        finding, shown = check(name, rows, rewards.specs)
        findings.append(finding)
        pairs[name] = shown
    return AuditReport(findings, rows, [spec.name for spec in rewards.specs], pairs)


def _measure(rewards: Rewards, problem: Problem, contract: ContractConfig, gold_columns: Sequence[str]) -> list[Row]:
    """Score the cases of a problem together, as TRL does with a group, and then each alone, timed."""
    made = cases(problem, contract)
    together = rewards.evaluate(_offered(problem, made, contract, gold_columns))
    rows = []
    for at, case in enumerate(made):
        values = {spec.name: scores.values[at] for spec, scores in zip(rewards.specs, together, strict=True)}
        errors = {spec.name: s.errors[at] for spec, s in zip(rewards.specs, together, strict=True) if at in s.errors}
        alone, seconds = None, 0.0
        if not errors:
            offered = _offered(problem, [case], contract, gold_columns)
            alone, seconds = _timed(rewards, offered)
            if seconds > SLOW_S:
                alone, again = _timed(rewards, offered)  # a busy machine is slow once, a slow function twice
                seconds = min(seconds, again)
        rows.append(Row(problem.gold, case, values, _total(rewards.specs, values), alone, seconds, errors))
    return rows


def _timed(rewards: Rewards, offered: Mapping[str, Any]) -> tuple[float | None, float]:
    rewards.grader.forget()
    began = time.perf_counter()
    everything: list[Scores] = rewards.evaluate(offered)
    seconds = time.perf_counter() - began
    values = {spec.name: scores.values[0] for spec, scores in zip(rewards.specs, everything, strict=True)}
    return _total(rewards.specs, values), seconds


def _offered(
    problem: Problem, made: Sequence[Case], contract: ContractConfig, gold_columns: Sequence[str]
) -> dict[str, Any]:
    """What TRL would pass; the token ids only have a plausible length."""
    prompt = [{"role": "user", "content": problem.question}]
    if contract.system_message():
        prompt.insert(0, {"role": "system", "content": contract.system_message()})
    return {
        "prompts": [prompt for _ in made],
        "completions": [[{"role": "assistant", "content": case.completion}] for case in made],
        "completion_ids": [list(range(1, 2 + len(case.completion) // 4)) for case in made],
        **{column: [problem.gold for _ in made] for column in gold_columns},
        "question": [problem.question for _ in made],
        "trainer_state": SimpleNamespace(global_step=0, max_steps=1, epoch=0.0),
        "log_metric": lambda *_: None,
        "log_extra": lambda *_: None,
    }


def _total(specs: Sequence[RewardSpec], values: Mapping[str, float | None]) -> float | None:
    """TRL's weighted sum: None is left out, and all None is None."""
    known = [spec.weight * value for spec in specs if (value := values[spec.name]) is not None]
    return sum(known) if known else None
