"""Prompts with real (tiny) tokenizers: the trained template, token ids, SFT masks, and the checks that name faults."""

from __future__ import annotations

from typing import Any

import jinja2
import pytest

from pipeline_config.contract import ContractConfig
from tasks.contract.checks import check_tags, check_template
from tasks.contract.prompts import (
    completion_text,
    encode_example,
    encode_prompt,
    messages,
    render_prompt,
    trained_template,
    turn_end_id,
)
from tasks.errors import ModelError
from tasks.findings import Finding

tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")

CONTRACT = ContractConfig()
S, E, A, Z = CONTRACT.tags
QUESTION = "Tom has 3 apples and buys 5 more. How many apples?"
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def make_tokenizer(template: str | None = CHATML, trained: bool = True, bos: str | None = None, **special: Any) -> Any:
    """A byte-level BPE tokenizer of a few hundred pieces, trained on the contract's own texts."""
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=420,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>"],
    )
    bpe.train_from_iterator(
        [CONTRACT.system_message(), QUESTION, completion_text(CONTRACT, "3 + 5 = 8", "8")] * 4, trainer
    )
    if bos:
        bpe.post_processor = tokenizers.processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, bpe.token_to_id(bos))]
        )
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe, **{"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "bos_token": bos, **special}
    )
    if template is not None:
        tokenizer.chat_template = trained_template(template, CONTRACT) if trained else template
    return tokenizer


def by_name(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


def render(template: str, **values: Any) -> str:
    """As transformers renders: trim_blocks, lstrip_blocks, and one final newline of the template dropped."""
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(template).render(**values)


def test_messages() -> None:
    assert [turn["role"] for turn in messages(CONTRACT, "q")] == ["system", "user"]
    assert E in messages(CONTRACT, "q")[0]["content"]
    assert messages(ContractConfig(system_prompt=""), "q") == [{"role": "user", "content": "q"}]


@pytest.mark.parametrize(
    "template",
    [
        "plain", "plain\n", "plain\n\n", "plain\r\n", "a\n   ", "{% if x %}a{% endif %}", "{% if x %}a{% endif %}\n",
        "{% if x %}a{% endif %}\n\n", "{% if x %}a{% endif %}\n  ", "{%- if x -%} a {%- endif -%}\n\n", "{{ x }}\n", "{{ x -}}\n\n",
        "{# note #}\n", "{# note #}\n\n", "  {% if x %}\n  a\n  {% endif %}\n", "", "\n", CHATML, CHATML + "\n",
    ],
)  # fmt: skip
def test_the_trained_template_adds_the_tag_and_nothing_else(template: str) -> None:
    values: dict[str, Any] = {"x": "X", "messages": messages(CONTRACT, QUESTION)}
    trained = trained_template(template, CONTRACT)
    for generating in (True, False):
        before = render(template, add_generation_prompt=generating, **values)
        after = render(trained, add_generation_prompt=generating, **values)
        assert after == before + (S if generating else "")
    assert trained_template(trained, CONTRACT) == trained
    assert trained_template(trained + "\n", CONTRACT) == trained


@pytest.mark.parametrize(
    "tag", ["it's", 'say "x"', "{{ x }}", "{% if %}", "back\\slash\\n", "}}{#", "标签", "é<😀>", "a'}}b", "\\'"]
)
def test_tags_are_quoted_safely(tag: str) -> None:
    contract = ContractConfig(reasoning_start=tag)
    trained = trained_template("p", contract)
    assert render(trained, add_generation_prompt=True) == "p" + tag
    assert trained_template(trained, contract) == trained


def test_a_block_that_already_ends_with_the_tag_is_left_alone() -> None:
    block = CHATML + "{% if add_generation_prompt %}{{ '" + S + "' }}{% endif %}"
    assert trained_template(block, CONTRACT) == block


def test_prompt_ends_with_the_tag() -> None:
    tokenizer = make_tokenizer()
    text = render_prompt(tokenizer, CONTRACT, QUESTION)
    assert text == (
        f"<|im_start|>system\n{CONTRACT.system_message()}<|im_end|>\n<|im_start|>user\n{QUESTION}<|im_end|>\n"
        f"<|im_start|>assistant\n{S}"
    )
    assert tokenizer.decode(encode_prompt(tokenizer, CONTRACT, QUESTION)) == text


def test_completion_text() -> None:
    assert completion_text(CONTRACT, "3 + 5 = 8", "8") == f"\n3 + 5 = 8\n{E}\n{A}8{Z}"


def test_an_example_is_prompt_ids_then_supervised_completion() -> None:
    tokenizer = make_tokenizer()
    ids, mask = encode_example(tokenizer, CONTRACT, QUESTION, "3 + 5 = 8", "8")
    prompt = encode_prompt(tokenizer, CONTRACT, QUESTION)
    assert len(ids) == len(mask)
    assert ids[: len(prompt)] == prompt
    assert mask == [0] * len(prompt) + [1] * (len(ids) - len(prompt))
    assert ids[-1] == turn_end_id(tokenizer) == tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert tokenizer.decode(ids[len(prompt) : -1]) == completion_text(CONTRACT, "3 + 5 = 8", "8")


def test_missing_template_and_eos_are_named() -> None:
    with pytest.raises(ModelError, match="no chat template"):
        render_prompt(make_tokenizer(template=None), CONTRACT, QUESTION)
    with pytest.raises(ModelError, match="no end-of-sequence token"):
        turn_end_id(make_tokenizer(eos_token=None))
    refusing = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    with pytest.raises(ModelError, match="System role not supported"):
        render_prompt(make_tokenizer(template=refusing), CONTRACT, QUESTION)


def test_a_sound_tokenizer_passes_all_checks() -> None:
    tokenizer = make_tokenizer()
    findings = check_tags(tokenizer, CONTRACT) + check_template(tokenizer, CONTRACT, QUESTION)
    assert {finding.name: finding.status for finding in findings} == {
        "tag.reasoning_start": "ok", "tag.reasoning_end": "ok", "tag.answer_start": "ok", "tag.answer_end": "ok",
        "tag.completion": "ok", "template.renders": "ok", "template.generation_prompt": "ok", "template.question": "ok",
        "template.bos": "ok", "template.same_ids": "ok", "template.prefix": "ok", "template.eos": "ok", "template.supervised": "ok",
    }  # fmt: skip


def test_tags_registered_as_special_tokens_are_named_as_the_cause() -> None:
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": [E, A]})
    findings = by_name(check_tags(tokenizer, CONTRACT))
    assert findings["tag.answer_start"].status == findings["tag.reasoning_end"].status == "fail"
    assert "special token" in findings["tag.answer_start"].evidence
    assert findings["tag.reasoning_start"].status == "ok"
    assert findings["tag.completion"].status == "fail"
    assert by_name(check_template(tokenizer, CONTRACT, QUESTION))["template.supervised"].status == "fail"


def test_added_tokens_that_are_not_special_survive() -> None:
    tokenizer = make_tokenizer()
    tokenizer.add_tokens([tokenizers.AddedToken(tag, special=False) for tag in CONTRACT.tags])
    assert {finding.status for finding in check_tags(tokenizer, CONTRACT)} == {"ok"}


def test_a_vocabulary_without_the_characters_is_named() -> None:
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0, "a": 1, "8": 2}, unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>")
    finding = by_name(check_tags(tokenizer, CONTRACT))["tag.answer_start"]
    assert finding.status == "fail"
    assert "vocabulary lacks" in finding.evidence


def test_template_without_generation_prompt() -> None:
    tokenizer = make_tokenizer(trained=False)
    finding = by_name(check_template(tokenizer, CONTRACT, QUESTION))["template.generation_prompt"]
    assert finding.status == "fail"
    assert "trained template" in finding.fix


def test_missing_template_is_a_finding() -> None:
    findings = check_template(make_tokenizer(template=None), CONTRACT, QUESTION)
    assert [(finding.name, finding.status) for finding in findings] == [("template.renders", "fail")]


def test_double_bos() -> None:
    once = make_tokenizer(template="{{ '<s>' }}" + CHATML, bos="<s>")
    assert by_name(check_template(once, CONTRACT, QUESTION))["template.bos"].status == "ok"
    assert once("x")["input_ids"][0] == once.bos_token_id  # the tokenizer would add one; encode_prompt does not
    twice = make_tokenizer(template="{{ '<s><s>' }}" + CHATML, bos="<s>")
    assert by_name(check_template(twice, CONTRACT, QUESTION))["template.bos"].status == "fail"


def test_bos_that_also_opens_turns_is_no_double_bos() -> None:
    assert (
        by_name(check_template(make_tokenizer(bos_token="<|im_start|>"), CONTRACT, QUESTION))["template.bos"].status
        == "ok"
    )


def test_wrong_eos_is_named() -> None:
    finding = by_name(check_template(make_tokenizer(eos_token="<|endoftext|>"), CONTRACT, QUESTION))["template.eos"]
    assert finding.status == "fail"
    assert "<|im_end|>" in finding.evidence


def test_a_template_that_drops_the_system_message() -> None:
    dropping = CHATML.replace("{{ '<|im_start|>' + message['role']", "{% if message['role'] == 'system' %}{% continue %}{% endif %}{{ '<|im_start|>' + message['role']")  # fmt: skip
    finding = by_name(check_template(make_tokenizer(template=dropping), CONTRACT, QUESTION))["template.question"]
    assert finding.status == "fail"
    assert "never told the tags" in finding.evidence


def test_a_template_that_strips_the_working_is_a_warning() -> None:
    stripping = CHATML.replace("message['content']", f"message['content'].split('{E}')[-1]")
    finding = by_name(check_template(make_tokenizer(template=stripping), CONTRACT, QUESTION))["template.prefix"]
    assert finding.status == "warn"
