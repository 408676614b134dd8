"""Batch and checkpoint arithmetic of GRPO, without torch."""

from __future__ import annotations

from pipeline_config.training import GRPOSettings


def steps_per_window(settings: GRPOSettings) -> int:
    """Optimizer steps made from one batch of rollouts: `num_iterations`, since each window samples for one step."""
    return settings.num_iterations


def aligned_save_steps(settings: GRPOSettings) -> int:
    """`save_steps`, rounded up to whole windows.

    A checkpoint inside a window makes a resume sample the window anew and train on part of it twice.
    """
    window = steps_per_window(settings)
    return -(-settings.save_steps // window) * window
