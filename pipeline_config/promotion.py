"""When a newly trained model replaces the one in production."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipeline_config.base import Section


class PromotionConfig(Section):
    """The rule by which `grpo-pipeline models promote` and a scheduled retraining decide. Changes no stage's result."""

    name: str = Field("", pattern=r"^([a-z0-9][a-z0-9._-]{0,63})?$")
    """Name in the registry; empty means that of the base model."""
    rule: Literal["superiority", "non_inferiority"] = "superiority"
    """`superiority`: strict accuracy is significantly better than production's on the same problems (exact one-sided
    McNemar, p < alpha). `non_inferiority`: a loss of more than `margin` is ruled out (one-sided 1 - alpha score interval)."""
    eval_set: str = Field("held_out", pattern=r"^[a-z0-9][a-z0-9_-]{0,47}$")
    """Evaluation set that decides. A set of `evaluation.sets` stays the same when the training data change."""
    alpha: float = Field(0.05, gt=0.0, lt=0.5)
    """Error rate of the rule: how often a model that is no better (or is worse by `margin`) is promoted."""
    margin: float = Field(0.02, gt=0.0, lt=1.0)
    """Largest acceptable loss of strict accuracy under `non_inferiority` (0.02 is two points)."""
    floor: float = Field(0.1, ge=0.0, lt=1.0)
    """Strict accuracy that the first model of a name must exceed with the lower end of its 95 % interval."""
