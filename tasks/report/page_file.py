"""Writing a page where a user wants it."""

from __future__ import annotations

from pathlib import Path

from artifacts.faults import translated


def write_page(path: Path, text: str) -> None:
    """Write a page; folders above it are made.

    Raises:
        StoreError: it cannot be written there.
    """
    with translated(str(path), "write the page"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
