"""What a rule reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Status = Literal["failed", "note", "ok", "not_measured"]

VERDICTS = (
    "late_nan",
    "kl_explosion",
    "extraction_failed",
    "truncation_spiral",
    "length_collapse",
    "reward_hacking",
    "entropy_collapse",
    "all_correct",
    "all_wrong",
)
"""Names of the failures; a run without any is `healthy`."""


@dataclass(frozen=True)
class Finding:
    """The result of one rule.

    Attributes:
        name: the failure (one of VERDICTS), or the name of a note.
        status: failed; note (worth knowing, no failure); ok; not_measured (the log lacks what the rule needs).
        headline: one sentence with the numbers that matter; for `not_measured` what is missing.
        onset_row, onset_step: since when, as index among training rows and as logged step.
        from_start: was it so from the first rows on?
        evidence: the numbers behind the headline.
        curve: metric that shows it best.
        limit: value of the curve that the rule compared with, if there is one.
    """

    name: str
    status: Status
    headline: str = ""
    onset_row: int = 0
    onset_step: int | None = None
    from_start: bool = False
    evidence: dict[str, float] = field(default_factory=dict)
    curve: str = "reward"
    limit: float | None = None


def ok(name: str, curve: str = "reward", evidence: dict[str, float] | None = None) -> Finding:
    return Finding(name, "ok", curve=curve, evidence=evidence or {})


def missing(name: str, what: str) -> Finding:
    return Finding(name, "not_measured", headline=what)


def scarce(name: str, key: str, values: int, needed: int) -> Finding:
    """Not measured because the log has none, or fewer than `needed`, of the values of `key`: two different things to mend."""
    return missing(name, f"fewer than {needed} values of {key}" if values else f"{key} is not logged")
