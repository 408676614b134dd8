"""Measures of the dataset stage: lengths by the real tokenizer and template, golds by the real grader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pipeline_config.contract import ContractConfig
from pipeline_config.pipeline import PipelineConfig
from tasks.contract.grading import grade
from tasks.contract.prompts import completion_text, encode_example, encode_prompt
from tasks.dataset.problem import Problem


@dataclass(frozen=True)
class Ruler:
    """What is measured with the real tokenizer and grader.

    prompt: tokens of the rendered prompt of a question.
    example: tokens of prompt, completion and EOS of a worked example.
    check: "" if the gold of a problem grades as right in a perfect completion, else what went wrong.
    """

    prompt: Callable[[str], int]
    example: Callable[[Problem], int]
    check: Callable[[Problem], str]


@dataclass(frozen=True)
class Limits:
    """Lengths in tokens: model context, longest completion of GRPO and of the evaluation, longest SFT row."""

    context: int
    completion: int
    eval_completion: int
    sft_length: int


def limits_of(config: PipelineConfig) -> Limits:
    """The lengths that rows must fit."""
    completion = config.grpo.max_completion_length
    return Limits(
        context=config.model.max_context,
        completion=completion,
        eval_completion=config.evaluation.max_new_tokens or completion,
        sft_length=min(config.sft.max_length, config.model.max_context),
    )


def ruler_for(tokenizer: Any, contract: ContractConfig) -> Ruler:
    """Lengths by the real tokenizer and template, golds by the real grader."""

    def example(problem: Problem) -> int:
        ids, _ = encode_example(tokenizer, contract, problem.question, problem.working, problem.gold)
        return len(ids)

    return Ruler(lambda question: len(encode_prompt(tokenizer, contract, question)), example, gold_check(contract))


def gold_check(contract: ContractConfig) -> Callable[[Problem], str]:
    """The gold self-check: a perfect completion that gives the gold must grade as right and well formed."""

    def check(problem: Problem) -> str:
        found = grade(completion_text(contract, problem.working, problem.gold), problem.gold, contract)
        if not found.right:
            return str(found.kind)
        return "" if found.well_formed else "the worked solution breaks the format"

    return check
