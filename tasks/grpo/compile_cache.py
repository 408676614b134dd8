"""vLLM keeps the graphs that it compiled for the next process, under a key that holds the path of the model.

Every SFT model has a path of its own and all have the same graphs, so that each would be compiled for again (25 s for SmolLM2-135M, 46 s
for Qwen3-8B's shape, on an H200). Unsloth's training graphs go to the same folder, for vLLM sets torch's cache there for the whole process.
"""

from __future__ import annotations

from functools import wraps
from typing import Any


def leave_path_out() -> None:
    """From here on vLLM's key for compiled graphs is made without the model's path, for engines of this process.

    What the graphs are made from is in the key still: the model's config.json, types, quantization, adapters, lengths, vLLM's code and
    version. Nothing is done without vllm.
    """
    try:
        from vllm.config import ModelConfig
    except ImportError:
        return
    inner = ModelConfig.compute_hash
    if getattr(inner, "is_without_path", False):
        return

    @wraps(inner)
    def compute_hash(self: Any) -> str:
        path, self.model = self.model, ""
        try:
            key: str = inner(self)
            return key
        finally:
            self.model = path

    vars(compute_hash)["is_without_path"] = True
    ModelConfig.compute_hash = compute_hash
