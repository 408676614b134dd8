"""Whether merged 16-bit weights still are base plus adapter: measured on a few completions before anything is saved."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel

from pipeline_config.pipeline import PipelineConfig
from tasks.contract.prompts import encode_prompt
from tasks.errors import ModelError
from tasks.log_probabilities import distances, way_back
from tasks.process.jsonio import read_rows

TOLERANCE = 0.1
"""Largest mean distance in nats a token. Measured: SmolLM2-135M with adapters of three sizes (rank 8, entries of B about 1e-4,
1e-3 and 1e-2) merged and rounded to bfloat16: 0.0007, 0.002 and 0.005."""
LOST = 0.85
"""Largest share of the adapter's own effect that may be gone; 1 means that the merged model is the base model. Less is lost in rounding, which
`remarks` says and which is no reason to throw a finished training away. Measured on
the same three: 0.15 +- 0.26, 0.40 +- 0.04 and 0.01 +- 0.03 (a small update vanishes in rounding), and with the adapter left
out 1.26 +- 0.26, 1.03 +- 0.03 and 1.00."""
WORTH_SAYING = 0.1
PROBES, LONGEST = 4, 512


@dataclass(frozen=True)
class Probe:
    """Token ids of a prompt with its completion; the completion begins at `start`."""

    ids: list[int]
    start: int


def probes_of_rows(rows: Sequence[dict[str, list[int]]], ignored: int) -> list[Probe]:
    """The first traces of SFT: rows with `input_ids` and `labels`, which are `ignored` on the prompt."""
    probes = []
    for row in rows[:PROBES]:
        start = next(i for i, label in enumerate(row["labels"]) if label != ignored)
        probes.append(Probe(list(row["input_ids"])[:LONGEST], start))
    return [probe for probe in probes if probe.start < len(probe.ids)]


def probes_of_rollouts(path: Path, tokenizer: Any, config: PipelineConfig) -> list[Probe]:
    """The newest completions that GRPO kept."""
    probes = []
    for row in read_rows(path)[-PROBES:] if path.is_file() else []:
        prompt = encode_prompt(tokenizer, config.contract, row["question"])
        completion = tokenizer(row["completion"], add_special_tokens=False)["input_ids"]
        if completion and len(prompt) < LONGEST:
            probes.append(Probe([*prompt, *completion][:LONGEST], len(prompt)))
    return probes


class MergeCheck:
    """Log-probabilities with the adapter and without, taken before the merge; `compare` takes them after it.

    Args:
        model: the policy with its adapter.
        probes: may be empty; then nothing is measured.
    """

    def __init__(self, model: PeftModel, probes: Sequence[Probe]) -> None:
        self._probes = probes
        self._adapter = _log_probabilities(model, probes)
        with model.disable_adapter():
            self._base = _log_probabilities(model, probes)

    def compare(self, merged: torch.nn.Module) -> dict[str, Any]:
        """What was measured, for the manifest: `mean` and `largest` distance in nats a token, the share of the adapter's
        effect that is `lost` with its standard error, `tokens`, `tolerance`. `tokens` is 0 when nothing could be measured.

        Args:
            merged: the model whose weights are saved, already rounded to what is saved.

        Raises:
            ModelError: (cause `merge_differs`) the merged model is not base plus adapter.
        """
        found = _log_probabilities(merged, self._probes) if self._adapter else []
        if not found:
            return {"tokens": 0, "tolerance": TOLERANCE}
        gaps = distances(self._adapter, found)
        lost = way_back(self._adapter, self._base, found)
        mean = sum(gaps) / len(gaps)
        measured = {
            "tokens": len(gaps),
            "mean": mean,
            "largest": max(gaps),
            "lost": lost[0] if lost else None,
            "lost_error": lost[1] if lost else None,
            "tolerance": TOLERANCE,
        }
        if not mean <= TOLERANCE or (lost and lost[0] > max(LOST, 3 * lost[1])):
            share = f", {lost[0]:.0%} +- {lost[1]:.0%} of the adapter's effect is gone" if lost else ""
            raise ModelError(
                f"merging changed the model: mean distance {mean:.3g} nats a token from base plus adapter on "
                f"{len(gaps)} tokens{share}",
                where="merged weights",
                fix="use a larger learning rate or adapter, or train all weights, if the update is lost in rounding",
                cause="merge_differs",
            )
        return measured


def remarks(measured: Mapping[str, Any] | None) -> list[str]:
    """What the run's notes should say about a merge, from `MergeCheck.compare`; mostly nothing."""
    lost, error = (measured or {}).get("lost"), (measured or {}).get("lost_error")
    if lost is None or error is None or lost - 2 * error < WORTH_SAYING:
        return []
    return [f"rounding to 16 bits undid {lost:.0%} of what the adapter does: the update is small beside the weights"]


@torch.inference_mode()
def _log_probabilities(model: Any, probes: Sequence[Probe]) -> list[list[float]]:
    """Natural log-probability of every completion token; empty when the model does not return logits."""
    training, rows = model.training, []
    model.eval()
    with logits_wanted():
        for probe in probes:
            ids = torch.tensor([probe.ids], device=next(model.parameters()).device)
            logits = model(input_ids=ids, use_cache=False).logits
            if logits.ndim != 3 or logits.shape[:2] != ids.shape or logits.shape[-1] <= max(probe.ids):
                return []  # a patched forward pass that hands out something else
            scores = logits[0, probe.start - 1 : -1].float().log_softmax(-1)
            rows.append([float(value) for value in scores.gather(1, ids[0, probe.start :, None])[:, 0]])
    model.train(training)
    return rows


@contextmanager
def logits_wanted() -> Iterator[None]:
    """Unsloth's forward pass returns hidden states, or nothing, unless it is told otherwise."""
    wanted = {"UNSLOTH_RETURN_LOGITS": "1", "UNSLOTH_RETURN_HIDDEN_STATES": "0"}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
