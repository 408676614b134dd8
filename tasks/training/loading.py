"""Load tokenizer and model the same way in every stage. Imported only in stage processes: it needs torch."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from pipeline_config.pipeline import PipelineConfig
from tasks.contract.prompts import trained_template
from tasks.errors import ConfigError, ModelError

# Loading takes a second; a bar in the log says nothing.
disable_progress_bar()


def device_of(config: PipelineConfig) -> torch.device:
    """The device that `run.device` asks for.

    Raises:
        ConfigError: `cuda` was asked for and there is none.
    """
    if config.run.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("no GPU can be used by torch", where="run.device", fix="set run.device=auto or cpu")
    use_gpu = config.run.device != "cpu" and torch.cuda.is_available()
    if use_gpu and "LOCAL_RANK" in os.environ:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    return torch.device("cuda" if use_gpu else "cpu")


def compute_dtype(config: PipelineConfig, device: torch.device) -> torch.dtype:
    """Type of the weights while sampling: 16-bit on a GPU, 32-bit on the CPU, unless `model.dtype` says otherwise."""
    if config.model.dtype != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[config.model.dtype]
    if device.type == "cpu":
        return torch.float32
    return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16


def load_tokenizer(folder: Path, config: PipelineConfig) -> PreTrainedTokenizerBase:
    """The tokenizer with the trained chat template: its generation prompt ends with `reasoning_start`.

    Raises:
        ModelError: the tokenizer cannot be loaded, has no chat template and none is configured, or no EOS.
    """
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            str(folder), trust_remote_code=config.model.trust_remote_code
        )
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(
            f"the tokenizer cannot be loaded: {error}", where=str(folder), fix="check that the folder holds its files"
        ) from error
    template = tokenizer.chat_template
    if config.model.chat_template:
        try:
            template = Path(config.model.chat_template).read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(
                f"cannot be read: {error.strerror}", where=f"model.chat_template ({config.model.chat_template})"
            ) from error
    if not isinstance(template, str) or not template.strip():
        raise ModelError(
            "the tokenizer has no chat template and none is configured",
            where=config.model.source,
            fix="set model.chat_template to the path of a Jinja template (base models often ship without one)",
            cause="no_chat_template",
        )
    if tokenizer.eos_token_id is None:
        raise ModelError(
            "the tokenizer names no EOS token, so no completion would ever end",
            where=config.model.source,
            cause="no_eos",
        )
    tokenizer.chat_template = trained_template(template, config.contract)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "left"
    return tokenizer


def load_model(
    folder: Path, config: PipelineConfig, device: torch.device, dtype: torch.dtype, **more: Any
) -> PreTrainedModel:
    """Weights from safetensors only.

    Raises:
        ModelError: missing, unreadable or not a causal language model.
    """
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            str(folder),
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=config.model.trust_remote_code,
            **more,
        )
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(
            f"the model cannot be loaded: {error}", where=str(folder), fix="it must be a causal LM in safetensors"
        ) from error
    if "quantization_config" not in more:
        model.to(device)  # type: ignore[arg-type]
    return model


def check_context(folder: Path, config: PipelineConfig) -> None:
    """`model.max_context` must not exceed what the model was made for."""
    try:
        made_for = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("max_position_embeddings")
    except (OSError, ValueError) as error:
        raise ModelError(f"config.json cannot be read: {error}", where=str(folder)) from error
    if isinstance(made_for, int) and config.model.max_context > made_for:
        raise ConfigError(
            f"{config.model.max_context} tokens is more than the {made_for} this model was made for",
            where="model.max_context",
            fix=f"set model.max_context={made_for} or less",
        )
