"""Peak memory of a training stage beside what the planner said, for the manifest."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any, Literal

import torch
from transformers.utils import is_liger_kernel_available

from pipeline_config.pipeline import PipelineConfig
from tasks.preflight.memory import LIBRARIES, Scene, memory_plan
from tasks.preflight.shape import read_config, shape_of


def start_measuring(device: torch.device) -> None:
    """Forget earlier peaks."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()


def memory_record(
    stage: Literal["sft", "grpo"],
    config: PipelineConfig,
    model: Path,
    device: torch.device,
    *,
    longest_prompt: int = 0,
    longest_example: int = 0,
    vllm: bool = False,
    unsloth: bool = False,
) -> dict[str, Any]:
    """What was predicted for this process and what it took at most, in bytes.

    Args:
        model: folder with the config.json of the model that is trained.
        longest_prompt, longest_example: of the stage's own data, in tokens.

    Returns:
        predicted: the planner's total. On a GPU also `allocated` and `reserved` (peaks of torch's allocator) and
        `relative_error` of the prediction without the libraries, which do not come from that allocator, against
        `allocated`. On the CPU `resident`, the peak of the whole process, which is not compared: it holds imports and the files that were
        read, too.
    """
    trusted = config.model.trust_remote_code
    gpu_bytes = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0
    scene = Scene(longest_prompt, longest_example, gpu_bytes, vllm, unsloth, is_liger_kernel_available())
    parts = memory_plan(config, shape_of(read_config(model, trusted), trusted), scene)["stages"][stage]
    record = {"predicted": parts["total"], "parts": {name: size for name, size in parts.items() if name != "total"}}
    if device.type != "cuda":
        return {**record, "resident": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    allocated = torch.cuda.max_memory_allocated()
    return {
        **record,
        "allocated": allocated,
        "reserved": torch.cuda.max_memory_reserved(),
        "relative_error": relative_error(parts["total"] - LIBRARIES, allocated),
    }


def relative_error(predicted: int, measured: int) -> float | None:
    """(predicted - measured) / measured; positive when more was predicted than taken. None without a measurement."""
    return (predicted - measured) / measured if measured else None
