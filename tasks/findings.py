"""A finding: what a check saw, and what to do about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.table import Table

Status = Literal["ok", "warn", "fail", "not_measured"]


@dataclass(frozen=True)
class Finding:
    """The result of one check; `not_measured` is an honest answer, never `ok` by default."""

    name: str
    """Machine-readable name of the check."""
    status: Status
    evidence: str
    """What was seen, with the numbers or texts that show it."""
    fix: str = ""
    """What the user can do; empty when nothing is needed."""


_STYLE = {"ok": "green", "warn": "yellow", "fail": "bold red", "not_measured": "dim"}


def counts(findings: Sequence[Finding]) -> dict[str, int]:
    """How many findings have each status."""
    number = Counter(finding.status for finding in findings)
    return {status: number[status] for status in ("ok", "warn", "fail", "not_measured")}


def table(findings: Sequence[Finding], title: str) -> Table:
    """The findings as a rich table: status, check, evidence, what to do."""
    from rich.markup import escape
    from rich.table import Table

    shown = ", ".join(f"{number} {status.replace('_', ' ')}" for status, number in counts(findings).items() if number)
    fixes = any(finding.fix for finding in findings)
    made = Table(title=f"{title}: {shown or 'nothing was checked'}")
    made.add_column("status", no_wrap=True)
    made.add_column("check", overflow="fold", ratio=2)
    made.add_column("evidence", overflow="fold", ratio=5)
    if fixes:
        made.add_column("what to do", overflow="fold", ratio=3)
    for finding in findings:
        status = f"[{_STYLE[finding.status]}]{finding.status.replace('_', ' ')}[/]"
        cells = [status, escape(finding.name), escape(finding.evidence)]
        made.add_row(*cells, *([escape(finding.fix)] if fixes else []))
    return made
