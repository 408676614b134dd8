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


@dataclass(frozen=True)
class TensorError:
    """How far one tensor is from its source: `error` over the source's root mean square; `allowed` for its type."""

    name: str
    quantization: str
    error: float
    allowed: float

    @property
    def broken(self) -> bool:
        return not self.error <= self.allowed  # NaN is broken too


def compare_tensors(
    source: Path, quantized: Path, progress: Callable[[int, int], None] | None = None
) -> list[TensorError]:
    """Relative error of every tensor of `quantized` against the 16-bit `source`.

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
            error = float("inf")
        else:
            error = _relative_error(_values(first), _values(second))
        found.append(TensorError(name, kind, error, _ROUNDING.get(kind, _OTHER_TYPES)))
        if progress:
            progress(done, len(names))
    return found


def _values(tensor: gguf.ReaderTensor) -> np.ndarray:
    return np.asarray(gguf.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)


def _relative_error(source: np.ndarray, copy: np.ndarray) -> float:
    with np.errstate(all="ignore"):
        size = float(np.sqrt(np.mean(np.square(source, dtype=np.float64))))
        error = float(np.sqrt(np.mean(np.square(copy.astype(np.float64) - source))))
    if not np.isfinite(error):
        return float("inf")
    return error / size if size else error
