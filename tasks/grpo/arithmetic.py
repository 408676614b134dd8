"""Batch and checkpoint arithmetic of GRPO, without torch."""

from __future__ import annotations

from typing import Any

from pipeline_config.training import GRPOSettings

LOGITS_CHUNK = 2048
"""Tokens whose logits are held at once: enough to fill a GPU with one matrix product, 1.2 GB in float32 at 150,000 entries."""
PLAIN_HEADS = frozenset(("llama", "mistral", "olmo2", "olmo3", "phi3", "qwen2", "qwen3", "smollm3"))
"""Model types whose logits are the LM head of the last hidden states and nothing else: no soft cap, scale, bias or router loss
(read in their `forward`, transformers 5.17)."""


def steps_per_window(settings: GRPOSettings) -> int:
    """Optimizer steps made from one batch of rollouts: `num_iterations`, since each window samples for one step."""
    return settings.num_iterations


def aligned_save_steps(settings: GRPOSettings) -> int:
    """`save_steps`, rounded up to whole windows.

    A checkpoint inside a window makes a resume sample the window anew and train on part of it twice.
    """
    window = steps_per_window(settings)
    return -(-settings.save_steps // window) * window


def candidate_steps(settings: GRPOSettings, last_step: int) -> list[int]:
    """Steps of the checkpoints, before the last step, among which the one to keep is chosen; the newest of them.

    Only regular ones: a checkpoint written when a run was stopped must not make its result depend on when that was.
    """
    every = aligned_save_steps(settings)
    regular = range(every, last_step, every)
    return list(regular[-(settings.checkpoint_choice.candidates - 1) :])


def checkpoints_kept(settings: GRPOSettings) -> int:
    """Checkpoints that must stay while training runs: those to choose from, and one more for a stop in between."""
    choice = settings.checkpoint_choice
    return max(settings.save_total_limit, choice.candidates + 1 if choice.enabled else 0)


def plain_head(config: Any) -> bool:
    """Whether logits can be computed outside the model and rows moved within a batch, from its transformers configuration.

    No for code from a hub, and for rotary embeddings that choose their factors by the longest row of a batch.
    """
    rope = str(getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None))
    by_length = "longrope" in rope or "dynamic" in rope
    return config.model_type in PLAIN_HEADS and not by_length and not getattr(config, "auto_map", None)
