"""GRPO with TRL's `GRPOTrainer` from the merged SFT model, which is also the reference policy.

Runs in the stage process. Output: `model/` (merged, 16-bit), `adapter/` when LoRA, metrics.jsonl, rollouts.jsonl.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from datasets import Dataset
from transformers import PrinterCallback
from trl import GRPOConfig, GRPOTrainer

from pipeline_config.pipeline import PipelineConfig
from pipeline_config.training import GRPOSettings
from tasks.contract.prompts import encode_prompt, messages
from tasks.errors import ConfigError, ModelError
from tasks.grpo.arithmetic import aligned_save_steps, steps_per_window
from tasks.grpo.guards import InitialKL, Watchdog
from tasks.grpo.rollouts import logging_rollouts
from tasks.process.context import StageContext, StageResult
from tasks.rewards.build import build_rewards
from tasks.sampling.sampler import uses_vllm
from tasks.training.arguments import common_arguments, effective_config, peft_config, refuse_overrides
from tasks.training.callback import StageCallback, raise_if_stopped, resume_point
from tasks.training.loading import device_of, load_tokenizer
from tasks.training.saving import save_merged, storage_dtype
from tasks.training.unsloth import in_use, load_with_adapter


def prompts_of(rows: list[dict[str, Any]], config: PipelineConfig) -> Dataset:
    """Rows for the trainer: conversational `prompt`, gold `answer`, `id`."""
    return Dataset.from_list(
        [
            {"prompt": messages(config.contract, row["question"]), "answer": row["answer"], "id": row["id"]}
            for row in rows
        ]
    )


def grpo_arguments(ctx: StageContext, device: torch.device, weights: list[float]) -> GRPOConfig:
    """Our settings as TRL's; what TRL itself refuses becomes a ConfigError."""
    settings, config = ctx.config.grpo, ctx.config
    vllm = uses_vllm(config, device)
    try:
        arguments = GRPOConfig(
            **common_arguments(ctx, settings, device),
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
            vllm_mode="colocate",
            vllm_gpu_memory_utilization=config.vllm.gpu_memory_utilization,
            vllm_enable_sleep_mode=config.vllm.sleep_mode,
            vllm_max_model_length=config.model.max_context,
            vllm_importance_sampling_correction=True,
        )
    except (TypeError, ValueError) as error:
        raise ConfigError(f"TRL refuses this configuration: {error}", where="grpo") from error
    # Unsloth switches the scaling off for dr_grpo; the setting decides, not the back end.
    arguments.scale_rewards = settings.scale_rewards
    return arguments


def wanted_arguments(settings: GRPOSettings) -> dict[str, Any]:
    """Settings that a back end must not change: each alters what is learnt."""
    names = (
        "learning_rate lr_scheduler_type warmup_steps weight_decay max_grad_norm max_steps num_generations num_iterations "
        "per_device_train_batch_size gradient_accumulation_steps max_completion_length temperature top_p top_k min_p beta "
        "loss_type scale_rewards epsilon mask_truncated_completions"
    )
    data = settings.model_dump(mode="json")
    return {name: data[name] for name in names.split()}


def check_prompt_ids(trainer: GRPOTrainer, rows: list[dict[str, Any]], config: PipelineConfig) -> None:
    """The trainer's prompts must have the token ids that SFT, gate and evaluation use."""
    tokenizer = trainer.processing_class
    for row in rows[:8]:
        ours = encode_prompt(tokenizer, config.contract, row["question"])
        theirs = tokenizer.apply_chat_template(
            conversation=[messages(config.contract, row["question"])],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
        )["input_ids"][0]
        if list(theirs) != list(ours):
            raise ModelError(
                f"the trainer sees {len(theirs)} prompt tokens where SFT saw {len(ours)}",
                where=f"prompt of row {row['id']}",
                fix="look for a BOS that the template and the tokenizer both add",
                cause="prompt_ids_differ",
            )


def run(ctx: StageContext) -> StageResult:
    """Train and write the merged model."""
    config, settings = ctx.config, ctx.config.grpo
    device = device_of(config)
    with_unsloth = in_use()
    start = ctx.inputs["sft"] / "model"
    tokenizer = load_tokenizer(start, config)
    rows = pq.read_table(ctx.inputs["dataset"] / "train.parquet").to_pylist()
    rewards, weights = build_rewards(
        settings.rewards,
        config.contract,
        max_completion_length=settings.max_completion_length,
        work_dir=ctx.work_dir,
        eos_ids=sorted({int(tokenizer.eos_token_id), int(tokenizer.pad_token_id)}),
    )
    rollouts = ctx.work_dir / "rollouts.jsonl"
    rewards[0] = logging_rollouts(rewards[0], rollouts)
    arguments = grpo_arguments(ctx, device, weights)
    asked = arguments.to_dict()
    window = steps_per_window(settings)
    trainer = GRPOTrainer(
        model=load_with_adapter(start, config, settings, ctx.seed, arguments.use_vllm) if with_unsloth else str(start),
        reward_funcs=rewards,
        args=arguments,
        train_dataset=prompts_of(rows, config),
        processing_class=tokenizer,
        peft_config=None if with_unsloth else peft_config(settings),
        callbacks=[StageCallback(ctx, "grpo", window)],
    )
    watchdog = Watchdog(ctx)
    trainer.add_callback(watchdog.callback)
    trainer.add_callback(InitialKL(settings))
    check_prompt_ids(trainer, rows, config)
    used = trainer.args.to_dict()
    refuse_overrides(wanted_arguments(settings), used, "unsloth" if with_unsloth else "trl")
    dtype = storage_dtype(start)
    trainer.remove_callback(PrinterCallback)
    ctx.saves_on_stop = True
    checkpoint, resumed_from = resume_point(ctx)
    outcome = trainer.train(resume_from_checkpoint=checkpoint)
    watchdog.raise_if_stopped()
    raise_if_stopped(ctx, trainer.state.global_step)
    policy = trainer.accelerator.unwrap_model(trainer.model)
    sizes = save_merged(policy, tokenizer, Path(ctx.out), dtype, start if with_unsloth else None)
    if rollouts.exists():
        shutil.copyfile(rollouts, ctx.out / "rollouts.jsonl")
    history = [row for row in trainer.state.log_history if "reward" in row]
    return StageResult(
        metrics={
            "train_loss": float(outcome.training_loss),
            "steps": trainer.state.global_step,
            "completions": trainer.state.global_step
            * settings.per_device_train_batch_size
            * settings.gradient_accumulation_steps
            * trainer.accelerator.num_processes
            // settings.num_iterations,
            "first_reward": history[0]["reward"] if history else None,
            "last_reward": history[-1]["reward"] if history else None,
            "resumed_from_step": resumed_from,
            "rollout_engine": "vllm" if arguments.use_vllm else "transformers",
            **sizes,
        },
        effective_config={"backend": "unsloth" if with_unsloth else "trl", **effective_config(asked, used)},
        notes=watchdog.notes,
    )
