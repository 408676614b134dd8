"""How unsloth's engine is asked for: enough sequences for a whole batch of rollouts, and none for SFT."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import AddedToken

from pipeline_config.loading import load_config
from tasks.errors import ConfigError
from tasks.training.unsloth import give_pad_a_token_of_its_own, load_with_adapter, sequences_at_once


def tokenizer(pad: str, *special: str, template: str = "") -> Any:
    tokens = {number: AddedToken(text, special=True) for number, text in enumerate(("<bos>", "<eos>", *special))}
    tokens[99] = AddedToken("<tool>", special=False)
    return SimpleNamespace(
        pad_token=pad, eos_token="<eos>", bos_token="<bos>", added_tokens_decoder=tokens, chat_template=template
    )


@pytest.mark.parametrize(
    ("pad", "special", "template", "chosen"),
    [
        ("<pad>", ("<pad>",), "", "<pad>"),
        ("<eos>", ("<|endoftext|>", "<|finetune_right_pad_id|>"), "", "<|finetune_right_pad_id|>"),
        ("<eos>", ("<file>", "<|endoftext|>"), "", "<|endoftext|>"),
        ("<bos>", ("<|im_start|>", "<file>"), "{{ '<|im_start|>' }}", "<file>"),
    ],
)
def test_padding_does_not_share_its_token_with_the_end_of_answers(
    pad: str, special: tuple[str, ...], template: str, chosen: str
) -> None:
    made = tokenizer(pad, *special, template=template)
    give_pad_a_token_of_its_own(made)
    assert made.pad_token == chosen


def test_a_tokenizer_without_another_special_token_is_refused() -> None:
    with pytest.raises(ConfigError, match="pads with '<eos>', which also ends answers"):
        give_pad_a_token_of_its_own(tokenizer("<eos>", "<|im_start|>", template="<|im_start|>"))


def test_a_whole_batch_is_decoded_at_once() -> None:
    # 256 is what unsloth takes for "choose yourself"; above 512 vLLM has no CUDA graphs.
    assert [sequences_at_once(n) for n in (8, 255, 256, 512, 2048)] == [8, 255, 257, 512, 512]


@pytest.mark.parametrize(("rollouts", "engine"), [(64, {"fast_inference": True, "max_num_seqs": 64}), (0, {})])
def test_only_rollouts_need_an_engine(monkeypatch: pytest.MonkeyPatch, rollouts: int, engine: dict[str, Any]) -> None:
    asked: dict[str, Any] = {}

    def from_pretrained(**arguments: Any) -> tuple[str, None]:
        asked.update(arguments)
        return "model", None

    fake = SimpleNamespace(from_pretrained=from_pretrained, get_peft_model=lambda model, **_: f"{model} with adapter")
    monkeypatch.setitem(sys.modules, "unsloth", SimpleNamespace(FastLanguageModel=fake))
    config = load_config("tiny", overrides=["grpo.method=lora"])
    assert load_with_adapter(Path("folder"), config, config.grpo, 0, rollouts) == "model with adapter"
    wanted = {"fast_inference": False, **engine}
    assert {key: asked[key] for key in ("fast_inference", "max_num_seqs") if key in asked} == wanted
