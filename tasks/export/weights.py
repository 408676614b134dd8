"""Whether a 16-bit GGUF file holds the weights of the trained model's folder, tensor by tensor and to the last bit.

The converter renames tensors, reorders the rows of some (the two halves of rotary embeddings), and writes every value in the
file's type; it changes no value otherwise. So the values of a tensor, whatever their order, must be the same in both.
Scores over a few dozen problems would not show one damaged tensor among hundreds, nor weights that training moved little.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

ARCHITECTURES = ("llama", "qwen2", "qwen3", "smollm3", "gemma", "gemma2", "gemma3")
"""Names in the file's header for which the above holds. For others (fused, split or transformed weights) nothing is said."""
_SHIFTED = ("gemma",)
"""Beginnings of architectures whose norm weights are written plus 1."""

_CHUNK = 1 << 24
_BITS = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16}


@dataclass(frozen=True)
class WeightsMatch:
    """What the comparison found.

    Attributes:
        architecture: as the file names it.
        compared: number of tensors that are in both.
        different: names (in the file) of those whose values differ.
        before: names of `different` tensors that hold the values of the model before training.
        missing: names (in the folder) without a counterpart in the file.
    """

    architecture: str
    compared: int
    different: list[str]
    before: list[str]
    missing: list[str]


def compare_weights(
    folder: Path, file: Path, before: Path | None = None, progress: Callable[[int, int], None] | None = None
) -> WeightsMatch:
    """Compare a folder's safetensors with a 16-bit GGUF file.

    Args:
        folder: merged weights of the trained model.
        before: those of the model that training began from, to say whether differing tensors are its.
        progress: called with (tensors compared, tensors).

    Raises:
        ValueError, OSError, IndexError, KeyError, struct.error: a header cannot be read.
    """
    reader = gguf.GGUFReader(file)
    architecture = str(reader.fields["general.architecture"].contents())
    found = {tensor.name: tensor for tensor in reader.tensors}
    names = _names(architecture, reader)
    if names is None:
        return WeightsMatch(architecture, 0, [], [], [])
    shifted = architecture.startswith(_SHIFTED)
    compared, different, missing = 0, [], []
    trained = list(_safetensors(folder))
    for name, values in trained:
        tensor = found.get(names(name) or "")
        if tensor is None or tensor.n_elements != values.size:
            missing.append(name)
            continue
        compared += 1
        if not _same_values(values, tensor, shifted):
            different.append(tensor.name)
        if progress:
            progress(compared, len(trained))
    old = []
    if before is not None and different:
        wanted = set(different)
        for name, values in _safetensors(before):
            tensor = found.get(names(name) or "")
            if tensor is not None and tensor.name in wanted and tensor.n_elements == values.size:
                old += [tensor.name] if _same_values(values, tensor, shifted) else []
    return WeightsMatch(architecture, compared, different, old, missing)


def _names(architecture: str, reader: gguf.GGUFReader) -> Callable[[str], str | None] | None:
    """Hugging Face's name of a tensor -> its name in the file; None for an architecture of which nothing is known."""
    known = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}
    if architecture not in ARCHITECTURES or architecture not in known:
        return None
    layers = int(reader.fields[f"{architecture}.block_count"].contents())
    table = gguf.get_tensor_name_map(known[architecture], layers)
    return lambda name: table.get_name(name, try_suffixes=(".weight", ".bias"))


def _same_values(values: np.ndarray, tensor: gguf.ReaderTensor, shifted: bool) -> bool:
    """Whether a tensor of the file holds these values, in whatever order."""
    kind = tensor.tensor_type.name
    if kind == "F32":
        ours, theirs = np.sort(_float32(values), axis=None), np.sort(np.asarray(tensor.data), axis=None)
        return bool(np.array_equal(ours, theirs) or (shifted and np.array_equal(np.sort(ours + 1), theirs)))
    if kind not in ("F16", "BF16"):
        return False
    ours, theirs = np.zeros(1 << 16, np.int64), np.zeros(1 << 16, np.int64)
    flat, stored = values.reshape(-1), np.asarray(tensor.data).reshape(-1).view(np.uint16)
    for start in range(0, flat.size, _CHUNK):
        ours += np.bincount(_bits(flat[start : start + _CHUNK], kind), minlength=1 << 16)
        theirs += np.bincount(stored[start : start + _CHUNK], minlength=1 << 16)
    return bool(np.array_equal(ours, theirs))


def _bits(values: np.ndarray, kind: str) -> np.ndarray:
    """The 16 bits of each value as type `kind`; uint16."""
    if kind == "BF16" and values.dtype == np.uint16:
        return values
    if kind == "F16":
        with np.errstate(over="ignore"):
            return _float32(values).astype(np.float16).view(np.uint16)
    return np.asarray(gguf.quantize(_float32(values), gguf.GGMLQuantizationType.BF16)).reshape(-1).view(np.uint16)


def _float32(values: np.ndarray) -> np.ndarray:
    """Numbers of a safetensors tensor; bfloat16 is kept as its 16 bits (uint16) until here."""
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)


def _safetensors(folder: Path) -> Iterator[tuple[str, np.ndarray]]:
    """(name, values) of every floating-point tensor below a folder, read as they are used; bfloat16 as uint16."""
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            header = json.loads(stream.read(length))
        data = np.memmap(file, np.uint8, "r", offset=8 + length)
        for name, entry in header.items():
            if name != "__metadata__" and entry["dtype"] in _BITS:
                start, end = entry["data_offsets"]
                yield name, data[start:end].view(_BITS[entry["dtype"]])
