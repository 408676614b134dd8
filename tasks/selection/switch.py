"""Whether pass rates are measured at all, and how many prompts must be left. No torch: the flow asks too."""

from __future__ import annotations

from importlib.util import find_spec

from pipeline_config.pipeline import PipelineConfig
from tasks.process.gpu import visible_gpus


def measures_pass_rates(config: PipelineConfig) -> bool:
    """`pass_rates.enabled`; `auto` is on where completions are sampled by vLLM.

    There a few samples of 2,048 prompts take well under a minute of decoding. On a CPU a sampled completion costs about as much as training on it
    does, so measuring 4 samples of each prompt would take half the time of training on all of them in groups of 8.
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
