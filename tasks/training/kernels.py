"""Fused GPU kernels for a policy's layers, from liger-kernel (Hsu et al., arXiv 2410.10989).

RMSNorm, rotary embedding and SwiGLU become one kernel each, forward and backward, where transformers launches four to ten and keeps what lies
between them. The results are the same but for rounding.

liger-kernel changes the model's module for the whole process, so that models built afterwards have its layers, too.
"""

from __future__ import annotations

import logging
from typing import Any

from transformers import PreTrainedModel
from transformers.integrations.liger import apply_liger_kernel
from transformers.utils import is_liger_kernel_available

from tasks.grpo.arithmetic import plain_head

KERNELS = {
    "rope": True, "rms_norm": True, "swiglu": True, "cross_entropy": False, "fused_linear_cross_entropy": False,
}  # fmt: skip
"""Losses are TRL's and ours: their heads and forwards stay."""


def fuse(model: Any, device: Any) -> bool:
    """Give the layers of a transformers or PEFT model their fused kernels, in place.

    Only on an NVIDIA or AMD GPU with liger-kernel installed, for the Llama-like models of `PLAIN_HEADS` with SiLU.

    Returns:
        Whether it was done.
    """
    config = model.config
    policy = model.get_base_model() if hasattr(model, "get_base_model") else model
    if not isinstance(policy, PreTrainedModel):
        return False  # a wrapper of DeepSpeed's or FSDP's: liger-kernel would do nothing
    if device.type != "cuda" or not is_liger_kernel_available():
        return False
    if not plain_head(config) or config.hidden_act not in ("silu", "swish"):
        return False
    # It warns of every alternative implementation that is not installed.
    logging.getLogger("liger_kernel").setLevel(logging.ERROR)
    apply_liger_kernel(model, KERNELS)
    return True
