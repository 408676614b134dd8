"""Write the report of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from artifacts.store import Store
from tasks.report.build import build_report
from tasks.report.page_file import write_page


def report_path(home: Path, run_id: str) -> Path:
    """Where the report of a run goes, in the language of its configuration."""
    return home / "reports" / run_id / "report.html"


def write_report(record: Mapping[str, Any], store: Store, home: Path, language: str | None = None) -> Path:
    """Write the report of a run below `home`, in the language of its configuration if no other is asked for.

    Returns:
        `<home>/reports/<run id>/report.html`; in the other language, `report.<language>.html` beside it.

    Raises:
        StoreError: it cannot be written there.
    """
    own = record["config"].get("run", {}).get("language", "en")
    language = language or own
    path = report_path(home, str(record["run_id"]))
    if language != own:
        path = path.with_name(f"report.{language}.html")
    write_page(path, build_report(record, store, language, home))
    return path
