"""Adapters under autocast: the same numbers with fewer bytes kept."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("peft")


def adapted() -> Any:
    """A random llama in bfloat16 under a LoRA adapter of rank 4 in float32 whose B is not 0."""
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 96, "num_hidden_layers": 2}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)).to(torch.bfloat16)
    names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    policy = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=names))
    for name, weight in policy.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.1)
    return policy


def step(policy: Any, checkpointing: bool = False) -> tuple[Any, dict[str, Any], int]:
    """Logits, gradients of the adapter, and bytes kept for the backward pass."""
    if checkpointing:
        policy.gradient_checkpointing_enable({"use_reentrant": False})
    kept: dict[int, int] = {}

    def keep(tensor: Any) -> Any:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    ids = torch.arange(48).reshape(2, 24)
    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16),
    ):
        logits = policy(input_ids=ids).logits
    logits.float().square().mean().backward()
    gradients = {name: weight.grad.clone() for name, weight in policy.named_parameters() if weight.grad is not None}
    return logits.detach(), gradients, sum(kept.values())


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_same_numbers_with_fewer_bytes_kept(checkpointing: bool) -> None:
    from tasks.training.adapters import keep_input_dtype

    logits, gradients, bytes_before = step(adapted(), checkpointing)
    policy = adapted()
    assert keep_input_dtype(policy) == 2 * 7
    mine, same, bytes_after = step(policy, checkpointing)
    assert torch.equal(mine, logits)
    assert len(same) == 2 * 7 * 2 and all(torch.equal(same[name], gradients[name]) for name in gradients)
    assert any(gradient.any() for gradient in gradients.values())
    # In each of 2 blocks, 48 tokens of width 32 in 16 bits, once each: q, k and v share one input, gate and up another, and
    # that of o is what attention keeps anyway.
    assert checkpointing or bytes_before - bytes_after == 2 * 48 * 2 * (2 + 1 + 1) * 32


def test_without_autocast_peft_still_casts() -> None:
    from tasks.training.adapters import keep_input_dtype

    policy = adapted()
    keep_input_dtype(policy)
    logits = policy(input_ids=torch.arange(8)[None]).logits
    assert logits.dtype == torch.bfloat16 and torch.isfinite(logits).all()
