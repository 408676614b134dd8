"""Our settings in the words of TRL's argument classes, and what the trainer made of them."""

from __future__ import annotations

from typing import Any

import torch
from peft import LoraConfig

from pipeline_config.training import Optimization
from tasks.errors import ConfigError
from tasks.process.context import StageContext
from tasks.training.world import strategy_arguments


def common_arguments(ctx: StageContext, settings: Optimization, device: torch.device) -> dict[str, Any]:
    """What SFT and GRPO pass alike to `transformers.TrainingArguments`."""
    learning_rate: float = getattr(settings, "learning_rate")  # noqa: B009 - each subclass has its own default
    return {
        "output_dir": str(ctx.checkpoints),
        "learning_rate": learning_rate,
        "lr_scheduler_type": settings.lr_scheduler_type,
        "warmup_steps": settings.warmup_steps,
        "optim": settings.optim,
        "weight_decay": settings.weight_decay,
        "max_grad_norm": settings.max_grad_norm,
        "gradient_checkpointing": settings.gradient_checkpointing,
        "logging_steps": settings.logging_steps,
        "logging_first_step": True,
        "logging_nan_inf_filter": False,
        "save_strategy": "steps",
        "save_total_limit": settings.save_total_limit,
        "seed": ctx.seed,
        "data_seed": ctx.seed,
        "use_cpu": device.type == "cpu",
        "bf16": device.type == "cuda" and torch.cuda.is_bf16_supported(),
        "dataloader_pin_memory": device.type == "cuda",
        "report_to": list(ctx.config.run.report_to),
        "disable_tqdm": True,
        **strategy_arguments(ctx.config.parallel),
    }


def peft_config(settings: Optimization) -> LoraConfig | None:
    """The adapter to train, or None for full fine-tuning."""
    if settings.method == "full":
        return None
    lora = settings.lora
    return LoraConfig(
        task_type="CAUSAL_LM",
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=list(lora.target_modules),
    )


def effective_config(asked: dict[str, Any], used: dict[str, Any]) -> dict[str, Any]:
    """What the trainer really runs with, and every value that it changed after construction."""
    changed = {
        key: {"asked": asked[key], "used": used[key]}
        for key in sorted(used)
        if key in asked and asked[key] != used[key]
    }
    plain = {key: value for key, value in sorted(used.items()) if isinstance(value, str | int | float | bool | None)}
    # Paths and hub tokens say nothing about the result.
    for key in ("output_dir", "logging_dir", "hub_token", "run_name", "push_to_hub_token"):
        plain.pop(key, None)
        changed.pop(key, None)
    return {"arguments": plain, "changed_by_the_trainer": changed}


def refuse_overrides(wanted: dict[str, Any], used: dict[str, Any], backend: str, section: str = "grpo") -> None:
    """Compare what was asked with what the constructed trainer holds; a difference in what is learnt is an error.

    Raises:
        ConfigError: naming every setting that the back end changed.
    """
    changed = []
    for name, value in wanted.items():
        held = used.get(name, value)
        if name == "top_k" and held == -1:
            held = 0  # vLLM's way to say that it is off
        if isinstance(value, float | int) and isinstance(held, float | int):
            same = abs(float(value) - float(held)) <= 1e-12 * max(1.0, abs(float(value)))
        else:
            same = str(value) == str(getattr(held, "value", held))
        if not same:
            changed.append(f"{name}: asked {value!r}, trains with {held!r}")
    if changed:
        raise ConfigError(
            f"the back end {backend} changed settings that decide what is learnt: {'; '.join(changed)}",
            where=section,
            fix="ask for the values it insists on, or set run.backend=trl",
            cause="backend_overrides",
        )
