"""Whether pass rates are measured at all, and how many prompts must be left. No torch: the flow asks too."""

from __future__ import annotations

from importlib.util import find_spec

from pipeline_config.pipeline import PipelineConfig
from tasks.process.gpu import visible_gpus


def measures_pass_rates(config: PipelineConfig) -> bool:
    """`pass_rates.enabled`; `auto` is on where completions are sampled by vLLM.

    There hundreds of completions are sampled at once. On a CPU every sampled token costs time that the training itself could use, so there it is
    the user's choice.
    """
    if config.pass_rates.enabled != "auto":
        return config.pass_rates.enabled == "on"
    return (
        config.run.device != "cpu"
        and config.vllm.enabled != "off"
        and bool(visible_gpus())
        and find_spec("vllm") is not None
    )


def least_kept(config: PipelineConfig) -> int:
    """Fewest prompts to keep: `pass_rates.min_kept`, and never less than one optimizer step reads (the trainer drops an incomplete batch)."""
    grpo = config.grpo
    completions = grpo.per_device_train_batch_size * grpo.gradient_accumulation_steps * config.parallel.processes
    return max(config.pass_rates.min_kept, completions // grpo.num_generations)
