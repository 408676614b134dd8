"""Between SFT and GRPO: the format gate, and the choice of training prompts."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

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


class PassRateSettings(Section):
    """Choosing the training prompts that can teach, by how often the SFT model solves them: stages `pass_rates` and `selection`."""

    enabled: Literal["auto", "on", "off"] = "auto"
    """`auto` is on where vLLM samples, and off elsewhere, where sampling is dear (docs/gate.md says what it costs)."""
    samples: int = Field(4, ge=2, le=256)
    """Completions per prompt, at GRPO's sampling settings."""
    max_prompts: int = Field(2048, ge=8, le=10_000_000)
    """Most prompts measured, the first of the training table; those behind are set aside unmeasured."""
    low: float = Field(0.1, ge=0.0, le=1.0)
    """Lowest pass rate that is kept. With 4 samples, 0.1 to 0.9 keeps one to three right: a group of these can hold both."""
    high: float = Field(0.9, ge=0.0, le=1.0)
    """Highest pass rate that is kept."""
    min_kept: int = Field(64, ge=1, le=10_000_000)
    """When fewer prompts are in the band, it is widened on both sides, to the next measured rates, until this many are."""

    @model_validator(mode="after")
    def _ordered(self) -> PassRateSettings:
        if self.low > self.high:
            raise ValueError(f"low = {self.low} is above high = {self.high}")
        return self
