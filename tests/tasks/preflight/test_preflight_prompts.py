"""One tokenizer per fault of tokenizers and templates, and the finding that names it."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline_config.contract import ContractConfig
from tasks.contract.prompts import encode_prompt
from tasks.findings import Finding
from tasks.preflight import prompts
from tasks.preflight.prompts import Encoded, check_prompts, check_rollout_ids, check_vocabulary, chosen, worst

pytest.importorskip("trl")

QUESTIONS = ["What is 12 + 5?", "Tom has 30 apples and buys 55 more. How many?", "Compute 9 × 41.", "2?"]


@pytest.fixture
def encoded() -> Encoded:
    return Encoded(QUESTIONS, [5, 12, 7, 1])


def statuses(findings: list[Finding]) -> dict[str, str]:
    return {finding.name: finding.status for finding in findings}


def failed(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings if finding.status == "fail"}


def test_a_sound_tokenizer(make_tokenizer: Any, contract: ContractConfig, encoded: Encoded) -> None:
    found = statuses(check_prompts(make_tokenizer(), contract, encoded))
    assert set(found.values()) == {"ok"}
    assert {"tag.answer_end", "template.bos", "template.eos", "template.rollout_ids", "template.sft_ids"} <= set(found)


def test_tags_registered_as_special_tokens(make_tokenizer: Any, contract: ContractConfig, encoded: Encoded) -> None:
    tokenizer = make_tokenizer(added=["<SOLUTION>", "</SOLUTION>"])
    found = failed(check_prompts(tokenizer, contract, encoded))
    assert {"tag.answer_start", "tag.answer_end"} <= set(found)
    assert "registered as a special token" in found["tag.answer_end"].evidence
    assert "ordinary text" in found["tag.answer_end"].fix


def test_a_tag_that_does_not_survive_the_round_trip(
    make_tokenizer: Any, contract: ContractConfig, encoded: Encoded
) -> None:
    from tokenizers import normalizers

    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    found = failed(check_prompts(tokenizer, contract, encoded))
    assert set(found) >= {"tag.answer_start", "tag.answer_end"} and "tag.reasoning_end" not in found
    assert "does not survive" in found["tag.answer_start"].evidence


def test_a_template_without_a_generation_prompt(
    make_tokenizer: Any, contract: ContractConfig, encoded: Encoded
) -> None:
    found = failed(check_prompts(make_tokenizer(trained=False), contract, encoded))
    assert "instead of '<start_working_out>'" in found["template.generation_prompt"].evidence


def test_a_template_that_ignores_add_generation_prompt(
    make_tokenizer: Any, contract: ContractConfig, encoded: Encoded, chatml: str
) -> None:
    bare = chatml.partition("{% if add_generation_prompt")[0]
    found = failed(check_prompts(make_tokenizer(bare), contract, encoded))
    assert set(found) == {"template.generation_prompt"}
    assert "'<|im_start|>assistant'" in found["template.generation_prompt"].evidence
    # A template that writes the model's words without any header has nothing to open its turn with.
    plain = "{% for message in messages %}{{ message['content'] + eos_token }}{% endfor %}"
    assert not failed(check_prompts(make_tokenizer(plain), contract, encoded))


def test_a_template_that_takes_the_working_out_of_past_turns(
    make_tokenizer: Any, contract: ContractConfig, encoded: Encoded, chatml: str
) -> None:
    # As Qwen3's does with <think>: SFT and rollouts do not render past turns, so it is a warning.
    content = (
        "(message['content'].split('<end_working_out>')[-1] if message['role'] == 'assistant' else message['content'])"
    )
    found = check_prompts(make_tokenizer(chatml.replace("message['content']", content)), contract, encoded)
    warned = {finding.name: finding for finding in found if finding.status == "warn"}
    assert set(warned) == {"template.prefix"} and not failed(found)
    assert "SFT here encodes prompt and completion apart" in warned["template.prefix"].fix


def test_a_template_that_adds_bos_twice(
    make_tokenizer: Any, contract: ContractConfig, encoded: Encoded, chatml: str
) -> None:
    tokenizer = make_tokenizer("{{ bos_token }}{{ bos_token }}" + chatml, bos_token="<s>")
    found = failed(check_prompts(tokenizer, contract, encoded))
    assert set(found) == {"template.bos"} and "2 BOS tokens" in found["template.bos"].evidence


def test_an_eos_that_does_not_end_a_turn(make_tokenizer: Any, contract: ContractConfig, encoded: Encoded) -> None:
    found = failed(check_prompts(make_tokenizer(eos_token="<|endoftext|>"), contract, encoded))
    assert set(found) == {"template.eos"}
    assert "'<|im_end|>" in found["template.eos"].evidence and "'<|endoftext|>'" in found["template.eos"].evidence


def test_no_eos(make_tokenizer: Any, contract: ContractConfig, encoded: Encoded) -> None:
    found = failed(check_prompts(make_tokenizer(eos_token=None), contract, encoded))
    assert "no end-of-sequence token" in found["template.supervised"].evidence


def test_no_chat_template(make_tokenizer: Any, contract: ContractConfig, encoded: Encoded) -> None:
    found = failed(check_prompts(make_tokenizer(None), contract, encoded))
    assert set(found) == {"template.renders"} and "no chat template" in found["template.renders"].evidence


def test_a_template_that_refuses_the_system_role(
    make_tokenizer: Any, contract: ContractConfig, encoded: Encoded, chatml: str
) -> None:
    refusing = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    found = failed(check_prompts(make_tokenizer(refusing + chatml), contract, encoded))
    assert "no system role" in found["template.renders"].evidence
    assert "system_prompt" in found["template.renders"].fix


def test_a_fault_of_one_prompt_is_found_and_the_prompt_named(
    make_tokenizer: Any, contract: ContractConfig, encoded: Encoded, chatml: str
) -> None:
    template = chatml.replace("message['content']", "(message['content'] if '55' not in message['content'] else '')")
    found = failed(check_prompts(make_tokenizer(template), contract, encoded))
    assert "Tom has 30 apples" in found["template.question"].evidence


def test_ids_that_differ_between_sft_and_rollouts(
    make_tokenizer: Any, contract: ContractConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = make_tokenizer()
    assert check_rollout_ids(tokenizer, contract, QUESTIONS).status == "ok"
    doubled = [[1, *encode_prompt(tokenizer, contract, question)] for question in QUESTIONS]
    monkeypatch.setattr(prompts, "trainer_ids", lambda *_: doubled)
    finding = check_rollout_ids(tokenizer, contract, QUESTIONS)
    assert (finding.name, finding.status) == ("template.rollout_ids", "fail") and "BOS" in finding.fix


def test_a_trl_that_encodes_otherwise_is_not_measured(
    make_tokenizer: Any, contract: ContractConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: Any) -> Any:
        raise AttributeError("GRPOTrainer has no attribute '_tokenize_prompts'")

    monkeypatch.setattr(prompts, "trainer_ids", missing)
    assert check_rollout_ids(make_tokenizer(), contract, QUESTIONS).status == "not_measured"


def test_which_prompts_are_looked_at(encoded: Encoded) -> None:
    # First, shortest, longest, and the one that is not ASCII.
    assert chosen(encoded) == [QUESTIONS[0], QUESTIONS[3], QUESTIONS[1], QUESTIONS[2]]
    assert chosen(Encoded([], [])) == ["What is 2 + 3?"]


def test_the_worst_finding_of_several_prompts() -> None:
    results = [
        ("one", [Finding("a", "ok", "1")]),
        ("two", [Finding("a", "fail", "2")]),
        ("x", [Finding("a", "warn", "3")]),
    ]
    assert worst(results) == [Finding("a", "fail", "2 (prompt 'two')")]


def test_ids_outside_of_the_embedding(make_tokenizer: Any) -> None:
    tokenizer = make_tokenizer()
    size = len(tokenizer)
    assert check_vocabulary(tokenizer, size, [1, size - 1]).status == "ok"
    assert check_vocabulary(tokenizer, size - 1, [1, 2]).status == "warn"
    finding = check_vocabulary(tokenizer, size - 1, [1, size - 1])
    assert finding.status == "fail" and f"token id {size - 1}" in finding.evidence
