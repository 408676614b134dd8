"""Training on several processes: how the model is shared, who stops when, and the whole model at the end."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, Trainer, TrainerCallback, TrainerControl, TrainerState
from transformers import TrainingArguments as Arguments

from pipeline_config.parallel import ParallelConfig
from tasks.errors import ConfigError
from tasks.process.context import StageContext

ZERO_2 = {
    "zero_optimization": {"stage": 2},
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"},
}
"""Gradients and optimizer states are shared out; the weights stay whole on every GPU, so that rollouts and saving need no gathering."""


def strategy_arguments(parallel: ParallelConfig) -> dict[str, Any]:
    """What `transformers.TrainingArguments` gets for a strategy; nothing for a single process or plain DDP."""
    if parallel.processes == 1:
        return {}
    if parallel.strategy == "fsdp":
        return {"fsdp": True, "fsdp_config": {"version": 2}}
    if parallel.strategy == "deepspeed":
        return {"deepspeed": dict(ZERO_2)}
    # Every weight that is trained gets a gradient in every step.
    return {"ddp_find_unused_parameters": False}


def check_strategy(trainer: Trainer, parallel: ParallelConfig) -> None:
    """Raise unless the built trainer shares the model as asked: accelerate leaves a strategy out where it does not apply.

    Raises:
        ConfigError: it does not.
    """
    if parallel.processes == 1 or parallel.strategy == "ddp":
        return
    in_use = trainer.is_fsdp_enabled if parallel.strategy == "fsdp" else trainer.is_deepspeed_enabled
    if not in_use:
        raise ConfigError(
            f"the trainer does not use {parallel.strategy} here, but {trainer.accelerator.distributed_type}",
            where="parallel.strategy",
            fix="set parallel.strategy=ddp, or train on GPUs",
        )


def restore_on_cpu_ranks() -> None:
    """Let torch.load read a checkpoint on several CPU processes, where transformers asks for the device `cpu:<rank>`, which
    torch does not know."""

    def restore(storage: Any, location: str) -> Any:
        return storage if location.startswith("cpu:") else None

    torch.serialization.register_package(15, lambda storage: None, restore)


class AgreeOnStop(TrainerCallback):
    """Saving and stopping happen on all processes at the same step, whichever of them decided it. Added last."""

    def __init__(self, ctx: StageContext) -> None:
        self.ctx = ctx

    def on_step_end(self, args: Arguments, state: TrainerState, control: TrainerControl, **_: Any) -> TrainerControl:
        return self._agree(args, control)

    def on_log(self, args: Arguments, state: TrainerState, control: TrainerControl, **_: Any) -> TrainerControl:
        return self._agree(args, control)

    def _agree(self, args: Arguments, control: TrainerControl) -> TrainerControl:
        if args.world_size == 1:
            return control
        wishes = [control.should_save, control.should_training_stop, self.ctx.stop_requested()]
        flags = torch.tensor([int(wish) for wish in wishes], device=args.device)
        torch.distributed.all_reduce(flags, op=torch.distributed.ReduceOp.MAX)
        control.should_save, control.should_training_stop, stop = (bool(flag) for flag in flags.tolist())
        if stop and not self.ctx.stop_requested():
            self.ctx.request_stop()
        return control


def whole_model(trainer: Trainer) -> PreTrainedModel | None:
    """The trained model with all of its weights, on rank 0; None on the others. Every process must call it."""
    accelerator = trainer.accelerator
    model = accelerator.unwrap_model(trainer.model)
    if not accelerator.is_fsdp2 and not trainer.is_fsdp_enabled:
        return model if accelerator.is_main_process else None
    state = accelerator.get_state_dict(trainer.model_wrapped)
    if not accelerator.is_main_process:
        return None
    whole: PreTrainedModel = AutoModelForCausalLM.from_config(model.config, dtype=torch.float32)
    whole.load_state_dict(state)
    return whole
