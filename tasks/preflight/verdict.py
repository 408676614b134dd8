"""What a preflight found: as JSON in its artifact, as a table, and as the error that stops a run. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks import findings
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
    return findings.counts([finding for _, finding in in_order(found)])


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


def read_sizes(folder: Path) -> dict[str, Any] | None:
    """Shape of the model and lengths of the data as the preflight measured them; None when it did not come so far."""
    try:
        sizes: dict[str, Any] = json.loads((folder / FINDINGS_FILE).read_text(encoding="utf-8"))["plans"]["sizes"]
    except (OSError, ValueError, KeyError):
        return None
    return sizes


def table(found: Findings, title: str = "Preflight") -> Table:
    """The findings as a rich table."""
    return findings.table([finding for _, finding in in_order(found)], title)
