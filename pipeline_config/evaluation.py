"""The frozen evaluation that scores every model of a run."""

from __future__ import annotations

from pydantic import Field

from pipeline_config.base import Section


class EvaluationConfig(Section):
    """Base, SFT and GRPO are scored on the same held-out problems with the same prompt and sampler."""

    baseline: bool = True
    """Score the base model too, so that the gain of SFT is known."""
    problems: int = Field(200, ge=1, le=1_000_000)
    """Held-out problems, at most what the dataset stage kept for evaluation."""
    samples: int = Field(0, ge=0, le=1024)
    """Completions per problem at `grpo.temperature` for pass@1; 0 leaves only the greedy one."""
    max_new_tokens: int | None = Field(None, ge=4, le=1_048_576)
    """Longest completion; unset means `grpo.max_completion_length`."""
    batch_size: int = Field(64, ge=1, le=65_536)
    """Completions sampled at once without vLLM. Does not change greedy results."""
