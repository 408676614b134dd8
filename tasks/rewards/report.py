"""The result of a reward audit: findings with their evidence, as a table for people and as JSON for machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tasks.findings import Finding
from tasks.rewards.cases import Case

if TYPE_CHECKING:
    from rich.table import Table

_STYLE = {"ok": "green", "warn": "yellow", "fail": "bold red", "not_measured": "dim"}
_MAX_PAIRS = 20


@dataclass(frozen=True)
class Row:
    """One case and what it was paid.

    Attributes:
        gold: of the problem.
        case: the completion.
        values: function -> value; None where it failed or does not apply.
        total: weighted sum in a batch with the other cases; None when nothing could be scored.
        alone: the same, in a batch of its own.
        seconds: time of that second call.
        errors: function -> what went wrong.
    """

    gold: str
    case: Case
    values: Mapping[str, float | None]
    total: float | None
    alone: float | None
    seconds: float
    errors: Mapping[str, str]

    @property
    def score(self) -> float:
        """The total of a row that has one."""
        assert self.total is not None
        return self.total

    def label(self) -> str:
        """Family, name and gold."""
        return f"{self.case.family.value}: {self.case.name}, gold {self.gold}"

    def to_json(self) -> dict[str, Any]:
        return {
            "gold": self.gold,
            "family": self.case.family.value,
            "case": self.case.name,
            "completion": self.case.completion[:500],
            "total": self.total,
            "values": dict(self.values),
            "errors": dict(self.errors),
        }


@dataclass(frozen=True)
class Pair:
    """Two cases of one problem in the wrong order: `better` should be paid more (or no less) than `worse`."""

    better: Row
    worse: Row

    @property
    def gap(self) -> float:
        """How much more the worse one gets."""
        return self.worse.score - self.better.score

    def sentence(self) -> str:
        """For example: [wrong: wrong '8.7'] gets 2 but [right: spelling '8 apples'] gets 0.5 (gold 8)."""
        worse, better = (f"[{row.case.family.value}: {row.case.name}]" for row in (self.worse, self.better))
        if self.gap == 0:
            return f"{worse} gets {self.worse.total:g} and {better} no more (gold {self.better.gold})"
        return f"{worse} gets {self.worse.total:g} but {better} gets {self.better.total:g} (gold {self.better.gold})"

    def to_json(self) -> dict[str, Any]:
        return {"better": self.better.to_json(), "worse": self.worse.to_json(), "gap": self.gap}


@dataclass(frozen=True)
class AuditReport:
    """Findings in the order of the checks, all cases, the functions' names, and the wrongly ordered pairs per check."""

    findings: Sequence[Finding]
    rows: Sequence[Row]
    functions: Sequence[str]
    pairs: Mapping[str, Sequence[Pair]]

    @property
    def passed(self) -> bool:
        """No check failed; warnings pass, and so does what could not be measured because another check failed."""
        return all(finding.status != "fail" for finding in self.findings)

    def finding(self, name: str) -> Finding:
        """The finding of one check."""
        return next(finding for finding in self.findings if finding.name == name)

    def to_json(self) -> dict[str, Any]:
        """Everything, with at most 20 pairs per check."""
        return {
            "passed": self.passed,
            "functions": list(self.functions),
            "findings": [
                {**asdict(finding), "pairs": [pair.to_json() for pair in self.pairs[finding.name][:_MAX_PAIRS]]}
                for finding in self.findings
            ],
            "cases": [row.to_json() for row in self.rows],
        }


def render(report: AuditReport) -> Table:
    """The findings as a rich table."""
    from rich.markup import escape
    from rich.table import Table

    verdict = "passed" if report.passed else "failed"
    table = Table(title=f"Reward audit of {', '.join(report.functions)}: {verdict}", show_lines=True)
    for column in ("check", "status", "evidence", "what to do"):
        table.add_column(column, overflow="fold")
    for finding in report.findings:
        status = f"[{_STYLE[finding.status]}]{finding.status.replace('_', ' ')}[/]"
        table.add_row(finding.name, status, escape(finding.evidence), escape(finding.fix))
    return table


def render_cases(report: AuditReport, gold: str | None = None) -> Table:
    """What each case was paid, highest first, for one gold (the first when None) as a rich table."""
    from rich.markup import escape
    from rich.table import Table

    shown = report.rows[0].gold if gold is None and report.rows else gold
    table = Table(title=f"Cases with gold {shown}")
    for column in ("family", "case", "total", *report.functions):
        table.add_column(column, overflow="fold")
    rows = [row for row in report.rows if row.gold == shown]
    for row in sorted(rows, key=lambda row: (row.total is None, -(row.total or 0.0))):
        values = ["error" if name in row.errors else _shown(row.values[name]) for name in report.functions]
        table.add_row(row.case.family.value, escape(row.case.name), _shown(row.total), *values)
    return table


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"
