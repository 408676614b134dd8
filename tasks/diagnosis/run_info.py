"""What is known about a run beside its log: settings, and what each reward function pays for which outcome.

All of it is optional. Values declared here are facts about the functions and never guessed from the run's own minimum and
maximum: a run that is stuck at one value would make that value both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline_config.rewards import PRESET_NAMES
from pipeline_config.training import GRPOSettings
from tasks.diagnosis.rows import number
from tasks.errors import DataError


@dataclass(frozen=True)
class RewardOutcomes:
    """What one reward function pays.

    Attributes:
        no_match: no answer could be extracted, or the format is broken.
        wrong: well formed and wrong.
        correct: well formed and right.
        minimum, maximum: its range; taken from the three values when not given.
        weight: factor in the sum of rewards.
    """

    no_match: float | None = None
    wrong: float | None = None
    correct: float | None = None
    minimum: float | None = None
    maximum: float | None = None
    weight: float = 1.0

    @property
    def known(self) -> bool:
        """Are all three outcomes declared?"""
        return None not in (self.no_match, self.wrong, self.correct)

    @property
    def low(self) -> float | None:
        values = [v for v in (self.minimum, self.no_match, self.wrong, self.correct) if v is not None]
        return min(values, default=None)

    @property
    def high(self) -> float | None:
        values = [v for v in (self.maximum, self.no_match, self.wrong, self.correct) if v is not None]
        return max(values, default=None)


@dataclass(frozen=True)
class RunInfo:
    """Settings of a run; anything may be left out.

    Attributes:
        rewards: per function name (as in `rewards/<name>/mean`), what it pays.
        num_generations: completions a group.
        beta: weight of the KL term; 0 means that no KL is logged.
        max_completion_length: cap in tokens.
        accuracy_key: metric with the accuracy on held-out problems; found by its name when not given.
        temperature: of the rollouts.
        fp16: trained with a loss scaler, which skips steps whose gradient overflows? In bf16 and fp32 nothing is skipped, so that one
            gradient that is not finite has ruined the weights.
    """

    rewards: Mapping[str, RewardOutcomes] = field(default_factory=dict)
    num_generations: int | None = None
    beta: float | None = None
    max_completion_length: int | None = None
    accuracy_key: str | None = None
    temperature: float | None = None
    fp16: bool | None = None


KNOWN_FUNCTIONS: dict[str, RewardOutcomes] = {
    # The "Qwen3 GRPO" tutorials' functions; the approximate format pays 0.5 a tag found once and -1 otherwise.
    "match_format_exactly": RewardOutcomes(0.0, 3.0, 3.0),
    "match_format_approximately": RewardOutcomes(-3.0, 1.5, 1.5),
    "check_answer": RewardOutcomes(-2.0, -2.5, 5.0, minimum=-4.5),
    "check_numbers": RewardOutcomes(-2.5, -1.5, 3.5),
    # TRL's own (trl.rewards).
    "accuracy_reward": RewardOutcomes(0.0, 0.0, 1.0),
    "reasoning_accuracy_reward": RewardOutcomes(0.0, 0.0, 1.0),
    "think_format_reward": RewardOutcomes(0.0, 1.0, 1.0),
    # This pipeline's default.
    "sound": RewardOutcomes(0.0, 0.25, 1.0),
}
"""Functions whose values are published; used when the log shows their name and the run declares nothing."""


KEYS = (
    "rewards",
    "reward_functions",
    "num_generations",
    "beta",
    "max_completion_length",
    "accuracy_key",
    "temperature",
    "fp16",
)
FUNCTION_KEYS = ("no_match", "wrong", "correct", "min", "max", "weight")


def from_mapping(data: Mapping[str, Any], *, strict: bool = False) -> RunInfo:
    """RunInfo from plain data, as in a JSON file: the attributes' names, with `reward_functions` accepted for `rewards`.

    Per function: `no_match`, `wrong`, `correct`, `min`, `max`, `weight`. Other keys are left out, or refused if `strict`.

    Raises:
        DataError: a value is not of its kind, or (strict) a key is unknown; names the field.
    """
    if strict:
        _refuse_unknown(data, KEYS, "")
    declared = data.get("rewards") or data.get("reward_functions") or {}
    if not isinstance(declared, Mapping):
        raise DataError("must map function names to what they pay", where="rewards")
    rewards = {}
    for name, values in declared.items():
        if not isinstance(values, Mapping):
            raise DataError("must be an object with no_match, wrong and correct", where=f"rewards.{name}")
        if strict:
            _refuse_unknown(values, FUNCTION_KEYS, f"rewards.{name}.")
        rewards[str(name)] = RewardOutcomes(
            no_match=_optional(values, "no_match", name),
            wrong=_optional(values, "wrong", name),
            correct=_optional(values, "correct", name),
            minimum=_optional(values, "min", name),
            maximum=_optional(values, "max", name),
            weight=_optional(values, "weight", name) if values.get("weight") is not None else 1.0,  # type: ignore[arg-type]
        )
    generations, longest = _optional(data, "num_generations"), _optional(data, "max_completion_length")
    key, fp16 = data.get("accuracy_key"), data.get("fp16")
    if key is not None and not isinstance(key, str):
        raise DataError(f"{key!r} is no name of a metric", where="accuracy_key")
    if fp16 is not None and not isinstance(fp16, bool):
        raise DataError(f"{fp16!r} is neither true nor false", where="fp16")
    return RunInfo(
        rewards=rewards,
        num_generations=None if generations is None else int(generations),
        beta=_optional(data, "beta"),
        max_completion_length=None if longest is None else int(longest),
        accuracy_key=key or None,
        temperature=_optional(data, "temperature"),
        fp16=fp16,
    )


def _refuse_unknown(data: Mapping[str, Any], known: Sequence[str], owner: str) -> None:
    for key in data:
        if key not in known:
            raise DataError("is not known", where=f"{owner}{key}", fix=f"known are {', '.join(known)}")


def from_settings(settings: GRPOSettings, accuracy_key: str | None = None) -> RunInfo:
    """RunInfo of a run of this pipeline."""
    rewards = {}
    if settings.rewards.preset == "sound" and settings.rewards.overlong_penalty is None:
        right, form = settings.rewards.right, settings.rewards.format_weight
        rewards["sound"] = RewardOutcomes(0.0, form * right, right)
    elif settings.rewards.preset == "self_llm":
        rewards = {name: KNOWN_FUNCTIONS[name] for name in PRESET_NAMES["self_llm"]}
    return RunInfo(
        rewards=rewards,
        num_generations=settings.num_generations,
        beta=settings.beta,
        max_completion_length=settings.max_completion_length,
        accuracy_key=accuracy_key,
        temperature=settings.temperature,
        fp16=False,
    )


def _optional(data: Mapping[str, Any], key: str, owner: object = "") -> float | None:
    value = data.get(key)
    if value is None:
        return None
    parsed = None if isinstance(value, str) else number(value)
    if parsed is None or not math.isfinite(parsed):
        raise DataError(f"{value!r} is no number", where=f"rewards.{owner}.{key}" if owner else key)
    return parsed
