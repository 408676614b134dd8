"""What a completion is paid for, and what happens when a reward function fails."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from pipeline_config.base import Section

FunctionPath = Annotated[
    str, StringConstraints(max_length=500, pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")
]
MetricName = Annotated[str, StringConstraints(max_length=80, pattern=r"^[A-Za-z_][\w.-]*$")]

PRESET_NAMES: dict[str, tuple[str, ...]] = {
    "sound": ("sound",),
    "self_llm": ("match_format_exactly", "match_format_approximately", "check_answer", "check_numbers"),
}
"""Names under which a preset's functions are logged (`rewards/<name>/mean`)."""


class RewardFunction(Section):
    """A reward function of your own, with TRL's signature; sync or async."""

    path: FunctionPath
    """`package.module:function`; the module must be importable from the working directory."""
    weight: float = Field(1.0, ge=0.0, le=1000.0)
    """Factor in the sum of rewards; 0 only logs it."""
    name: MetricName | None = None
    """Name in the metrics; the function's own when unset."""
    maximum: float | None = Field(None, ge=-1e6, le=1e6)
    """Largest value: the audit checks that a gold answer gets it. Unset: nothing may get more than a gold answer."""
    allow_none: bool = False
    """A None means `does not apply to this row` (TRL's meaning) and is not counted as an error."""

    @property
    def label(self) -> str:
        """Name in the metrics."""
        return self.name or self.path.rpartition(":")[2].rpartition(".")[2]


class OverlongPenalty(Section):
    """A soft cap on length, after DAPO (arXiv 2503.14476, eq. 13), but as a factor, so that it never changes an order.

    The reward is multiplied by 1 - max_penalty * (length - start * cap) / (cap - start * cap) past the soft cap,
    where cap is `grpo.max_completion_length` and lengths are in tokens.
    """

    start: float = Field(0.8, gt=0.0, lt=1.0)
    """Share of the longest completion from which the penalty grows."""
    max_penalty: float = Field(0.3, gt=0.0, lt=1.0)
    """Share of the reward that is lost at the longest completion."""


class RewardConfig(Section):
    """A preset, your own functions, or both; their weighted sum is the reward."""

    preset: Literal["sound", "self_llm"] | None = "sound"
    """`sound`: right > wrong, well-formed > malformed. `self_llm`: the tutorial's functions and values."""
    functions: tuple[RewardFunction, ...] = Field((), max_length=32)
    """Your own functions, after the preset's."""
    right: float = Field(1.0, ge=0.01, le=100.0)
    """sound: reward of a right, well-formed completion; the settings below are shares of it."""
    format_weight: float = Field(0.25, ge=0.0, lt=0.5)
    """sound: share paid for the format alone, which is what a wrong well-formed completion gets. Below one half, so
    that the format never outranks being right."""
    overlong_penalty: OverlongPenalty | None = None
    """sound: soft cap on length; off by default."""
    proximity: float = Field(0.0, ge=0.0, lt=0.5)
    """sound: share paid on top to a wrong number close to the gold, falling linearly to 0 at 20 %. Off by default."""
    exact_match: bool = False
    """self_llm: also pay 3.0 for the exact format (off in the tutorial's notebook)."""
    max_error_rate: float = Field(0.1, ge=0.0, le=1.0)
    """The run stops when more than this share of the last completions (64 to 256) could not be scored."""
    timeout_s: float = Field(20.0, ge=0.1, le=3600.0)
    """Seconds that one of your own functions may take for one batch before it is killed and restarted."""

    @model_validator(mode="after")
    def _right_outranks_wrong(self) -> RewardConfig:
        penalty = self.overlong_penalty.max_penalty if self.overlong_penalty else 0.0
        lowest_right = (1 - self.format_weight) * (1 - penalty)
        highest_wrong = self.format_weight + self.proximity
        if lowest_right <= highest_wrong:
            raise ValueError(
                f"a wrong completion could get {highest_wrong:g} of the reward (format_weight + proximity) "
                f"and a right one only {lowest_right:g} ((1 - format_weight) x (1 - overlong_penalty.max_penalty)): "
                "lower one of the three"
            )
        return self

    @model_validator(mode="after")
    def _named_once(self) -> RewardConfig:
        names = [*(PRESET_NAMES[self.preset] if self.preset else ()), *(f.label for f in self.functions)]
        if not names:
            raise ValueError("no reward at all: set `preset`, or name at least one function in `functions`")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two reward functions are named {', '.join(twice)}: give one of them another `name`")
        if not self.preset and all(f.weight == 0 for f in self.functions):
            raise ValueError("every function has weight 0: no completion would be paid for anything")
        return self
