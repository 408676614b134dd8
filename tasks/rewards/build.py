"""The reward functions of a run, ready for TRL's `GRPOTrainer(reward_funcs=...)`.

All functions of a batch are evaluated at the first call that TRL makes for it; the other calls return what is already
there. This lets a row on which one function failed get None from all of them: if only the failing one gave None, TRL
would add up the others, and a completion that crashes a reward could come out above an honest wrong one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline_config.contract import ContractConfig
from pipeline_config.rewards import RewardConfig
from tasks.rewards.client import Worker
from tasks.rewards.grader import Grader
from tasks.rewards.guard import ErrorLog, Guard, InProcess
from tasks.rewards.outcomes import outcome_shares
from tasks.rewards.self_llm import self_llm_specs
from tasks.rewards.sound import sound_spec
from tasks.rewards.spec import GOLD_COLUMN, RewardFn, RewardSpec, Scores

ERRORS_FILE = "reward_errors.jsonl"
OUTPUT_FILE = "reward_output.log"


@dataclass(frozen=True)
class Member:
    """One function with its guard."""

    spec: RewardSpec
    guard: Guard
    errors: ErrorLog


class Rewards:
    """What a trainer needs: `functions` and `weights`, in the same order; and `specs` for the audit and the watchdog.

    Unpacks to `functions, weights`. As a context manager, or with `close()`, it ends the processes of the user's
    functions; they end with this process in any case.
    """

    def __init__(self, members: Sequence[Member], grader: Grader) -> None:
        self._members, self.grader = list(members), grader
        self._batch: tuple[Any, ...] = ()
        self._scores: list[Scores] = []
        self._taken: set[int] = set()  # functions that have returned their scores of this batch
        self.functions: list[RewardFn] = [self._function(at) for at in range(len(self._members))]
        self.weights: list[float] = [member.spec.weight for member in self._members]
        self.specs: list[RewardSpec] = [
            replace(member.spec, function=function)
            for member, function in zip(self._members, self.functions, strict=True)
        ]

    def evaluate(self, offered: Mapping[str, Any]) -> list[Scores]:
        """Scores of every function for one batch, failed rows voided in all of them. Counts, saves and logs nothing."""
        everything = [member.guard.score(offered) for member in self._members]
        for row in self._failed_rows(everything):
            for scores in everything:
                scores.values[row] = None
        return everything

    def close(self) -> None:
        """End the processes of the user's functions."""
        for member in self._members:
            member.guard.caller.close()

    def __iter__(self) -> Iterator[Any]:
        yield self.functions
        yield self.weights

    def __enter__(self) -> Rewards:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _failed_rows(self, everything: Sequence[Scores]) -> set[int]:
        """Rows on which a function that counts has failed."""
        pairs = zip(self._members, everything, strict=True)
        return {row for member, scores in pairs if member.spec.weight != 0 for row in scores.errors}

    def _function(self, at: int) -> RewardFn:
        def reward(prompts: Any, completions: Any, completion_ids: Any = None, **columns: Any) -> list[float | None]:
            offered = {**columns, "prompts": prompts, "completions": completions, "completion_ids": completion_ids}
            batch = (prompts, completions, completion_ids, columns.get(GOLD_COLUMN))
            if at in self._taken or batch != self._batch:
                self._scores = self._evaluate_and_log(offered)
                self._batch, self._taken = batch, set()
            self._taken.add(at)
            return list(self._scores[at].values)

        reward.__name__ = reward.__qualname__ = self._members[at].spec.name
        return reward

    def _evaluate_and_log(self, offered: Mapping[str, Any]) -> list[Scores]:
        everything = self.evaluate(offered)
        self._log(offered, everything)
        for member, scores in zip(self._members, everything, strict=True):
            member.errors.record(offered, scores.errors)
        return everything

    def _log(self, offered: Mapping[str, Any], everything: Sequence[Scores]) -> None:
        log_metric: Callable[[str, float], None] = offered.get("log_metric") or _ignore
        log_extra: Callable[[str, list[Any]], None] = offered.get("log_extra") or _ignore
        rows = max(1, len(offered["completions"]))
        for member, scores in zip(self._members, everything, strict=True):
            log_metric(f"reward_errors/{member.spec.name}", len(scores.errors) / rows)
            for name, value in scores.metrics:
                log_metric(name, value)
            for column, values in scores.extras.items():
                log_extra(column, values)
        if offered.get(GOLD_COLUMN) is not None:
            grades = self.grader.grades(offered)
            failed = {row for scores in everything for row in scores.errors}
            for name, value in outcome_shares(grades, failed).items():
                log_metric(name, value)
            log_extra("grade", [grade.kind.value for grade in grades])


def _ignore(*_: Any) -> None:
    """Stands in for TRL's logging hooks outside a trainer."""


def build_rewards(
    config: RewardConfig,
    contract: ContractConfig,
    *,
    max_completion_length: int | None = None,
    work_dir: Path | None = None,
    eos_ids: Collection[int] = (),
) -> Rewards:
    """Build a run's rewards. The user's functions are loaded here, in processes of their own: a wrong path fails early.

    Args:
        config: preset, functions and limits.
        contract: tags.
        max_completion_length: in tokens, as in the trainer.
        work_dir: gets `reward_errors.jsonl` and `reward_output.log`; None saves neither.
        eos_ids: ids that end a completion (EOS and pad), so that one of exactly full length is not taken for truncated.

    Raises:
        ConfigError: a function of the user's cannot be loaded.
    """
    grader = Grader(contract, max_completion_length=max_completion_length, eos_ids=eos_ids)
    specs: list[RewardSpec] = []
    if config.preset == "sound":
        specs = [sound_spec(config, grader)]
    elif config.preset == "self_llm":
        specs = self_llm_specs(contract, exact_match=config.exact_match)
    errors_file = work_dir / ERRORS_FILE if work_dir else None

    def member(spec: RewardSpec, guard: Guard) -> Member:
        return Member(spec, guard, ErrorLog(spec.name, config.max_error_rate, errors_file))

    members = [member(spec, Guard(spec.name, InProcess(spec.function), math.inf)) for spec in specs]
    try:
        for function in config.functions:
            log = work_dir / OUTPUT_FILE if work_dir else None
            worker = Worker(function.path, allow_none=function.allow_none, log=log)
            # The spec's function is replaced by the guarded one, which asks the worker.
            spec = RewardSpec(function.label, worker.score, maximum=function.maximum, weight=function.weight)
            members.append(member(spec, Guard(function.label, worker, config.timeout_s)))
            worker.start()
    except BaseException:
        for built in members:
            built.guard.caller.close()
        raise
    return Rewards(members, grader)
