"""Write the report of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from artifacts.store import Store
from tasks.report.build import build_report


def write_report(record: Mapping[str, Any], store: Store, home: Path, language: str | None = None) -> Path:
    """Write the report of a run below `home`, in the language of its configuration if no other is asked for.

    Returns:
        `<home>/reports/<run id>/report.html`; in the other language, `report.<language>.html` beside it.
    """
    own = record["config"].get("run", {}).get("language", "en")
    language = language or own
    folder = home / "reports" / record["run_id"]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ("report.html" if language == own else f"report.{language}.html")
    path.write_text(build_report(record, store, language, home), encoding="utf-8")
    return path
