"""What vLLM gets of a policy with a LoRA adapter: base weights with the adapter added, computed beside the policy and not in it.

TRL merges the adapter into the base weights, reads them and subtracts it again. In 16 bits the subtraction does not give back what was
there, a little more with every push (tests/tasks/grpo/test_weight_sync.py shows it). A resumed run, the reference policy and the exported
model would then stand on other base weights than the trained policy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer


def leave_base_alone(generation: Any, model: Any) -> None:
    """Let TRL's `VLLMGeneration` read the policy's merged weights without merging.

    Full weights need nothing, and an adapter's base is never sharded here.
    """
    if isinstance(model, PeftModel):
        generation._iter_named_params = lambda: merged_weights(generation, model)


def merged_weights(generation: Any, model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Names as vLLM has them, and weights of the base model's type; one more weight in 32 bits at a time."""
    layers = {id(module.get_base_layer().weight): module for module in model.modules() if isinstance(module, LoraLayer)}
    for name, parameter in model.named_parameters():
        name = name.removeprefix("base_model.model.").replace(".base_layer", "")
        if model.prefix in name or "original_module" in name:
            continue
        name = generation._fix_param_name_to_vllm(name, extra_prefixes=["modules_to_save.default."])
        layer = layers.get(id(parameter))
        yield name, parameter.data if layer is None else _merged(layer, parameter.data)


@torch.no_grad()
def _merged(layer: Any, weight: torch.Tensor) -> torch.Tensor:
    """Shape and type of `weight`."""
    if layer.disable_adapters or layer.merged:
        return weight
    total = weight.float()
    for adapter in layer.active_adapters:
        if adapter in layer.lora_A:
            total = total + layer.get_delta_weight(adapter).float()
    return total.to(weight.dtype)
