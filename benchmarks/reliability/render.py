"""docs/reliability.md from the trials that are known."""

from __future__ import annotations

from pathlib import Path

from benchmarks.reliability.results import Results

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"


def write_page(results: Results) -> Path:
    return PAGE
