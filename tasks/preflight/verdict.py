"""What a preflight found: as JSON in its artifact, as a table, and as the error that stops a run. No torch."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.errors import ConfigError, DataError, ModelError, PipelineError, StoreError
from tasks.findings import Finding

if TYPE_CHECKING:
    from rich.table import Table

FINDINGS_FILE = "findings.json"

GROUPS: dict[str, type[PipelineError]] = {
    "config": ConfigError,
    "tokenizer": ModelError,
    "data": DataError,
    "rewards": ConfigError,
    "memory": ConfigError,
    "disk": StoreError,
    "export": ModelError,
}
"""Groups of checks in the order in which they are shown, and the error (and exit code) of a fail. A finding whose name
begins with another group's has that group's error."""

_STYLE = {"ok": "green", "warn": "yellow", "fail": "bold red", "not_measured": "dim"}

Findings = Mapping[str, Sequence[Finding]]
"""Group -> its findings."""


def in_order(found: Findings) -> list[tuple[str, Finding]]:
    """(group, finding) in the order of the groups."""
    return [(group, finding) for group in GROUPS for finding in found.get(group, ())]


def first_failure(found: Findings) -> PipelineError | None:
    """The error of the first fail, with the finding's name as its cause; None when there is none."""
    failed = [(group, finding) for group, finding in in_order(found) if finding.status == "fail"]
    if not failed:
        return None
    group, finding = failed[0]
    kind = GROUPS.get(finding.name.partition(".")[0], GROUPS[group])
    more = [other.name for _, other in failed[1:]]
    also = f" (and {len(more)} more: {', '.join(more[:5])})" if more else ""
    return kind(f"{finding.evidence}{also}", where=f"preflight, {group}", fix=finding.fix, cause=finding.name)


def counts(found: Findings) -> dict[str, int]:
    """How many findings have each status."""
    number = Counter(finding.status for _, finding in in_order(found))
    return {status: number[status] for status in ("ok", "warn", "fail", "not_measured")}


def to_json(found: Findings, **more: Any) -> dict[str, Any]:
    """All findings as plain data, with anything else that belongs beside them."""
    rows = [{"group": group, **asdict(finding)} for group, finding in in_order(found)]
    return {"passed": first_failure(found) is None, "counts": counts(found), "findings": rows, **more}


def write(found: Findings, folder: Path, **more: Any) -> None:
    """Write findings.json."""
    text = json.dumps(to_json(found, **more), indent=1, ensure_ascii=False)
    (folder / FINDINGS_FILE).write_text(text + "\n", encoding="utf-8")


def read(folder: Path) -> dict[str, list[Finding]]:
    """Findings by group from a folder; empty when there is no whole findings.json."""
    try:
        rows = json.loads((folder / FINDINGS_FILE).read_text(encoding="utf-8"))["findings"]
    except (OSError, ValueError, KeyError):
        return {}
    found: dict[str, list[Finding]] = {}
    for row in rows:
        found.setdefault(row.pop("group"), []).append(Finding(**row))
    return found


def table(found: Findings, title: str = "Preflight") -> Table:
    """The findings as a rich table: status, check, evidence, what to do."""
    from rich.markup import escape
    from rich.table import Table

    number = counts(found)
    shown = ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in number.items() if count)
    rows = in_order(found)
    fixes = any(finding.fix for _, finding in rows)
    made = Table(title=f"{title}: {shown or 'nothing was checked'}")
    made.add_column("status", no_wrap=True)
    made.add_column("check", overflow="fold", ratio=2)
    made.add_column("evidence", overflow="fold", ratio=5)
    if fixes:
        made.add_column("what to do", overflow="fold", ratio=3)
    for _, finding in rows:
        status = f"[{_STYLE[finding.status]}]{finding.status.replace('_', ' ')}[/]"
        cells = [status, escape(finding.name), escape(finding.evidence)]
        made.add_row(*cells, *([escape(finding.fix)] if fixes else []))
    return made
