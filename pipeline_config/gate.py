"""The format gate between SFT and GRPO."""

from __future__ import annotations

from pydantic import Field

from pipeline_config.base import Section


class GateSettings(Section):
    """May GRPO start from this SFT model? The stage measures; the thresholds here act on what it measured, and resample nothing."""

    enabled: bool = True
    """Off skips the gate; GRPO then starts from whatever SFT produced."""
    prompts: int = Field(64, ge=4, le=10_000)
    """Prompts that GRPO will train on and SFT has not seen, each sampled `grpo.num_generations` times; where there are too few of these,
    the rest comes from the gate's own table, which neither trains on."""
    early_stop: bool = True
    """Look at the samples up to three times on the way, and stop when they already decide (see docs/gate.md)."""
    min_format_rate: float = Field(0.8, ge=0.0, le=1.0)
    """The Wilson 95 % lower bound of the whole-format rate must reach this."""
    max_truncation_rate: float = Field(0.3, ge=0.0, le=1.0)
    """Largest share of completions that may hit `grpo.max_completion_length`."""
    max_dead_groups: float = Field(0.9, ge=0.0, le=1.0)
    """Largest share of groups whose rewards are all equal (they give no gradient)."""
    max_sft_rounds: int = Field(2, ge=0, le=20)
    """More SFT rounds that a run may add when the format is being learnt but not there yet (verdict `more_sft`); each is followed by
    another look. 0 refuses at once."""
    sft_round_steps: int | None = Field(None, ge=1, le=10_000_000)
    """Optimizer steps of such a round, from the merged model of the one before; unset means as many as SFT itself had."""
    wanted_dead_groups: float = Field(0.5, ge=0.0, le=1.0)
    """A group size serves when its forecast share of dead groups is at most this: half of the rollouts then teach. Advice only."""
