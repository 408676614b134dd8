"""Training on several GPUs of one machine (or several CPU processes)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipeline_config.base import Section


class ParallelConfig(Section):
    """How many processes train, and how they share the model. Batch sizes are per process, as in TRL."""

    processes: int = Field(1, ge=1, le=64)
    """Processes of the SFT and the GRPO stage, one GPU each; on the CPU they share the cores. One optimizer step takes
    per_device_train_batch_size x gradient_accumulation_steps x processes rows or completions."""
    strategy: Literal["ddp", "fsdp", "deepspeed"] = "ddp"
    """`ddp`: every process holds the whole model. `fsdp`: weights, gradients and optimizer states are sharded (FSDP2, `method: full`).
    `deepspeed`: gradients and optimizer states are sharded (ZeRO-2; needs the package deepspeed). The last two need GPUs."""
