"""SFT: teach the format with TRL's `SFTTrainer` on prompt/completion rows, loss on the completion only.

Runs in the stage process. Output: `model/` (merged, 16-bit), `adapter/` when LoRA, metrics.jsonl.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase, PrinterCallback
from trl import SFTConfig, SFTTrainer

from pipeline_config.pipeline import PipelineConfig
from pipeline_config.training import SFTSettings
from tasks.contract.prompts import encode_example
from tasks.errors import DataError
from tasks.models import model_folder
from tasks.process.context import StageContext, StageResult
from tasks.training.adapters import keep_input_dtype
from tasks.training.arguments import common_arguments, effective_config, peft_config, refuse_overrides
from tasks.training.callback import StageCallback, raise_if_stopped, resume_point
from tasks.training.kernels import fuse
from tasks.training.loading import device_of, load_model, load_tokenizer
from tasks.training.memory import memory_record, start_measuring
from tasks.training.merge import probes_of_rows, remarks
from tasks.training.resume import train_from
from tasks.training.saving import save_merged, storage_dtype
from tasks.training.unsloth import in_use, load_with_adapter
from tasks.training.world import AgreeOnStop, check_strategy, whole_model

IGNORED = -100


def encode_rows(
    rows: list[dict[str, Any]], tokenizer: PreTrainedTokenizerBase, config: PipelineConfig
) -> tuple[list[dict[str, list[int]]], int]:
    """Token ids and labels per trace; labels are -100 on the prompt.

    A row whose closing tag or EOS would not fit into `sft.max_length` is refused, never cut: a cut row teaches the model
    not to close the tag. Returns the encoded rows and how many were refused.
    """
    encoded, refused = [], 0
    for row in rows:
        ids, mask = encode_example(tokenizer, config.contract, row["question"], row["working"], row["answer"])
        if len(ids) > config.sft.max_length:
            refused += 1
            continue
        labels = [token if kept else IGNORED for token, kept in zip(ids, mask, strict=True)]
        encoded.append({"input_ids": ids, "labels": labels})
    if not encoded:
        raise DataError(
            f"none of the {len(rows)} traces fits into {config.sft.max_length} tokens",
            where="sft.max_length",
            fix="raise sft.max_length or use shorter traces",
        )
    return encoded, refused


def steps_of(ctx: StageContext) -> int:
    """The limit on optimizer steps: a further round has one of its own."""
    return int(ctx.options.get("max_steps", ctx.config.sft.max_steps))


def sft_arguments(ctx: StageContext, device: torch.device) -> dict[str, Any]:
    """The arguments of `SFTConfig`. The preflight holds them against the installed TRL."""
    settings = ctx.config.sft
    return {
        **common_arguments(ctx, settings, device),
        "num_train_epochs": settings.num_train_epochs,
        "max_steps": steps_of(ctx),
        "per_device_train_batch_size": settings.per_device_train_batch_size,
        "gradient_accumulation_steps": settings.gradient_accumulation_steps,
        "save_steps": settings.save_steps,
        "max_length": None,
        "packing": False,
    }


def wanted_arguments(settings: SFTSettings) -> dict[str, Any]:
    """Settings that a back end must not change: each alters what is learnt."""
    names = (
        "learning_rate lr_scheduler_type warmup_steps optim weight_decay max_grad_norm max_steps num_train_epochs "
        "per_device_train_batch_size gradient_accumulation_steps"
    )
    data = settings.model_dump(mode="json")
    return {name: data[name] for name in names.split()}


def run(ctx: StageContext) -> StageResult:
    """Train and write the merged model: from the base model, or as a further round from the model of the round before."""
    config = ctx.config
    device = device_of(config)
    with_unsloth = in_use()
    number = int(ctx.options.get("round", 0))
    # A round goes on with the traces in another order.
    ctx.seed += number
    if number:
        folder = ctx.inputs["sft"] / "model"
    else:
        folder = model_folder(ctx.inputs["model"], config.model.source, config.model.revision)
    tokenizer = load_tokenizer(folder, config)
    rows = pq.read_table(ctx.inputs["dataset"] / "sft.parquet").to_pylist()
    encoded, refused = encode_rows(rows, tokenizer, config)
    supervised = sum(label != IGNORED for row in encoded for label in row["labels"])
    ctx.log(f"{len(encoded)} traces, {supervised} supervised tokens, {refused} refused as longer than sft.max_length")

    if with_unsloth:
        model = load_with_adapter(folder, config, config.sft, ctx.seed, rollouts=0)
    else:
        # Master weights in 32-bit, or 16-bit below an adapter; autocast does the arithmetic in bfloat16 on a GPU.
        full = config.sft.method == "full" or device.type == "cpu"
        model = load_model(folder, config, device, torch.float32 if full else torch.bfloat16)
    dtype = storage_dtype(folder)
    arguments = SFTConfig(**sft_arguments(ctx, device))
    asked = arguments.to_dict()
    trainer = SFTTrainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_list(encoded),
        processing_class=tokenizer,
        callbacks=[StageCallback(ctx, "sft")],
        peft_config=None if with_unsloth else peft_config(config.sft),
    )
    fused = False
    if not with_unsloth:
        keep_input_dtype(trainer.model)
        # FSDP's whole model is built anew on the host, where the kernels cannot run.
        fused = config.parallel.strategy != "fsdp" and fuse(trainer.model, device)
    wanted = {**wanted_arguments(config.sft), "max_steps": steps_of(ctx)}
    refuse_overrides(wanted, trainer.args.to_dict(), "unsloth" if with_unsloth else "trl", "sft")
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(AgreeOnStop(ctx))
    check_strategy(trainer, config.parallel)
    ctx.saves_on_stop = True
    start_measuring(device)
    checkpoint, resumed_from = resume_point(ctx)
    loss = train_from(trainer, checkpoint)
    raise_if_stopped(ctx, trainer.state.global_step)
    longest = max(len(row["input_ids"]) for row in encoded)
    memory = memory_record("sft", config, folder, device, longest_example=longest, unsloth=with_unsloth)
    policy = whole_model(trainer)
    if policy is None:
        return StageResult()  # rank 0 saves and reports
    probes = probes_of_rows(encoded, IGNORED)
    sizes = save_merged(policy, tokenizer, Path(ctx.out), dtype, folder if with_unsloth else None, probes)
    return StageResult(
        metrics={
            "train_loss": loss,
            "steps": trainer.state.global_step,
            "round": number,
            "rows": len(encoded),
            "rows_refused": refused,
            "supervised_tokens": supervised,
            "resumed_from_step": resumed_from,
            "memory": memory,
            **sizes,
        },
        effective_config={
            "backend": "unsloth" if with_unsloth else "trl",
            "fused_kernels": fused,
            **effective_config(asked, trainer.args.to_dict()),
        },
        notes=[
            *([f"{refused} traces were longer than sft.max_length and were left out"] if refused else []),
            *remarks(sizes.get("merge")),
        ],
    )
