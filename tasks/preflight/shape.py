"""The shape of a model from its config.json, without reading a weight. Needs transformers and torch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tasks.grpo.arithmetic import plain_head
from tasks.preflight.memory import ModelShape


def read_config(folder: Path, trust_remote_code: bool) -> Any:
    """The transformers configuration in a model folder."""
    return AutoConfig.from_pretrained(str(folder), trust_remote_code=trust_remote_code)


def empty_model(config: Any, trust_remote_code: bool) -> torch.nn.Module:
    """The model without memory for its weights (torch's meta device)."""
    with torch.device("meta"):
        model: torch.nn.Module = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    return model


def shape_of(config: Any, trust_remote_code: bool) -> ModelShape:
    """Sizes of the model that a configuration describes; weights that are tied count once."""
    model = empty_model(config, trust_remote_code)
    linear: Counter[str] = Counter()
    weights = 0
    for name, module in model.named_modules():
        short = name.rpartition(".")[2]
        if isinstance(module, torch.nn.Linear) and short != "lm_head":
            linear[short] += module.in_features + module.out_features
            weights += module.in_features * module.out_features
    text = config.get_text_config()
    heads = text.num_attention_heads
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // heads
    return ModelShape(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        intermediate=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
        vocab=text.vocab_size,
        kv_width=(getattr(text, "num_key_value_heads", None) or heads) * head_dim,
        linear=dict(linear),
        linear_parameters=weights,
        plain_head=plain_head(config),
        q_width=heads * head_dim,
        head_norms=any(name.endswith("q_norm") for name, _ in model.named_modules()),
    )
