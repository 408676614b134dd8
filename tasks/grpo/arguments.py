"""Our GRPO settings as TRL's arguments, and the ones that no back end may change."""

from __future__ import annotations

from typing import Any

import torch
from trl import GRPOConfig

from pipeline_config.training import GRPOSettings
from tasks.errors import ConfigError
from tasks.grpo.arithmetic import aligned_save_steps, checkpoints_kept
from tasks.process.context import StageContext
from tasks.sampling.sampler import uses_vllm
from tasks.training.arguments import common_arguments
from tasks.training.unsloth import in_use


def grpo_arguments(ctx: StageContext, settings: GRPOSettings, device: torch.device, weights: list[float]) -> GRPOConfig:
    """Our settings as TRL's; what TRL itself refuses becomes a ConfigError.

    Args:
        settings: the `grpo` section, with the remedies applied.
        weights: of the reward functions.
    """
    config = ctx.config
    vllm = uses_vllm(config, device)
    try:
        arguments = GRPOConfig(
            **common_arguments(ctx, settings, device) | {"save_total_limit": checkpoints_kept(settings)},
            model_init_kwargs={
                "dtype": "float32" if settings.method == "full" or device.type == "cpu" else "bfloat16",
                "trust_remote_code": config.model.trust_remote_code,
            },
            max_steps=settings.max_steps,
            per_device_train_batch_size=settings.per_device_train_batch_size,
            gradient_accumulation_steps=settings.gradient_accumulation_steps,
            num_generations=settings.num_generations,
            num_iterations=settings.num_iterations,
            max_completion_length=settings.max_completion_length,
            temperature=settings.temperature,
            top_p=settings.top_p,
            top_k=settings.top_k,
            min_p=settings.min_p,
            beta=settings.beta,
            loss_type=settings.loss_type,
            scale_rewards=settings.scale_rewards,
            epsilon=settings.epsilon,
            # Unset means epsilon to TRL, and a default of its own to unsloth.
            epsilon_high=settings.epsilon if settings.epsilon_high is None else settings.epsilon_high,
            mask_truncated_completions=settings.mask_truncated_completions,
            reward_weights=weights,
            save_steps=aligned_save_steps(settings),
            remove_unused_columns=False,
            use_vllm=vllm,
            vllm_mode=config.vllm.mode,
            vllm_server_base_url=config.vllm.server_url,
            vllm_gpu_memory_utilization=config.vllm.gpu_memory_utilization,
            vllm_enable_sleep_mode=config.vllm.sleep_mode,
            vllm_max_model_length=config.model.max_context,
            vllm_importance_sampling_correction=True,
            # TRL decodes by its own tokenizer; an engine's text for every new token would only cost CPU time.
            generation_kwargs={"detokenize": False}
            if vllm and config.vllm.mode == "colocate" and not in_use()
            else None,
            **held_out_arguments(settings),
        )
    except (TypeError, ValueError) as error:
        raise ConfigError(f"TRL refuses this configuration: {error}", where="grpo") from error
    # Unsloth switches the scaling off for dr_grpo; the setting decides, not the back end.
    arguments.scale_rewards = settings.scale_rewards
    return arguments


def held_out_arguments(settings: GRPOSettings) -> dict[str, Any]:
    """One completion for every held-out problem, every `eval_steps`; nothing when that is off."""
    if not settings.eval_steps:
        return {}
    return {
        "eval_strategy": "steps",
        "eval_steps": settings.eval_steps,
        "num_generations_eval": 1,
        "per_device_eval_batch_size": min(settings.eval_problems, settings.per_device_train_batch_size),
    }


def wanted_arguments(settings: GRPOSettings) -> dict[str, Any]:
    """Settings that a back end must not change: each alters what is learnt."""
    names = (
        "learning_rate lr_scheduler_type warmup_steps optim weight_decay max_grad_norm max_steps num_generations num_iterations "
        "per_device_train_batch_size gradient_accumulation_steps max_completion_length temperature top_p top_k min_p beta "
        "loss_type scale_rewards epsilon mask_truncated_completions"
    )
    data = settings.model_dump(mode="json")
    wanted = {name: data[name] for name in names.split()}
    return {
        **wanted,
        "epsilon_high": settings.epsilon if settings.epsilon_high is None else settings.epsilon_high,
        "vllm_importance_sampling_correction": True,
    }
