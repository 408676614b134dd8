"""Save a trained policy as a merged 16-bit model, plus the adapter if one was trained."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from tasks.errors import NonFinite
from tasks.training.merge import MergeCheck, Probe


def save_merged(
    model: PreTrainedModel | PeftModel,
    tokenizer: PreTrainedTokenizerBase,
    out: Path,
    dtype: torch.dtype,
    merge_into: Path | None = None,
    probes: Sequence[Probe] = (),
) -> dict[str, Any]:
    """Write `out/model` (merged weights in `dtype`, safetensors) and, for LoRA, `out/adapter`.

    Args:
        merge_into: model folder whose 16-bit weights the adapter is merged into, for a policy whose own base weights
            are 4-bit or shared with a rollout engine; merging into those would round or disturb them.

        probes: completions on which the merged weights are compared with base plus adapter (LoRA only); nothing is compared
            when `merge_into` does not fit beside the policy on its GPU.

    Returns what the manifest keeps: trainable and total parameters, the type, and for LoRA `merge` (see `MergeCheck`).

    Raises:
        NonFinite: a weight is NaN or infinite.
        ModelError: (cause `merge_differs`) the merged weights are not base plus adapter.
    """
    check = None
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    if isinstance(model, PeftModel):
        model.save_pretrained(str(out / "adapter"))
        if merge_into is not None:
            base = AutoModelForCausalLM.from_pretrained(str(merge_into), dtype=dtype, use_safetensors=True)
            try:
                # Where the policy is: unsloth has replaced parts of the model's class by code for that device.
                base = base.to(next(model.parameters()).device)
            except torch.OutOfMemoryError:
                # Beside a 4-bit policy and its engine there may be no room for 16 bits. On the host the adapter can be merged,
                # but no forward pass made to compare.
                base, probes = base.to("cpu"), ()
            model = PeftModel.from_pretrained(base, str(out / "adapter"))
        check = MergeCheck(model, probes)
        computed = next(model.parameters()).dtype
        model = model.merge_and_unload()  # type: ignore[operator]
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            raise NonFinite(f"the weight {name} holds NaN or infinity", fix="lower the learning rate and run again")
    total = sum(p.numel() for p in model.parameters())
    model = model.to(dtype)  # type: ignore[assignment]
    merge = {}
    if check is not None:
        # With the rounded weights, but with the arithmetic that the adapter was measured with.
        merge = {"merge": check.compare(model.to(computed))}  # type: ignore[arg-type]
        model = model.to(dtype)  # type: ignore[assignment]
    model.config.dtype = dtype
    model.config.use_cache = True
    model.save_pretrained(str(out / "model"), max_shard_size="4GB")
    tokenizer.save_pretrained(str(out / "model"))
    _keep_sentencepiece(tokenizer, out / "model")
    name = str(dtype).removeprefix("torch.")
    return {"trainable_parameters": trainable, "parameters": total, "dtype": name, **merge}


def _keep_sentencepiece(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """The GGUF converter wants the SentencePiece file, which fast tokenizers do not write."""
    source = Path(str(getattr(tokenizer, "name_or_path", ""))) / "tokenizer.model"
    target = folder / "tokenizer.model"
    if source.is_file() and not target.exists():
        target.write_bytes(source.read_bytes())


def storage_dtype(folder: Path) -> torch.dtype:
    """16-bit type in which a model folder was published: float16 stays float16, everything else becomes bfloat16."""
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    published = settings.get("dtype") or settings.get("torch_dtype")
    return torch.float16 if published == "float16" else torch.bfloat16
