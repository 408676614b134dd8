"""What is evaluated: every set with its settings, and which earlier results are still good. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from artifacts.manifest import Manifest
from pipeline_config.evaluation import HELD_OUT
from pipeline_config.pipeline import PipelineConfig

SAMPLER = ("temperature", "top_p", "top_k", "min_p")
LOOKED_AT = 50
"""Newest earlier artifacts in which a result is looked for."""


@dataclass(frozen=True)
class SetPlan:
    """One set and how it is answered; `sampler` is empty without samples."""

    name: str
    max_new_tokens: int
    samples: int
    sampler: dict[str, Any] = field(default_factory=dict)

    def terms(self, seed: int) -> dict[str, Any]:
        """What completions of the set depend on, beside model, problems and template."""
        terms: dict[str, Any] = {"max_new_tokens": self.max_new_tokens, "samples": self.samples}
        return {**terms, "seed": seed, "sampler": self.sampler} if self.samples else terms


def plan_of(config: PipelineConfig) -> list[SetPlan]:
    """The held-out set, then the others in the order of the configuration."""
    settings = config.evaluation
    longest = settings.max_new_tokens or config.grpo.max_completion_length
    wanted = [(HELD_OUT, longest, settings.samples)]
    for one in settings.sets:
        samples = settings.samples if one.samples is None else one.samples
        wanted.append((one.name, one.max_new_tokens or longest, samples))
    grpo = config.grpo.model_dump(mode="json")
    sampler = {key: grpo[key] for key in SAMPLER}
    return [SetPlan(name, limit, samples, sampler if samples else {}) for name, limit, samples in wanted]


def earlier_results(terms: Mapping[str, Any], known: Sequence[Manifest]) -> dict[str, Manifest]:
    """For each set the newest artifact that answered it with the same model, problems, prompt and settings.

    Everything but the sets must be the same, and of the set everything but its overlap with the training tables, which
    changes no completion. The keys are names of inputs: `earlier/<set>`.
    """
    common = _without_sets(terms)
    found: dict[str, Manifest] = {}
    for manifest in sorted(known, key=lambda m: m.finished_at, reverse=True)[:LOOKED_AT]:
        if _without_sets(manifest.terms) != common:
            continue
        old = manifest.terms.get("sets")
        for name, wanted in terms["sets"].items():
            if isinstance(old, Mapping) and _same(old.get(name), wanted):
                found.setdefault(f"earlier/{name}", manifest)
    return found


def _without_sets(terms: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in terms.items() if key != "sets"}


def _same(old: Any, wanted: Mapping[str, Any]) -> bool:
    if not isinstance(old, Mapping):
        return False
    return {k: v for k, v in old.items() if k != "overlap"} == {k: v for k, v in wanted.items() if k != "overlap"}
