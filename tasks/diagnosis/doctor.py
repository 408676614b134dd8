"""From a training log to one named cause, its evidence and the first thing to do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tasks.diagnosis.advice import ADVICE
from tasks.diagnosis.completions import Sample, copies, sampled, telling
from tasks.diagnosis.dead_groups import unjudged_constant
from tasks.diagnosis.findings import Finding
from tasks.diagnosis.formats import read_groups
from tasks.diagnosis.ranking import rank
from tasks.diagnosis.readers import read_log
from tasks.diagnosis.render import render_html, render_text
from tasks.diagnosis.rows import Row
from tasks.diagnosis.rules import RULES
from tasks.diagnosis.run_info import RunInfo
from tasks.diagnosis.series import FLAT_ROWS, MIN_ROWS, Run
from tasks.errors import DataError
from tasks.grpo.remedies import suggestions

__all__ = ["Curve", "Diagnosis", "diagnose", "diagnose_rows", "render_html", "render_text"]


@dataclass(frozen=True)
class Curve:
    """The telling curve: metric name, steps, values (None where not finite), the rule's limit and the onset, if any."""

    key: str
    steps: tuple[int, ...] = ()
    values: tuple[float | None, ...] = ()
    limit: float | None = None
    onset_step: int | None = None


@dataclass(frozen=True)
class Diagnosis:
    """The verdict on a run.

    Attributes:
        verdict: `healthy` or one of `findings.VERDICTS`.
        conclusive: False when the log has too few rows with a reward to say anything (the verdict is then `healthy`).
        headline: the cause in one sentence, with its numbers.
        title: the verdict in plain words.
        onset_step: since when (a row number when the log has no steps, see `steps_known`). from_start: from the first rows on?
        first_step: what to look at or do first. knob: the one setting to turn.
        remedies: what a run of this pipeline would try by itself, in order (`tasks.grpo.remedies`); a doctor only suggests it.
        evidence: numbers behind the headline.
        also: other failures that apply: consequences, or faults of their own that can wait.
        notes: worth knowing, no failures; name and sentence.
        completions: a few sampled ones to read, where some lie beside the log; `step`, `reward`, `completion`.
        not_measured: checks that the log does not allow, with what is missing.
        passed: checks that were made and found nothing.
    """

    verdict: str
    headline: str
    title: str = ""
    conclusive: bool = True
    onset_step: int | None = None
    from_start: bool = False
    first_step: str = ""
    knob: str = ""
    remedies: tuple[str, ...] = ()
    evidence: dict[str, float] = field(default_factory=dict)
    also: tuple[dict[str, Any], ...] = ()
    notes: tuple[dict[str, str], ...] = ()
    completions: tuple[dict[str, Any], ...] = ()
    not_measured: tuple[dict[str, str], ...] = ()
    passed: tuple[str, ...] = ()
    rows: int = 0
    last_step: int | None = None
    steps_known: bool = True
    curve: Curve = Curve("reward")

    @property
    def name(self) -> str:
        """The verdict for people: a log that is too short to judge is not called healthy."""
        return self.verdict if self.conclusive else "not judged"

    @property
    def failed(self) -> bool:
        return self.verdict != "healthy"

    def to_json(self) -> dict[str, Any]:
        """Plain data for `json.dumps`; numbers are finite or None."""
        data = asdict(self)
        data["evidence"] = {key: _finite(value) for key, value in self.evidence.items()}
        return data


def _finite(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None


def diagnose(path: str | Path, info: RunInfo | None = None, *, groups: str | Path | None = None) -> Diagnosis:
    """Diagnose a log, file or folder, of any form that `readers.read_log` knows.

    Args:
        path: the log.
        info: what is known about the run; without it the rules use published reward values and what the log itself says.
        groups: JSON lines with the rewards of single groups, for logs that lack `frac_reward_zero_std`.

    Raises:
        DataError: the log cannot be read, or holds no GRPO rows.
    """
    rows = read_log(path)
    if groups is not None:
        rows = _with_groups(rows, read_groups(groups))
    if not any("reward" in row for row in rows):
        raise DataError(
            "no row holds a reward: this is not the log of a GRPO run",
            where=str(path),
            fix="give the GRPO stage's log, not SFT's",
        )
    return _with_completions(diagnose_rows(rows, info), sampled(Path(path)))


def _with_completions(found: Diagnosis, samples: list[Sample]) -> Diagnosis:
    """Add what the completions beside the log show, if the run has failed."""
    if not found.failed or not samples:
        return found
    share = copies(samples)
    evidence = found.evidence if share is None else {**found.evidence, "copies_among_sampled": share}
    return replace(found, evidence=evidence, completions=tuple(telling(samples, found.verdict)))


def _with_groups(rows: list[Row], groups: list[Row]) -> list[Row]:
    """Add what the groups say to the rows of the same step, where a row lacks it."""
    by_step = {row["step"]: row for row in groups}
    return [{**by_step.get(row["step"], {}), **row} if "reward" in row else row for row in rows]


def diagnose_rows(rows: Sequence[Row], info: RunInfo | None = None) -> Diagnosis:
    """The same for rows in memory (as `readers` return them: canonical names, a `step` each)."""
    run = Run(rows, info or RunInfo())
    findings = [rule(run) for rule in RULES]
    ranked = rank(findings, len(run.train))
    starving = not ranked and any(f.name == "dead_groups" and f.status == "note" for f in findings)
    count = len(run.train)
    common: dict[str, Any] = {
        "notes": tuple({"name": f.name, "text": f.headline} for f in findings if f.status == "note"),
        "not_measured": tuple({"check": f.name, "missing": f.headline} for f in findings if f.status == "not_measured"),
        "passed": tuple(f.name for f in findings if f.status == "ok"),
        "rows": count,
        "last_step": run.train[-1]["step"] if run.train else None,
        "steps_known": run.steps_known,
    }
    if ranked:
        head = ranked[0]
        advice = ADVICE[head.name]
        return Diagnosis(
            head.name,
            head.headline,
            advice.title,
            onset_step=head.onset_step,
            from_start=head.from_start,
            first_step=advice.first_step,
            knob=advice.knob,
            remedies=suggestions(head.name, head.from_start),
            evidence=head.evidence,
            also=tuple({"name": f.name, "text": f.headline, "onset_step": f.onset_step} for f in ranked[1:]),
            curve=_curve(run, head),
            **common,
        )
    unjudged = _too_little(run)
    if unjudged:
        title = "Too early to tell" if count < MIN_ROWS else "Too little to tell"
        return Diagnosis("healthy", unjudged, title, False, curve=_curve(run, None), **common)
    return Diagnosis(
        "healthy",
        _healthy_headline(run),
        ADVICE["healthy"].title,
        remedies=suggestions("dead_groups", False) if starving else (),
        curve=_curve(run, None),
        **common,
    )


def _too_little(run: Run) -> str:
    """What a run without findings lacks to be called healthy; empty when it can be."""
    count, reward = len(run.train), run.series("reward")
    if count < MIN_ROWS:
        return f"{count} logged row{'s' if count != 1 else ''}: too few to judge, {MIN_ROWS} are needed"
    if not reward.enough:
        return f"{len(reward)} of {count} rows have a value of the reward: too few to judge, {MIN_ROWS} are needed"
    if unjudged_constant(run):
        return (
            f"the reward is {reward.recent:.3g} in all {len(reward)} rows and neither reward_std nor frac_reward_zero_std is logged: "
            f"too few to judge, {FLAT_ROWS} such rows are a dead run"
        )
    return ""


def _healthy_headline(run: Run) -> str:
    reward = run.series("reward")
    change = run.reward_change()
    moved = "rose" if change > 0 else "fell" if change < 0 else "is about where it was"
    values = f": {reward.early:.3g} to {reward.recent:.3g}"
    return f"no failure found in {len(run.train)} rows; the reward {moved}{values}"


def _curve(run: Run, finding: Finding | None) -> Curve:
    key = finding.curve if finding else "reward"
    rows: Sequence[Row] = run.rows if key == run.accuracy_key else run.train
    points = [(row["step"], row[key]) for row in rows if key in row]
    values = tuple(v if v is not None and math.isfinite(v) else None for _, v in points)
    limit = finding.limit if finding else None
    return Curve(key, tuple(step for step, _ in points), values, limit, finding.onset_step if finding else None)
