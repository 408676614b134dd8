"""Log-probabilities of given tokens under a Hugging Face model folder: what a GGUF file is measured against."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from tasks.errors import ModelError

_FLOAT32_BELOW = 1_000_000_000  # parameters; above it float32 would need twice the memory of training


def log_probabilities(
    model_folder: Path, parameters: int, sequences: Sequence[Sequence[int]], starts: Sequence[int]
) -> list[list[float]]:
    """Natural log-probability of each token from `starts[i]` on, given all before it.

    Args:
        model_folder: merged weights.
        parameters: their number; small models are computed in float32, so that rounding is the file's alone.
        sequences: token ids of prompts and completions.
        starts: index of the first completion token of each, at least 1.

    Raises:
        ModelError: the model cannot be loaded.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.float32 if parameters < _FLOAT32_BELOW else "auto"
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(str(model_folder), dtype=dtype, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"the 16-bit model cannot be loaded: {error}",
            where=str(model_folder),
            fix="train again",
            cause="incomplete_model",
        ) from error
    model = loaded.to(device).eval()
    found = []
    with torch.inference_mode():
        for ids, start in zip(sequences, starts, strict=True):
            logits = model(input_ids=torch.tensor([list(ids)], device=device)).logits[0, start - 1 : -1].float()
            targets = torch.tensor(list(ids[start:]), device=device)
            rows = logits.log_softmax(-1).gather(1, targets[:, None])[:, 0]
            found.append([float(value) for value in rows])
    return found
