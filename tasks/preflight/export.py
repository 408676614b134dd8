"""Dry run of the GGUF export before any training: a model of the base architecture with random weights, shrunk."""

from __future__ import annotations

import copy
import dataclasses
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from pipeline_config.pipeline import PipelineConfig
from tasks.contract.prompts import encode_prompt
from tasks.errors import ModelError, PipelineError
from tasks.export import checks, convert
from tasks.export.llama import LlamaFile
from tasks.findings import Finding
from tasks.preflight.shape import empty_model, read_config
from tasks.training.saving import save_merged, storage_dtype

SMALL = 50_000_000
"""A base model below this is converted as it is."""
LARGEST = 400_000_000
"""A shrunken model above this (a large vocabulary and a wide head) would take too long."""

NAME = "export_unsupported"


def check_export(folder: Path, config: PipelineConfig, tokenizer: Any, questions: Sequence[str]) -> list[Finding]:
    """Convert, quantize and open a small model of the base model's architecture with the run's own tokenizer.

    Fails as `export_unsupported` with the converter's cause; else says whether the file asks questions as training does.
    """
    if not config.export.formats:
        return [Finding("export.dry_run", "not_measured", "no export.formats are asked for")]
    began = time.monotonic()
    try:
        convert.check_folder(folder)
        with tempfile.TemporaryDirectory() as scratch:
            model, what = small_model(folder, config, tokenizer, Path(scratch))
            files = write_files(model, config.export.formats, config.export.threads, Path(scratch))
            findings = compare_prompts(files[0], config, tokenizer, questions)
    except ModelError as error:
        evidence = f"{error.message} ({error.cause})"
        return [Finding(NAME, "fail", evidence, error.fix or "choose another base model")]
    except (PipelineError, OSError) as error:
        return [Finding("export.dry_run", "not_measured", f"the dry run could not be carried out: {error}")]
    sizes = ", ".join(config.export.formats)
    evidence = f"{what} converts to {sizes} ({time.monotonic() - began:.0f} s)"
    return [Finding("export.dry_run", "ok", evidence), *findings]


def small_model(folder: Path, config: PipelineConfig, tokenizer: Any, scratch: Path) -> tuple[Path, str]:
    """A folder as the training stages write it: the base model if it is small, else a shrunken one.

    Raises:
        ModelError: transformers cannot make such a model at all.
    """
    trusted = config.model.trust_remote_code
    base = read_config(folder, trusted)
    small = base
    size = _parameters(base, trusted)
    if size <= SMALL:
        made = AutoModelForCausalLM.from_pretrained(str(folder), use_safetensors=True, trust_remote_code=trusted)
        what = f"the base model ({size / 1e6:.1f} M weights)"
    else:
        small = shrunk(base)
        size = _parameters(small, trusted)
        if size > LARGEST:
            raise PipelineError(f"the smallest model of this architecture has {size / 1e6:.0f} M weights")
        made = AutoModelForCausalLM.from_config(small, dtype=storage_dtype(folder), trust_remote_code=trusted)
        what = f"a random {type(made).__name__} of {small.get_text_config().num_hidden_layers} layers ({size / 1e6:.1f} M weights)"
    save_merged(made, tokenizer, scratch, storage_dtype(folder))
    return scratch / "model", what


def shrunk(base: Any) -> Any:
    """The configuration with 2 layers, 2 heads and a narrow width; vocabulary, head dimension and all else as they are."""
    small = copy.deepcopy(base)
    text = small.get_text_config()
    heads = text.num_attention_heads
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // heads
    grouped = (getattr(text, "num_key_value_heads", None) or heads) < heads
    layers = min(2, text.num_hidden_layers)
    sizes = {
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "num_key_value_heads": 1 if grouped else 2,
        "hidden_size": 2 * head_dim,
        "intermediate_size": 4 * head_dim,
        "moe_intermediate_size": head_dim,
        "shared_expert_intermediate_size": head_dim,
        "num_experts": 4,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "max_window_layers": layers,
    }
    for name, size in sizes.items():
        if getattr(text, name, None) is not None:
            setattr(text, name, size)
    if getattr(text, "layer_types", None):
        text.layer_types = list(text.layer_types[:layers])
    return small


def write_files(model: Path, formats: Sequence[str], threads: int, out: Path) -> list[Path]:
    """The 16-bit file first, then one per other format, as `tasks.export.entry` writes them.

    Raises:
        ModelError: the converter or the quantizer refuses.
    """
    source_type = "bf16" if "bf16" in formats and "f16" not in formats else "f16"
    files = [out / f"model-{source_type}.gguf"]
    convert.convert(model, files[0], source_type, "dry-run")
    for name in formats:
        if name == source_type:
            continue
        files.append(out / f"model-{name}.gguf")
        if name not in convert.FROM_CONVERTER:
            convert.quantize(files[0], files[-1], name, threads)
        else:
            convert.convert(model, files[-1], name, "dry-run")
    return files


def compare_prompts(file: Path, config: PipelineConfig, tokenizer: Any, questions: Sequence[str]) -> list[Finding]:
    """Template, EOS, BOS and token ids of the file against training's, by the checks of the export's proof."""
    contract = config.contract
    problems = [
        checks.Problem(str(i), question, "", encode_prompt(tokenizer, contract, question))
        for i, question in enumerate(questions)
    ]
    with LlamaFile(file, n_ctx=64, parallel=1, threads=1) as llama:
        found = checks.check_questions(llama, tokenizer, contract, problems)
    return [dataclasses.replace(finding, name=f"export.{finding.name}") for finding in found]


def _parameters(config: Any, trusted: bool) -> int:
    try:
        model: torch.nn.Module = empty_model(config, trusted)
    except (ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise ModelError(
            f"transformers cannot build this architecture: {error}",
            fix="choose another base model",
            cause="architecture_unsupported",
        ) from error
    return sum(parameter.numel() for parameter in model.parameters())
