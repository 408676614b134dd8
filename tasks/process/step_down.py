"""What a training stage that ran out of GPU memory tries next: less memory, the same optimization. No torch here.

The steps, each in a new process that resumes from the newest complete checkpoint:

    vllm_share    three quarters of `vllm.gpu_memory_utilization`, not below 0.15 (GRPO with vLLM beside the trainer)
    micro_batch   half of `per_device_train_batch_size`, twice the `gradient_accumulation_steps`

Both leave rows per optimizer step, groups and the loss as they are: TRL divides by what the whole window holds (dapo, cispo,
vespo), by sequences (grpo, sapo, luspo) or by a constant (dr_grpo). `bnpo` divides by the tokens of a micro-batch, so
there the second step is not taken. `memory_steps.json` in the work directory holds the steps, the manifest's
`effective_config.memory_steps` and its notes tell of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipeline_config.pipeline import PipelineConfig
from tasks.errors import OutOfMemory
from tasks.process.gpu import visible_gpus
from tasks.process.jsonio import read_json, write_json

STEPS_FILE = "memory_steps.json"
LEAST_SHARE = 0.15
MOST_SHARES = 2
"""vLLM gives way twice at most: it then has a little more than half of what was asked for."""
ENGINE_IS_SHORT = "cache blocks"
"""Of vLLM's message when its share cannot hold weights and one sequence: less of it would not help."""


@dataclass(frozen=True)
class MemoryStep:
    """One step. `changes`: setting, dotted -> (before, after); `because`: what ran out."""

    rung: str
    changes: dict[str, tuple[float, float]]
    because: str

    def sentence(self) -> str:
        """For the log and the report."""
        return ", ".join(f"{name} {before:g} -> {after:g}" for name, (before, after) in self.changes.items())


def load_steps(work: Path) -> list[MemoryStep]:
    """Steps taken so far in a work directory. A damaged file has none: they are then taken once more."""
    data: Any = read_json(work / STEPS_FILE)
    try:
        return [
            MemoryStep(step["rung"], {name: (a, b) for name, (a, b) in step["changes"].items()}, step["because"])
            for step in data["steps"]
        ]
    except (TypeError, KeyError, ValueError, AttributeError):
        return []


def stepped_down(config: PipelineConfig, steps: Sequence[MemoryStep]) -> PipelineConfig:
    """The configuration with every step applied, in order."""
    data: dict[str, Any] = config.model_dump(mode="json")
    for step in steps:
        for name, (_, after) in step.changes.items():
            section, _, key = name.partition(".")
            data[section][key] = int(after) if section in ("sft", "grpo") else after
    return PipelineConfig.model_validate(data)


def take(work: Path, stage: str, config: PipelineConfig, error: OutOfMemory) -> MemoryStep | None:
    """Choose the next step, write it down and return it; None when nothing is left to try."""
    steps = load_steps(work)
    step = next_step(stage, config, steps, error, samples_with_vllm(config))
    if step is not None:
        write_json(work / STEPS_FILE, {"steps": [asdict(taken) for taken in (*steps, step)]})
    return step


def samples_with_vllm(config: PipelineConfig) -> bool:
    """Whether a GRPO stage has vLLM beside it; as `tasks.sampling.sampler.uses_vllm`, without torch."""
    on_gpu = config.run.device != "cpu" and bool(visible_gpus()) and find_spec("vllm") is not None
    return on_gpu and config.vllm.enabled != "off" and config.vllm.mode == "colocate"


def next_step(
    stage: str, config: PipelineConfig, steps: Sequence[MemoryStep], error: OutOfMemory, vllm: bool
) -> MemoryStep | None:
    """The next step for `sft` or `grpo`; None for other stages, and when none can help.

    Args:
        config: as asked for.
        steps: taken so far.
        error: what the last process ended with.
        vllm: rollouts come from an engine on the same GPU.
    """
    if stage not in ("sft", "grpo"):
        return None
    now = stepped_down(config, steps)
    because = error.message.splitlines()[0][:300]
    shares = sum(step.rung == "vllm_share" for step in steps)
    engine_is_short = ENGINE_IS_SHORT in error.message.lower()
    if stage == "grpo" and vllm and not engine_is_short and shares < MOST_SHARES:
        share = now.vllm.gpu_memory_utilization
        less = max(LEAST_SHARE, round(0.75 * share, 4))
        if less < share:
            return MemoryStep("vllm_share", {"vllm.gpu_memory_utilization": (share, less)}, because)
    if engine_is_short and not shares:
        return None
    changes = _half_batch(stage, now)
    if changes and engine_is_short:
        # It was asked for too little: back to the share before, and the trainer gives way instead.
        before, after = next(step for step in reversed(steps) if step.rung == "vllm_share").changes[
            "vllm.gpu_memory_utilization"
        ]
        changes = {"vllm.gpu_memory_utilization": (after, before), **changes}
    return MemoryStep("micro_batch", changes, because) if changes else None


def _half_batch(stage: str, now: PipelineConfig) -> dict[str, tuple[float, float]]:
    """Half the rows per forward pass and twice the passes; nothing where that cannot be, or would change the loss."""
    settings = now.sft if stage == "sft" else now.grpo
    batch, passes = settings.per_device_train_batch_size, settings.gradient_accumulation_steps
    if batch % 2 or (stage == "grpo" and now.grpo.loss_type == "bnpo"):
        return {}
    return {
        f"{stage}.per_device_train_batch_size": (batch, batch // 2),
        f"{stage}.gradient_accumulation_steps": (passes, 2 * passes),
    }
