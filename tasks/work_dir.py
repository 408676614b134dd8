"""The work directory of a stage: made ready for an attempt, counted, and kept when its result could not be stored."""

from __future__ import annotations

import shutil
from pathlib import Path

from pydantic import ValidationError

from artifacts.manifest import ManifestDraft
from tasks.errors import StoreError
from tasks.process.jsonio import read_json, write_json

FINISHED_FILE = "finished.json"


def mark_finished(work: Path, draft: ManifestDraft) -> None:
    """Record that out/ is whole: from here on only storing it can fail."""
    write_json(work / FINISHED_FILE, {"draft": draft.model_dump(mode="json"), "files": sizes(work / "out")})


def finished(work: Path) -> ManifestDraft | None:
    """What an earlier attempt finished but could not store (full disk, unreachable store): it is only stored again."""
    data = read_json(work / FINISHED_FILE)
    # A process that was killed while it cleared out/ away has left a part of it.
    if not isinstance(data, dict) or data.get("files") != sizes(work / "out"):
        return None
    try:
        return ManifestDraft.model_validate(data.get("draft"))
    except ValidationError:  # damaged, or written by another version
        return None


def sizes(folder: Path) -> dict[str, int]:
    """Size of every file below a folder, by path."""
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*") if path.is_file()}


def prepare(work: Path, run_id: str, *, start_over: bool) -> None:
    """Make the work directory; a forced stage empties it once per run, so that its own retries still resume."""
    marker = work / "forced_by"
    try:
        if start_over and not (marker.exists() and marker.read_text(encoding="utf-8") == run_id):
            shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True, exist_ok=True)
        if finished(work) is None:
            (work / FINISHED_FILE).unlink(missing_ok=True)
            shutil.rmtree(work / "out", ignore_errors=True)
        if start_over:
            marker.write_text(run_id, encoding="utf-8")
    except OSError as error:
        raise StoreError(
            f"the work directory cannot be written: {error.strerror}",
            where=str(work),
            fix="check run.home and the disk",
        ) from error


def count_attempt(work: Path) -> int:
    """How many times this fingerprint was tried in this work directory, this time included."""
    counter = work / "attempts"
    try:
        before = int(counter.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        before = 0
    counter.write_text(str(before + 1), encoding="utf-8")
    return before + 1
