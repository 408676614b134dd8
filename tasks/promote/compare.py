"""The promotion rule: two models' answers to the same frozen problems, compared in pairs. Pure but for reading items.

Superiority: among the problems that the two models answer differently, the new one is right on so many that equal models
would reach it with probability below alpha (exact one-sided McNemar test). Non-inferiority: the upper end of the
one-sided 1 - alpha score interval of the loss (Tango 1998) is at most the margin. A first model has nothing to be compared
with; the lower end of the 95 % Wilson interval of its strict accuracy must exceed a floor.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

from artifacts.manifest import Manifest
from artifacts.store import Store
from pipeline_config.evaluation import HELD_OUT
from pipeline_config.promotion import PromotionConfig
from tasks.errors import DataError
from tasks.process.jsonio import read_rows
from tasks.statistics import mcnemar_exact, mcnemar_worse, paired_loss_interval, wilson


@dataclass(frozen=True)
class Answers:
    """Strict verdicts of one model by problem, and the frozen spec that they were obtained under."""

    spec: str
    right: Mapping[str, bool]

    @property
    def accuracy(self) -> dict[str, Any]:
        """Strict accuracy with n and its 95 % Wilson interval."""
        n, hits = len(self.right), sum(self.right.values())
        low, high = wilson(hits, n)
        return {"n": n, "right": hits, "rate": hits / n if n else 0.0, "low": low, "high": high}


@dataclass(frozen=True)
class Comparison:
    """The second model against the first on the same problems.

    Attributes:
        gain: (gained - lost) / n, with its two-sided 95 % score interval `low` to `high`.
        p: exact two-sided McNemar.
        p_better: exact one-sided p of "not better".
        worst_loss: upper end of the one-sided 1 - alpha interval of the loss.
    """

    n: int
    gained: int
    lost: int
    gain: float
    low: float
    high: float
    p: float
    p_better: float
    worst_loss: float


def answers_of(store: Store, evaluation: Manifest, name: str = HELD_OUT) -> Answers | None:
    """What an evaluation artifact says about its model on the set `name`; None when it was not asked that set, or before
    evaluations had a frozen spec.

    Raises:
        DataError: its files cannot be read.
    """
    folder = store.local_folder(evaluation)
    where = f"{evaluation.stage}/{evaluation.fingerprint[:16]}, set {name}"
    try:
        scores = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
        if name != HELD_OUT:
            scores, folder = scores.get("sets", {}).get(name), folder / "sets" / name
        if not scores or "spec" not in scores:
            return None
        items = read_rows(folder / "items.jsonl")
        # Greedy answers do not depend on how others are sampled.
        return Answers(scores["spec"]["greedy_digest"], {str(item["id"]): bool(item["right"]) for item in items})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"cannot be read: {error!r}", where=where, fix="run the evaluation again") from error


def comparable(first: Answers, second: Answers) -> bool:
    """Whether both were asked the same problems under the same spec."""
    return first.spec == second.spec and first.right.keys() == second.right.keys() and bool(first.right)


def compare(before: Answers, after: Answers, alpha: float) -> Comparison:
    """Paired comparison on the problems that both were asked.

    Worked example: of 400 problems 12 were right only after and 3 only before: a gain of 9/400 = 2.25 points,
    p_better = P(X >= 12), X ~ Binomial(15, 1/2) = 576 / 32768 = 0.0176.

    Raises:
        ValueError: they are not `comparable`.
    """
    if not comparable(before, after):
        raise ValueError("the two models were not asked the same problems in the same way")
    gained = sum(after.right[key] and not was for key, was in before.right.items())
    lost = sum(was and not after.right[key] for key, was in before.right.items())
    n = len(before.right)
    low, high = paired_loss_interval(gained, lost, n)
    worst = paired_loss_interval(gained, lost, n, NormalDist().inv_cdf(1 - alpha))[1]
    p_better = mcnemar_worse(gained=lost, lost=gained)
    return Comparison(n, gained, lost, (gained - lost) / n, -high, -low, mcnemar_exact(gained, lost), p_better, worst)


def is_better(found: Comparison, alpha: float) -> bool:
    """Superiority at `alpha`."""
    return found.p_better < alpha


def is_not_worse(found: Comparison, margin: float) -> bool:
    """Non-inferiority by `margin`."""
    return found.worst_loss <= margin


def judge(
    after: Answers, before: Answers | None, anchor: Answers | None, settings: PromotionConfig
) -> tuple[bool, str, str, dict[str, Any]]:
    """Apply the rule.

    Args:
        after: the new model's answers.
        before: production's, comparable with `after`; None when nothing is in production.
        anchor: those of the newest version that was shown to be better; None when it is production, or not comparable.

    Returns:
        (promote, reason, sentence, evidence).
    """
    accuracy = after.accuracy
    evidence: dict[str, Any] = {
        "rule": settings.rule,
        "alpha": settings.alpha,
        "spec": after.spec,
        "accuracy": accuracy,
    }
    if before is None:
        evidence |= {"rule": "floor", "floor": settings.floor}
        good = accuracy["n"] > 0 and accuracy["low"] > settings.floor
        text = (
            f"the first model: strict accuracy {accuracy['rate']:.1%} on {accuracy['n']} problems, lower bound "
            f"{accuracy['low']:.1%} {'>' if good else 'is not above'} the floor {settings.floor:.1%}"
        )
        return good, "above_floor" if good else "below_floor", text, evidence
    found = compare(before, after, settings.alpha)
    evidence |= {"production_accuracy": before.accuracy, "comparison": asdict(found)}
    counts = f"{found.gained} gained and {found.lost} lost of {found.n} problems ({found.gain * 100:+.1f} points"
    counts += f" [{found.low * 100:+.1f}, {found.high * 100:+.1f}]"
    if is_better(found, settings.alpha):
        return True, "better", f"{counts}, one-sided p = {found.p_better:.3g} < {settings.alpha})", evidence
    if settings.rule == "superiority":
        text = f"{counts}, one-sided p = {found.p_better:.3g}, needed < {settings.alpha})"
        return False, "not_better", text, evidence
    evidence["margin"] = settings.margin
    text = f"{counts}, a loss of at most {found.worst_loss:.1%}, allowed {settings.margin:.1%})"
    if not is_not_worse(found, settings.margin):
        return False, "may_be_worse", text, evidence
    if anchor is not None:
        drift = compare(anchor, after, settings.alpha)
        evidence["anchor_comparison"] = asdict(drift)
        if not is_not_worse(drift, settings.margin):
            text += f"; but against the last clear gain a loss of up to {drift.worst_loss:.1%} is possible"
            return False, "drifted", text, evidence
    return True, "not_worse", text, evidence
