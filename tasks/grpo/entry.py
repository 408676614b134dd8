"""GRPO with TRL's `GRPOTrainer` from the merged SFT model, which is also the reference policy.

Runs in the stage process. Output: `model/` (merged, 16-bit), `adapter/` when LoRA, metrics.jsonl, rollouts.jsonl, the dead-group ledger
(groups.jsonl, ledger.jsonl), checkpoints.json (which one was kept, and why), and remedies.json with the logs before each remedy when one was taken.
"""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from datasets import Dataset
from transformers import PrinterCallback
from trl import GRPOTrainer

from pipeline_config.pipeline import PipelineConfig
from tasks.contract.prompts import encode_prompt, messages
from tasks.errors import ModelError, NonFinite
from tasks.grpo.arguments import grpo_arguments, wanted_arguments
from tasks.grpo.arithmetic import steps_per_window
from tasks.grpo.canary import add_canary
from tasks.grpo.checkpoint_choice import choose_checkpoint
from tasks.grpo.compile_cache import leave_path_out
from tasks.grpo.guards import InitialKL, OwnLearningRate, Watchdog, situation
from tasks.grpo.ledger import GROUPS_FILE, LEDGER_FILE, per_prompt, read_groups, totals, truncate_groups, write_ledger
from tasks.grpo.remedied import load_steps, publish
from tasks.grpo.remedies import settings_after
from tasks.grpo.rollouts import logging_rollouts, truncate_rollouts
from tasks.grpo.trainer import LedgerTrainer
from tasks.process.context import StageContext, StageResult
from tasks.rewards.build import build_rewards
from tasks.training.adapters import keep_input_dtype
from tasks.training.arguments import effective_config, peft_config, refuse_overrides
from tasks.training.callback import StageCallback, raise_if_stopped, resume_point
from tasks.training.kernels import fuse
from tasks.training.loading import device_of, load_tokenizer
from tasks.training.memory import memory_record, start_measuring
from tasks.training.merge import probes_of_rollouts, remarks
from tasks.training.resume import train_from
from tasks.training.saving import save_merged, storage_dtype
from tasks.training.unsloth import give_pad_a_token_of_its_own, in_use, load_with_adapter
from tasks.training.world import AgreeOnStop, check_strategy, whole_model


def prompts_of(rows: list[dict[str, Any]], config: PipelineConfig, **columns: Any) -> Dataset:
    """Rows for the trainer: conversational `prompt`, gold `answer`, `id`, and `columns` with one value for all."""
    return Dataset.from_list(
        [
            {"prompt": messages(config.contract, row["question"]), "answer": row["answer"], "id": row["id"], **columns}
            for row in rows
        ]
    )


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


def longest_prompt(tokenizer: Any, rows: list[dict[str, Any]], config: PipelineConfig, looked_at: int = 64) -> int:
    """Tokens of the longest prompt, among those with the most characters."""
    questions = sorted((str(row["question"]) for row in rows), key=len)[-looked_at:]
    return max(len(encode_prompt(tokenizer, config.contract, question)) for question in questions)


def held_out_prompts(ctx: StageContext) -> Dataset | None:
    """The gate's first problems, marked; None when held-out accuracy is not looked at."""
    if not ctx.config.grpo.eval_steps:
        return None
    rows = pq.read_table(ctx.inputs["dataset"] / "gate.parquet").to_pylist()
    return prompts_of(rows[: ctx.config.grpo.eval_problems], ctx.config, held_out=True)


def run(ctx: StageContext) -> StageResult:
    """Train and write the merged model.

    Raises:
        StartAgain: the watchdog named a failure and a remedy was taken; it takes effect in the next process.
        RunStopped: it named one that no remedy is left for.
    """
    config, asked_for = ctx.config, ctx.config.grpo
    steps = load_steps(ctx.work_dir)
    settings = settings_after(asked_for, steps)
    device = device_of(config)
    with_unsloth = in_use()
    start = ctx.inputs["sft"] / "model"
    tokenizer = load_tokenizer(start, config)
    if with_unsloth:
        give_pad_a_token_of_its_own(tokenizer)
    set_aside = {name for step in steps for name in step.set_aside}
    table = pq.read_table(ctx.inputs.get("selection", ctx.inputs["dataset"]) / "train.parquet").to_pylist()
    rows = [row for row in table if str(row["id"]) not in set_aside]
    rewards = build_rewards(
        settings.rewards,
        config.contract,
        max_completion_length=settings.max_completion_length,
        work_dir=ctx.work_dir,
        eos_ids=sorted({int(tokenizer.eos_token_id), int(tokenizer.pad_token_id)}),
    )
    rollouts, groups = ctx.work_dir / "rollouts.jsonl", ctx.work_dir / GROUPS_FILE
    functions = list(rewards.functions)
    if ctx.rank == 0:
        functions[0] = logging_rollouts(functions[0], rollouts)
    arguments = grpo_arguments(ctx, settings, device, rewards.weights)
    asked = arguments.to_dict()
    window = steps_per_window(settings)
    if arguments.use_vllm:
        leave_path_out()
    sampled_at_once = arguments.generation_batch_size if arguments.use_vllm else 0
    trainer = LedgerTrainer(
        model=load_with_adapter(start, config, settings, ctx.seed, sampled_at_once) if with_unsloth else str(start),
        reward_funcs=functions,
        args=arguments,
        train_dataset=prompts_of(rows, config),
        eval_dataset=held_out_prompts(ctx),
        processing_class=tokenizer,
        peft_config=None if with_unsloth else peft_config(settings),
        callbacks=[StageCallback(ctx, "grpo", window)],
        grader=rewards.grader.grades,
        groups_file=groups,
        rule=settings.live_rule,
        max_refills=settings.max_refills,
    )
    fused = False
    if not with_unsloth:
        keep_input_dtype(trainer.model)
        # FSDP's whole model is built anew on the host, where the kernels cannot run.
        fused = config.parallel.strategy != "fsdp" and fuse(trainer.model, device)
        if fused and trainer.ref_model is not None:
            # Or rounding alone would be a KL. DeepSpeed and FSDP have wrapped it already.
            fuse(trainer.accelerator.unwrap_model(trainer.ref_model), device)
    look = situation(
        len(rows),
        partial(read_groups, groups),
        steps,
        can_refill=not with_unsloth and trainer.accelerator.num_processes == 1,
    )
    watchdog = Watchdog(ctx, steps, window, look)
    if asked_for.watchdog != "off" and ctx.rank == 0:
        trainer.add_callback(watchdog.callback)
    trainer.add_callback(InitialKL(settings))
    trainer.add_callback(OwnLearningRate())
    canary = add_canary(trainer, tokenizer, rows, config, ctx.log)
    check_prompt_ids(trainer, rows, config)
    used = trainer.args.to_dict()
    refuse_overrides(wanted_arguments(settings), used, "unsloth" if with_unsloth else "trl")
    dtype = storage_dtype(start)
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(AgreeOnStop(ctx))
    check_strategy(trainer, config.parallel)
    ctx.saves_on_stop = True
    start_measuring(device)
    checkpoint, resumed_from = resume_point(ctx)
    if ctx.rank == 0:
        truncate_groups(groups, resumed_from or 0)
        truncate_rollouts(rollouts, resumed_from or 0)
    trainer.resumed_at = resumed_from or 0
    try:
        loss = train_from(trainer, checkpoint)
        watchdog.settle()
        raise_if_stopped(ctx, trainer.state.global_step)
        memory = memory_record(
            "grpo", config.model_copy(update={"grpo": settings}), start, device,
            longest_prompt=longest_prompt(tokenizer, rows, config), vllm=arguments.use_vllm, unsloth=with_unsloth,
        )  # fmt: skip
        policy = whole_model(trainer)
        if policy is None:
            return StageResult()  # rank 0 saves and reports
        choice = choose_checkpoint(ctx, policy, tokenizer, settings, trainer.state.global_step)
        probes = probes_of_rollouts(rollouts, tokenizer, config)
        tokenizer.padding_side = "left"  # unsloth turns it
        sizes = save_merged(policy, tokenizer, Path(ctx.out), dtype, start if with_unsloth else None, probes)
    except (RuntimeError, NonFinite) as error:
        if ctx.rank:
            raise
        watchdog.training_failed(error, trainer.state.global_step)
        watchdog.settle()
        raise
    if rollouts.exists():
        shutil.copyfile(rollouts, ctx.out / "rollouts.jsonl")
    tried = read_groups(groups)
    write_ledger(ctx.out / LEDGER_FILE, per_prompt(tried, set_aside))
    if groups.exists():
        shutil.copyfile(groups, ctx.out / GROUPS_FILE)
    history = [row for row in trainer.state.log_history if "reward" in row]
    return StageResult(
        metrics={
            "train_loss": loss,
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
            "canary": canary,
            "checkpoint_choice": choice,
            "groups": totals(tried),
            "remedies": publish(ctx, steps),
            "memory": memory,
            **sizes,
        },
        effective_config={
            "backend": "unsloth" if with_unsloth else "trl",
            "fused_kernels": fused,
            **effective_config(asked, used),
        },
        notes=[
            *watchdog.notes,
            *([choice["reason"]] if choice and not choice["kept_last"] else []),
            *remarks(sizes.get("merge")),
        ],
    )
