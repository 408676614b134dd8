"""Does a tokenizer keep the contract: do the tags survive, and is the prompt the same everywhere."""

from __future__ import annotations

from typing import Any

import jinja2

from pipeline_config.contract import ContractConfig
from tasks.contract.prompts import (
    completion_text,
    encode_example,
    encode_prompt,
    messages,
    render_prompt,
    turn_end_id,
)
from tasks.errors import ModelError
from tasks.findings import Finding

_SAMPLE_WORKING = "3 + 5 = 8"
_SAMPLE_ANSWER = "8"


def check_tags(tokenizer: Any, contract: ContractConfig) -> list[Finding]:
    """One finding per tag: does it survive encode -> decode(skip_special_tokens=True), as a trainer decodes rollouts?"""
    findings = []
    special = _special_tokens(tokenizer)
    names = ("reasoning_start", "reasoning_end", "answer_start", "answer_end")
    for field, tag in zip(names, contract.tags, strict=True):
        name = f"tag.{field}"
        text = f"a {tag}b {tag}\n8{tag}"
        ids = _encode(tokenizer, text)
        decoded = _decode(tokenizer, ids)
        kept = decoded.count(tag)
        if kept == 3:
            pieces = len(_encode(tokenizer, tag))
            findings.append(Finding(name, "ok", f"{tag!r} survives encode and decode ({pieces} tokens)"))
        elif tag in special:
            findings.append(
                Finding(
                    name,
                    "fail",
                    f"{tag!r} is registered as a special token: decoding with skip_special_tokens=True gives {decoded!r}, "
                    "so no reward function ever sees the tag",
                    "leave the tags as ordinary text: remove it from the tokenizer's special tokens, "
                    "or add it with AddedToken(special=False)",
                )
            )
        else:
            unknown = getattr(tokenizer, "unk_token_id", None)
            cause = " (the vocabulary lacks some of its characters)" if unknown is not None and unknown in ids else ""
            findings.append(
                Finding(
                    name,
                    "fail",
                    f"{tag!r} does not survive encode and decode: {decoded!r}{cause}",
                    "choose tags made of characters that the vocabulary has",
                )
            )
    findings.append(_check_whole(tokenizer, contract))
    return findings


def check_template(tokenizer: Any, contract: ContractConfig, question: str) -> list[Finding]:
    """Chat template, generation prompt, BOS, prompt prefix, end of turn, and what SFT supervises."""
    try:
        prompt = render_prompt(tokenizer, contract, question)
        ids = encode_prompt(tokenizer, contract, question)
    except ModelError as error:
        return [Finding("template.renders", "fail", error.message, error.fix)]
    findings = [Finding("template.renders", "ok", f"{len(ids)} prompt tokens")]
    findings.append(_check_generation_prompt(tokenizer, contract, question, prompt))
    findings.append(_check_question(prompt, contract, question))
    findings.append(_check_bos(tokenizer, ids))
    findings.append(_check_same_ids(tokenizer, contract, question, ids))
    findings.extend(_check_full_conversation(tokenizer, contract, question, prompt))
    findings.extend(_check_supervised(tokenizer, contract, question, ids))
    return findings


def _check_whole(tokenizer: Any, contract: ContractConfig) -> Finding:
    """The four tags in a whole completion, where pieces may merge across their borders."""
    text = contract.reasoning_start + completion_text(contract, _SAMPLE_WORKING, _SAMPLE_ANSWER)
    decoded = _decode(tokenizer, _encode(tokenizer, text))
    if decoded.strip() == text.strip():
        return Finding("tag.completion", "ok", "a whole completion decodes to the text it was encoded from")
    if all(decoded.count(tag) == text.count(tag) for tag in contract.tags):
        return Finding(
            "tag.completion", "warn", f"a completion decodes to {decoded!r} instead of {text!r}; the tags are whole"
        )
    return Finding(
        "tag.completion",
        "fail",
        f"a completion loses tags when it is decoded: {decoded!r}",
        "see the findings on the single tags",
    )


def _check_generation_prompt(tokenizer: Any, contract: ContractConfig, question: str, prompt: str) -> Finding:
    """The prompt ends with the opening tag, after whatever opens the model's turn in a conversation."""
    name = "template.generation_prompt"
    if not prompt.endswith(contract.reasoning_start):
        return Finding(
            name,
            "fail",
            f"the prompt ends with {prompt[-40:]!r} instead of {contract.reasoning_start!r}",
            "render with the trained template (tasks.contract.prompts.trained_template)",
        )
    header = _missing_header(tokenizer, contract, question, prompt.removesuffix(contract.reasoning_start))
    if header:
        return Finding(
            name,
            "fail",
            f"the template opens the model's turn with {header!r} in a conversation, but not in the generation prompt: "
            "the model would go on as the user",
            "give a chat template that honours add_generation_prompt (model.chat_template)",
        )
    return Finding(name, "ok", f"the prompt ends with {contract.reasoning_start!r}")


def _missing_header(tokenizer: Any, contract: ContractConfig, question: str, prompt: str) -> str:
    """What a conversation has between the question's turn and the model's words, and the generation prompt lacks."""
    turns = [*messages(contract, question), {"role": "assistant", "content": contract.reasoning_start}]
    try:
        asked = str(tokenizer.apply_chat_template(turns[:-1], tokenize=False, add_generation_prompt=False))
        whole = str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=False))
    except (jinja2.TemplateError, ValueError, TypeError, KeyError):
        return ""  # `template.prefix` names it
    if prompt != asked or not whole.startswith(asked):
        return ""
    return whole[len(asked) :].partition(contract.reasoning_start)[0].strip()


def _check_question(prompt: str, contract: ContractConfig, question: str) -> Finding:
    name = "template.question"
    system = contract.system_message()
    if question.strip() not in prompt:
        return Finding(
            name, "fail", "the question is not in the prompt", "use a chat template that renders user messages"
        )
    if system.strip() and system.strip() not in prompt:
        return Finding(
            name,
            "fail",
            "the system message is not in the prompt: the model is never told the tags",
            "use a chat template that renders a system message, or put the instructions into the question",
        )
    return Finding(name, "ok", "system message and question are in the prompt")


def _check_bos(tokenizer: Any, ids: list[int]) -> Finding:
    name = "template.bos"
    bos = getattr(tokenizer, "bos_token_id", None)
    if bos is None:
        return Finding(name, "ok", "the tokenizer has no BOS token")
    leading = 0
    while leading < len(ids) and ids[leading] == bos:
        leading += 1
    if leading <= 1:
        return Finding(name, "ok", f"{leading} BOS at the start of the prompt")
    return Finding(
        name, "fail", f"{leading} BOS tokens at the start of the prompt", "take bos_token out of the chat template"
    )


def _check_same_ids(tokenizer: Any, contract: ContractConfig, question: str, ids: list[int]) -> Finding:
    name = "template.same_ids"
    encoded = tokenizer.apply_chat_template(
        [messages(contract, question)], tokenize=True, add_generation_prompt=True, return_dict=True
    )
    trainer_ids = [int(token) for token in encoded["input_ids"][0]]
    if trainer_ids == ids:
        return Finding(name, "ok", "the trainer's own encoding gives the same token ids")
    first = next(
        (i for i, (a, b) in enumerate(zip(ids, trainer_ids, strict=False)) if a != b), min(len(ids), len(trainer_ids))
    )
    return Finding(
        name,
        "fail",
        f"token ids differ from the trainer's at position {first}: {ids[first : first + 5]} and {trainer_ids[first : first + 5]}",
        "use a tokenizer whose chat template renders the same text with and without tokenizing",
    )


def _check_full_conversation(tokenizer: Any, contract: ContractConfig, question: str, prompt: str) -> list[Finding]:
    completion = completion_text(contract, _SAMPLE_WORKING, _SAMPLE_ANSWER)
    turns = [*messages(contract, question), {"role": "assistant", "content": contract.reasoning_start + completion}]
    try:
        full = str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=False))
    except (jinja2.TemplateError, ValueError, TypeError, KeyError) as error:
        return [
            Finding(
                "template.prefix", "fail", f"an assistant message cannot be rendered: {error}", "mend the chat template"
            )
        ]
    findings = []
    expected = prompt + completion
    if full.startswith(expected):
        findings.append(Finding("template.prefix", "ok", "the prompt is a prefix of the whole conversation"))
    else:
        at = next(
            (i for i, (a, b) in enumerate(zip(full, expected, strict=False)) if a != b), min(len(full), len(expected))
        )
        findings.append(
            Finding(
                "template.prefix",
                "warn",
                f"the whole conversation differs from prompt + completion at character {at}: "
                f"{full[at : at + 40]!r} and {expected[at : at + 40]!r}",
                "SFT here encodes prompt and completion apart, so training is not affected; "
                "chat clients that render past turns see other text",
            )
        )
    eos = getattr(tokenizer, "eos_token", None)
    at = full.rfind(contract.answer_end)
    rest = full[at + len(contract.answer_end) :].strip() if at >= 0 else ""
    if eos and rest.startswith(eos):
        findings.append(Finding("template.eos", "ok", f"{eos!r} ends an assistant turn"))
    else:
        findings.append(
            Finding(
                "template.eos",
                "fail",
                f"the template ends an assistant turn with {rest[:30]!r}, but the end-of-sequence token is {eos!r}",
                "set eos_token to the token that ends a turn, or generation will not stop there",
            )
        )
    return findings


def _check_supervised(tokenizer: Any, contract: ContractConfig, question: str, prompt_ids: list[int]) -> list[Finding]:
    try:
        ids, mask = encode_example(tokenizer, contract, question, _SAMPLE_WORKING, _SAMPLE_ANSWER)
        eos = turn_end_id(tokenizer)
    except ModelError as error:
        return [Finding("template.supervised", "fail", error.message, error.fix)]
    supervised = [token for token, on in zip(ids, mask, strict=True) if on]
    text = _decode(tokenizer, supervised)
    if ids[: len(prompt_ids)] != prompt_ids:
        return [Finding("template.supervised", "fail", "an SFT example does not start with the rollout's prompt ids")]
    if supervised[-1:] != [eos] or contract.answer_end not in text or contract.reasoning_end not in text:
        return [
            Finding(
                "template.supervised",
                "fail",
                f"the supervised tokens decode to {text!r} and end with id {supervised[-1:]}",
                "tags and the end-of-turn token must be supervised; see the findings on the tags",
            )
        ]
    return [
        Finding("template.supervised", "ok", f"{len(supervised)} supervised tokens cover the tags and end with EOS")
    ]


def _special_tokens(tokenizer: Any) -> set[str]:
    special = {str(token) for token in getattr(tokenizer, "all_special_tokens", [])}
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return special | {str(token.content) for token in added.values() if getattr(token, "special", False)}


def _encode(tokenizer: Any, text: str) -> list[int]:
    return [int(token) for token in tokenizer(text, add_special_tokens=False)["input_ids"]]


def _decode(tokenizer: Any, ids: list[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=True))
