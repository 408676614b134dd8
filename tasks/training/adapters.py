"""LoRA layers under autocast, without a 32-bit copy of every input."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer


def keep_input_dtype(model: torch.nn.Module) -> int:
    """Let adapters take their input as it is wherever autocast is on.

    PEFT casts the input of an adapted layer to the adapter's float32, and autocast casts it back to 16 bits for the product with A. A number of
    16 bits comes back unchanged, so without adapter dropout outputs and gradients are the same; what goes is two copies of the input of
    every adapted layer in the forward pass, one of them kept for the backward pass. Where autocast is off (sampling, merging), PEFT casts.

    Returns:
        The number of adapted layers.
    """
    layers: list[Any] = [layer for layer in model.modules() if isinstance(layer, BaseTunerLayer)]
    for layer in layers:
        layer._cast_input_dtype = partial(_unless_autocast, layer._cast_input_dtype)
    return len(layers)


def _unless_autocast(cast: Callable[..., Any], x: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    if x is not None and torch.is_autocast_enabled(x.device.type):
        return x
    found: torch.Tensor | None = cast(x, dtype)
    return found
