"""Whether a quantized GGUF file holds the weights of the 16-bit file that it was made from, tensor by tensor.

Both files have the same tensor names and layout, so each tensor can be dequantized and compared directly. This finds
one damaged tensor among hundreds, by name, which a score over a few dozen problems would not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

# Largest root-mean-square error of a tensor over its root-mean-square value that rounding alone explains. Twice what
# llama.cpp's quantizer leaves on normally distributed weights: Q4_K 0.075, Q5_K 0.038, Q6_K 0.019, Q8_0 0.006.
_ROUNDING = {
    "F32": 0.001,
    "F16": 0.002,
    "BF16": 0.008,
    "Q8_0": 0.015,
    "Q6_K": 0.04,
    "Q5_K": 0.08,
    "Q5_0": 0.10,
    "Q5_1": 0.10,
    "Q4_K": 0.16,
    "Q4_0": 0.20,
    "Q4_1": 0.20,
    "IQ4_NL": 0.20,
}
_OTHER_TYPES = 0.20
_BLOCK = 3.5
"""The same for the worst block of up to 256 weights, as a multiple. Measured on SmolLM2-135M, as a share of the above: Q8_0
1.25, Q6_K 0.9, Q5_0 1.4, Q5_1 1.1, Q5_K 0.6, Q4_K 0.5. A block of zeros is off by 1, one of other weights by about 1.4."""
_SMALL_BLOCK = 0.2
"""A block below this share of the tensor's size is measured against that: its own rounding may be coarse, and does no harm."""


@dataclass(frozen=True)
class TensorError:
    """How far one tensor is from its source.

    Attributes:
        error: root mean square of the difference over that of the source.
        block: the same of the worst block of weights.
        allowed: what rounding explains of `error`, by the tensor's type.
    """

    name: str
    quantization: str
    error: float
    allowed: float
    block: float = 0.0

    @property
    def broken(self) -> bool:
        return not (self.error <= self.allowed and self.block <= _BLOCK * self.allowed)  # NaN is broken too


def compare_tensors(
    source: Path, quantized: Path, progress: Callable[[int, int], None] | None = None
) -> list[TensorError]:
    """Relative errors of every tensor of `quantized` against the 16-bit `source`.

    A tensor that one of the files lacks, or of another shape, has an infinite error.

    Raises:
        ValueError, OSError, IndexError, KeyError: a header cannot be read (the caller names the file corrupt).
    """
    reference = {tensor.name: tensor for tensor in gguf.GGUFReader(source).tensors}
    copies = {tensor.name: tensor for tensor in gguf.GGUFReader(quantized).tensors}
    found = []
    names = sorted(reference.keys() | copies.keys())
    for done, name in enumerate(names, 1):
        first, second = reference.get(name), copies.get(name)
        kind = "missing" if second is None else second.tensor_type.name
        if first is None or second is None or first.shape.tolist() != second.shape.tolist():
            error = block = float("inf")
        else:
            error, block = _relative_errors(_values(first), _values(second))
        found.append(TensorError(name, kind, error, _ROUNDING.get(kind, _OTHER_TYPES), block))
        if progress:
            progress(done, len(names))
    return found


def _values(tensor: gguf.ReaderTensor) -> np.ndarray:
    return np.asarray(gguf.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)


def _relative_errors(source: np.ndarray, copy: np.ndarray) -> tuple[float, float]:
    """(error of the tensor, error of its worst block), each relative to the size of the source there."""
    width = next((size for size in (256, 32) if source.shape[-1] % size == 0), source.shape[-1])
    with np.errstate(all="ignore"):
        squares = np.square(source, dtype=np.float64).reshape(-1, width).mean(axis=1)
        differences = np.square(copy.astype(np.float64) - source).reshape(-1, width).mean(axis=1)
        size, error = float(np.sqrt(squares.mean())), float(np.sqrt(differences.mean()))
        if not np.isfinite(error):
            return float("inf"), float("inf")
        if not size:
            return error, error
        blocks = np.sqrt(differences) / np.maximum(np.sqrt(squares), _SMALL_BLOCK * size)
        return error / size, float(blocks.max())
