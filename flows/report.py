"""Write the report of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from artifacts.store import Store
from tasks.report.build import build_report


def write_report(record: dict[str, Any], store: Store, folder: Path) -> Path:
    """Write `report.html` of a run into `folder` and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "report.html"
    run = record["config"]["run"]
    work = Path(run["home"]).resolve() / "work"
    path.write_text(build_report(record, store, run["language"], work), encoding="utf-8")
    return path
