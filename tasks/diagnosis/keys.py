"""Names under which GRPO metrics are logged, brought to those of TRL's trainer.

TRL logs `reward`, `reward_std`, `frac_reward_zero_std`, `rewards/<function>/mean`, `completions/mean_length` and so on.
Trackers add a prefix (`train/reward`), older releases and tutorials use other names (`completion_length`, `kl_loss`).
"""

from __future__ import annotations

import re

TRAIN_KEYS = frozenset(
    {
        "reward",
        "reward_std",
        "frac_reward_zero_std",
        "kl",
        "entropy",
        "completions/mean_length",
        "completions/min_length",
        "completions/max_length",
        "completions/clipped_ratio",
        "completions/mean_terminated_length",
        "loss",
        "grad_norm",
        "learning_rate",
        "num_tokens",
        "step_time",
        "clip_ratio/region_mean",
    }
)
"""Metrics that a training row may hold under exactly this name."""

_ALIASES = {
    "reward/mean": "reward",
    "rewards/mean": "reward",
    "mean_reward": "reward",
    "reward_mean": "reward",
    "reward/std": "reward_std",
    "kl_loss": "kl",
    "objective/kl": "kl",
    "kl_divergence": "kl",
    "completion_length": "completions/mean_length",
    "completions/length": "completions/mean_length",
    "mean_completion_length": "completions/mean_length",
    "clipped_ratio": "completions/clipped_ratio",
    "completions/truncated_ratio": "completions/clipped_ratio",
    "policy_entropy": "entropy",
    "objective/entropy": "entropy",
    "gradient_norm": "grad_norm",
    "zero_std_ratio": "frac_reward_zero_std",
    "global_step": "step",
    "train/global_step": "step",
    "_step": "step",
    "Step": "step",
}
_LONGEST = 500
"""Characters of a name; what is longer names no metric."""
_EXTREMES = ("__MIN", "__MAX")
"""Ends of the columns that W&B adds to its export of a panel: the range of what was averaged into a point."""
_PREFIX = re.compile(r"^(?:train|trainer|training)[/_.](?=.)")
_PER_FUNCTION = re.compile(r"^rewards/[^/]+(?:/(?:mean|std))?$")
_HELD_OUT = re.compile(
    r"^(?:eval|val|valid|validation|test|held_?out)[/_.].*(?:acc|pass@1|exact_match|outcomes/right$)", re.IGNORECASE
)
_NOT_A_METRIC = re.compile(r"(?:runtime|per_second|_samples|rewards?/|_std$|/std$)")


def canonical(key: str) -> str:
    """The TRL name of `key`; the key itself, stripped, when it has no other name.

    `train/` and the like are removed only where a known name remains, so `train_loss` (the summary that the trainer prints
    last) stays what it is; likewise the run's name in W&B's exports (`<run> - train/reward`). `rewards/<function>` without a
    suffix, as old releases log it, becomes `rewards/<function>/mean`.
    """
    key = key.strip()
    if len(key) > _LONGEST:
        return key
    if key in _ALIASES:
        return _ALIASES[key]
    if key in TRAIN_KEYS:
        return key
    if key.endswith(_EXTREMES):
        return key
    rest = _PREFIX.sub("", key)
    if rest != key and key != "train_loss":
        inner = canonical(rest)
        if _known(inner):
            return inner
    _, run, rest = key.rpartition(" - ")
    if run and (_known(inner := canonical(rest)) or inner == "step"):
        return inner
    if _PER_FUNCTION.match(key) and not key.endswith(("/mean", "/std")):
        return f"{key}/mean"
    return key


def _known(name: str) -> bool:
    return name in TRAIN_KEYS or name.startswith(("rewards/", "outcomes/")) or held_out_accuracy(name)


def held_out_accuracy(key: str) -> bool:
    """Does this key look like accuracy on held-out problems? `eval_reward` does not: it is the same function that is trained on."""
    return bool(_HELD_OUT.match(key)) and not _NOT_A_METRIC.search(key)


def of_training(key: str) -> bool:
    """Is this a metric of a training step, not of an evaluation?"""
    return key in TRAIN_KEYS or key.startswith(("rewards/", "completions/", "outcomes/", "groups/", "refill/"))


def is_metric(key: str) -> bool:
    """Is this a key by which a row of a training log is known?"""
    return (
        key in TRAIN_KEYS
        or key.startswith(("rewards/", "completions/", "outcomes/", "eval_"))
        or held_out_accuracy(key)
    )
