"""At the end of GRPO: measure the newest checkpoints on held-out problems and leave the chosen one's weights in the policy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow.parquet as pq
import torch
from peft import PeftModel, set_peft_model_state_dict
from safetensors.torch import load_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from pipeline_config.training import GRPOSettings
from tasks.contract.grading import grade
from tasks.contract.prompts import encode_prompt
from tasks.errors import Interrupted, ModelError
from tasks.grpo.arithmetic import candidate_steps
from tasks.grpo.choice import Candidate, decide
from tasks.process.checkpoints import why_incomplete
from tasks.process.context import StageContext
from tasks.sampling.sampler import Sampler, SamplingSettings
from tasks.training.callback import raise_if_stopped
from tasks.training.loading import compute_dtype

Policy: TypeAlias = "PreTrainedModel | PeftModel"
CHOICE_FILE = "checkpoints.json"


def choose_checkpoint(
    ctx: StageContext, policy: Policy, tokenizer: PreTrainedTokenizerBase, settings: GRPOSettings, last_step: int
) -> dict[str, Any] | None:
    """Put the chosen checkpoint's weights into `policy`; returns the choice for the manifest, None when it is switched off.

    Problems: the first of the gate's table, which neither SFT nor GRPO trains on and the final evaluation does not ask.
    Whatever goes wrong here costs the choice and not the training: the last weights are kept and the record says why.

    Raises:
        Interrupted: the stage was asked to stop; the next attempt starts here again.
    """
    if not settings.checkpoint_choice.enabled:
        return None
    last = _trained_weights(policy)
    try:
        choice = _choose(ctx, policy, tokenizer, settings, last_step, last)
    except Interrupted:
        raise
    except Exception as error:  # noqa: BLE001 - hours of training must not be lost to a measurement
        choice = {"chosen": last_step, "last": last_step, "kept_last": True, "candidates": []}
        choice["reason"] = f"the last step was kept: measuring failed with {type(error).__name__}: {str(error)[:300]}"
    if choice["kept_last"]:
        _restore(policy, last)
    ctx.log(choice["reason"])
    (ctx.out / CHOICE_FILE).write_text(json.dumps(choice, indent=1) + "\n", encoding="utf-8")
    return choice


def _choose(
    ctx: StageContext,
    policy: Policy,
    tokenizer: PreTrainedTokenizerBase,
    settings: GRPOSettings,
    last_step: int,
    last: dict[str, torch.Tensor],
) -> dict[str, Any]:
    wanted = settings.checkpoint_choice
    rows = pq.read_table(ctx.inputs["dataset"] / "gate.parquet").to_pylist()[: wanted.problems]
    folders = {
        step: ctx.checkpoints / f"checkpoint-{step}"
        for step in candidate_steps(settings, last_step)
        if not why_incomplete(ctx.checkpoints / f"checkpoint-{step}")
    }
    total = len(folders) + 1
    candidates = []
    for done, step in enumerate([*folders, last_step]):
        raise_if_stopped(ctx, last_step)
        ctx.progress(done, total, "choosing the checkpoint")
        if step == last_step:
            _restore(policy, last)
        else:
            load_weights(policy, folders[step])
        candidates.append(_measure(ctx, policy, tokenizer, settings, rows, step))
    ctx.progress(total, total, "choosing the checkpoint")
    choice = decide(candidates, wanted.samples, wanted.alpha)
    if not choice["kept_last"]:
        load_weights(policy, folders[choice["chosen"]])
    return choice


def _measure(
    ctx: StageContext,
    policy: Policy,
    tokenizer: PreTrainedTokenizerBase,
    settings: GRPOSettings,
    rows: list[dict[str, Any]],
    step: int,
) -> Candidate:
    """Strict pass rates at GRPO's sampling settings, with the same seed for every candidate."""
    wanted, contract = settings.checkpoint_choice, ctx.config.contract
    sampling = SamplingSettings(
        settings.temperature,
        settings.max_completion_length,
        wanted.samples,
        settings.top_p,
        settings.top_k,
        settings.min_p,
        seed=ctx.seed,
    )
    prompts = [encode_prompt(tokenizer, contract, row["question"]) for row in rows]
    sampler = Sampler.around(policy, tokenizer, ctx.config)
    was_training = policy.training
    policy.eval()
    try:
        # A policy trained in 32 bits is kept in 16: it is measured as near to that as the device allows.
        dtype = compute_dtype(ctx.config, sampler.device)
        with torch.autocast(sampler.device.type, dtype, enabled=dtype != torch.float32):
            completions = sampler.sample(prompts, sampling)
    except RuntimeError as error:  # weights that are not finite, or no memory left
        return Candidate(step, failure=f"{type(error).__name__}: {str(error)[:200]}")
    finally:
        policy.train(was_training)
    rates = tuple(
        sum(grade(c.text, row["answer"], contract, truncated=c.truncated).right for c in group) / len(group)
        for row, group in zip(rows, completions, strict=True)
    )
    ctx.log(f"step {step}: held-out pass@1 {sum(rates) / len(rates):.1%}, n = {len(rates)} x {wanted.samples}")
    return Candidate(step, rates)


def load_weights(policy: Policy, checkpoint: Path) -> None:
    """Put the trained weights of a checkpoint folder into the policy.

    Raises:
        ModelError: the folder has no whole set of weights that fits.
    """
    if isinstance(policy, PeftModel):
        state = load_file(str(checkpoint / "adapter_model.safetensors"))
        unexpected = set_peft_model_state_dict(policy, state).unexpected_keys
        if unexpected:
            raise ModelError(
                f"the adapter has weights that the policy has not: {unexpected[:3]}", where=str(checkpoint)
            )
        return
    files = sorted(checkpoint.glob("model*.safetensors"))
    state = {name: tensor for file in files for name, tensor in load_file(str(file)).items()}
    missing, unexpected = policy.load_state_dict(state, strict=False)
    # Weights that are tied are stored once.
    absent = set(missing) - set(getattr(policy, "_tied_weights_keys", None) or ())
    if absent or unexpected or not files:
        raise ModelError(
            f"the checkpoint's weights do not fit the policy: {sorted(absent)[:3]} missing, {unexpected[:3]} unexpected",
            where=str(checkpoint),
        )


def _trained_weights(policy: Policy) -> dict[str, torch.Tensor]:
    """A copy of the trained weights in main memory."""
    return {name: p.detach().to("cpu", copy=True) for name, p in policy.named_parameters() if p.requires_grad}


def _restore(policy: Policy, weights: dict[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if name in weights:
                parameter.copy_(weights[name])
