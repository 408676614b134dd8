"""Tokenizer and chat template, on the real prompts of the data: the same token ids wherever a prompt is encoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from pipeline_config.contract import ContractConfig
from tasks.contract.checks import check_tags, check_template
from tasks.contract.prompts import encode_example, encode_prompt, messages
from tasks.findings import Finding, Status

MAX_COMPARED = 512
"""Prompts whose ids are compared between the stages."""

_RANK: dict[Status, int] = {"ok": 0, "not_measured": 1, "warn": 2, "fail": 3}


@dataclass(frozen=True)
class Encoded:
    """Questions with the lengths of their prompts in tokens."""

    questions: Sequence[str]
    lengths: Sequence[int]

    @property
    def longest(self) -> int:
        return max(self.lengths, default=0)


def check_prompts(tokenizer: Any, contract: ContractConfig, encoded: Encoded) -> list[Finding]:
    """Tags, template, and equal ids: the contract's checks on the shortest, the longest and two other real prompts."""
    findings = check_tags(tokenizer, contract)
    shown = chosen(encoded)
    findings += worst([(question, check_template(tokenizer, contract, question)) for question in shown])
    if any(finding.status == "fail" for finding in findings):
        return findings
    compared = list(encoded.questions[:MAX_COMPARED])
    return [*findings, check_rollout_ids(tokenizer, contract, compared), check_sft_ids(tokenizer, contract, compared)]


def chosen(encoded: Encoded) -> list[str]:
    """The shortest, the longest, the first and, if there is one, a prompt that is not plain ASCII."""
    if not encoded.questions:
        return ["What is 2 + 3?"]
    order = sorted(range(len(encoded.questions)), key=encoded.lengths.__getitem__)
    places = [0, order[0], order[-1]]
    places += [i for i, question in enumerate(encoded.questions) if not question.isascii()][:1]
    return [encoded.questions[i] for i in dict.fromkeys(places)]


def worst(results: Sequence[tuple[str, Sequence[Finding]]]) -> list[Finding]:
    """One finding per check: the worst over all prompts, with the prompt when it is no `ok`."""
    found: dict[str, Finding] = {}
    for question, findings in results:
        for finding in findings:
            known = found.get(finding.name)
            if known is None or _RANK[finding.status] > _RANK[known.status]:
                about = f" (prompt {_cut(question)!r})" if finding.status != "ok" else ""
                found[finding.name] = replace(finding, evidence=finding.evidence + about)
    return list(found.values())


def trainer_ids(tokenizer: Any, contract: ContractConfig, questions: Sequence[str]) -> list[list[int]]:
    """The prompts' ids by TRL's own method, which needs no more of its trainer than this."""
    from trl import GRPOTrainer

    trainer = SimpleNamespace(
        processing_class=tokenizer,
        _is_vlm=False,
        environment_factories=None,
        tools=[],
        chat_template=None,
        chat_template_kwargs={},
    )
    conversations = [messages(contract, question) for question in questions]
    ids = GRPOTrainer._tokenize_prompts(trainer, conversations)[0]
    return [[int(token) for token in row] for row in ids]


def check_rollout_ids(tokenizer: Any, contract: ContractConfig, questions: Sequence[str]) -> Finding:
    """GRPO's trainer encodes every prompt as SFT, gate and evaluation do."""
    name = "template.rollout_ids"
    if not questions:
        return Finding(name, "not_measured", "there are no prompts")
    try:
        theirs = trainer_ids(tokenizer, contract, questions)
    except (AttributeError, TypeError) as error:
        return Finding(name, "not_measured", f"the installed TRL encodes prompts in another way: {error}")
    for question, their in zip(questions, theirs, strict=True):
        ours = encode_prompt(tokenizer, contract, question)
        if their != ours:
            evidence = (
                f"TRL sees {len(their)} tokens where SFT and evaluation see {len(ours)} (prompt {_cut(question)!r})"
            )
            return Finding(name, "fail", evidence, "look for a BOS that the template and the tokenizer both add")
    return Finding(name, "ok", f"{len(questions)} prompts have the same token ids in SFT, rollouts and evaluation")


def check_sft_ids(tokenizer: Any, contract: ContractConfig, questions: Sequence[str]) -> Finding:
    """An SFT row begins with the very ids of the rollout's prompt."""
    name = "template.sft_ids"
    for question in questions:
        prompt = encode_prompt(tokenizer, contract, question)
        ids, mask = encode_example(tokenizer, contract, question, "1 + 1 = 2", "2")
        if ids[: len(prompt)] != prompt or mask.index(1) != len(prompt):
            evidence = f"an SFT row does not begin with the rollout's prompt (prompt {_cut(question)!r})"
            return Finding(name, "fail", evidence, "use a tokenizer that encodes a text alike wherever it stands")
    return Finding(name, "ok", f"{len(questions)} SFT rows begin with the rollout's prompt ids")


def check_vocabulary(tokenizer: Any, vocab_size: int, example_ids: Sequence[int]) -> Finding:
    """No token id lies outside of the model's embedding (row 36 of the known faults: added tokens)."""
    name = "tokenizer.vocabulary"
    size = len(tokenizer)
    highest = max(example_ids, default=0)
    if highest >= vocab_size:
        evidence = f"a prompt has the token id {highest}, the model has {vocab_size} embeddings"
        return Finding(name, "fail", evidence, "use the model's own tokenizer without added tokens")
    if size > vocab_size:
        evidence = f"the tokenizer has {size} tokens, the model {vocab_size} embeddings"
        return Finding(name, "warn", evidence, "remove added tokens: one that occurs would end the run")
    return Finding(name, "ok", f"{size} tokens, {vocab_size} embeddings")


def _cut(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:40]} ... {text[-16:]}"
