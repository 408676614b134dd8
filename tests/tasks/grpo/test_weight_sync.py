"""What vLLM gets of a LoRA policy, against TRL's own way, with PEFT's real layers."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from peft import LoraConfig, get_peft_model  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402
from trl.generation.vllm_generation import VLLMGeneration  # noqa: E402

from tasks.grpo.weight_sync import leave_base_alone  # noqa: E402


def policy() -> Any:
    """16-bit base weights under a 32-bit adapter with small updates, as after some steps."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2
    )  # fmt: skip
    model = get_peft_model(
        LlamaForCausalLM(config).to(torch.bfloat16),
        LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"]),
    )
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.float()
        if "lora_B" in name:
            parameter.data.normal_(std=1e-3)
    return model


def generation_of(model: Any) -> Any:
    generation = object.__new__(VLLMGeneration)
    generation.model = model
    generation._dist = SimpleNamespace(is_fsdp=False, gather_params=lambda parameters: nullcontext())
    return generation


def base_weights(model: Any) -> dict[str, Any]:
    return {name: p.detach().clone() for name, p in model.named_parameters() if "lora_" not in name}


def test_the_engine_gets_the_merged_weights_and_the_policy_stays_as_it_was() -> None:
    model = policy()
    before = base_weights(model)
    generation = generation_of(model)
    stock = {name: weight.clone() for name, weight in generation._iter_named_params()}
    trl_left = base_weights(model)
    # The reason for all this: what TRL leaves behind is not what was there.
    assert any(not torch.equal(trl_left[name], before[name]) for name in before)

    model = policy()
    generation = generation_of(model)
    leave_base_alone(generation, generation.model)
    for _ in range(3):
        ours = dict(generation._iter_named_params())
    assert list(ours) == list(stock)
    # Both round the same sum to 16 bits once.
    assert all(torch.allclose(ours[name].float(), stock[name].float(), rtol=2**-7, atol=1e-6) for name in stock)
    exact = model.get_submodule("base_model.model.model.layers.1.mlp.down_proj")
    expected = (exact.base_layer.weight.float() + exact.get_delta_weight("default")).to(torch.bfloat16)
    assert torch.equal(ours["model.layers.1.mlp.down_proj.weight"], expected)
    assert all(torch.equal(base_weights(model)[name], before[name]) for name in before)
    assert not any(module.merged for module in model.modules() if hasattr(module, "merged_adapters"))


def test_full_weights_are_left_to_trl() -> None:
    generation = generation_of(policy().get_base_model())
    leave_base_alone(generation, generation.model)
    assert "_iter_named_params" not in vars(generation)
