"""Our prompt ids are the ones that the installed TRL computes: its own method is run on a real tokenizer."""

from __future__ import annotations

import types

import pytest

from pipeline_config.contract import ContractConfig
from tasks.contract.prompts import completion_text, encode_prompt, messages, trained_template

pytest.importorskip("torch")
grpo = pytest.importorskip("trl.trainer.grpo_trainer")
tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")

CONTRACT = ContractConfig()
TEMPLATES = {
    "chatml": (
        "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}\n"
    ),
    "with bos": (
        "{{ bos_token }}{% for message in messages %}[{{ message.role }}] {{ message.content }}{{ eos_token }}{% endfor %}"
    ),
}


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("adds_bos", [False, True])
def test_encode_prompt_gives_trls_ids(name: str, adds_bos: bool) -> None:
    questions = ["Tom has 3 apples and buys 5 more. How many?", "  1,234 × 2 = ? 苹果\n", "x"]
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<s>", "<|im_start|>", "<|im_end|>"],
    )
    bpe.train_from_iterator([CONTRACT.system_message(), completion_text(CONTRACT, "3 + 5 = 8", "8")] * 4, trainer)
    if adds_bos:
        bpe.post_processor = tokenizers.processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", bpe.token_to_id("<s>"))]
        )
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<s>", eos_token="<|im_end|>")
    tokenizer.chat_template = trained_template(TEMPLATES[name], CONTRACT)
    trainer_like = types.SimpleNamespace(
        processing_class=tokenizer,
        _is_vlm=False,
        environment_factories=None,
        tools=None,
        chat_template=None,
        chat_template_kwargs={},
    )
    prompts = [messages(CONTRACT, question) for question in questions]
    theirs, _, _ = grpo.GRPOTrainer._tokenize_prompts(trainer_like, prompts)
    ours = [encode_prompt(tokenizer, CONTRACT, question) for question in questions]
    assert [list(ids) for ids in theirs] == ours
    assert all(ids[-1] != tokenizer.eos_token_id for ids in ours)
