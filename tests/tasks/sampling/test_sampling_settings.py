"""Sampling through transformers is by our settings alone, whatever the model's authors suggest for theirs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

from pipeline_config.loading import load_config  # noqa: E402
from tasks.sampling.sampler import Sampler, SamplingSettings  # noqa: E402


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_a_model_folder_suggests_changes_no_completion(temperature: float) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=16, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    tokenizer: Any = SimpleNamespace(
        pad_token_id=0, eos_token_id=1, decode=lambda ids, **_: " ".join(map(str, ids)), padding_side="left"
    )
    sampler = Sampler.around(model, tokenizer, load_config("tiny"))
    settings = SamplingSettings(temperature, 12, n=2)
    before = sampler.sample([[3, 4, 5]], settings)
    suggested = {
        "repetition_penalty": 5.0,
        "no_repeat_ngram_size": 2,
        "typical_p": 0.2,
        "eta_cutoff": 0.5,
        "epsilon_cutoff": 0.5,
    }
    suggested |= {"top_k": 1, "top_p": 0.1, "temperature": 0.1, "do_sample": True}
    for name, value in suggested.items():
        setattr(model.generation_config, name, value)
    assert sampler.sample([[3, 4, 5]], settings) == before
    assert len({token for each in before[0] for token in each.ids}) < 12  # there is something to penalize
