"""The files behind one run: its record, the artifacts that it names, and the work directory of a stage that did not end."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from artifacts import registry
from artifacts.manifest import Manifest
from artifacts.registry import Event
from artifacts.store import Store
from tasks.errors import PipelineError

MAX_ROWS = 200_000
MAX_EVENTS = 100
"""Newest events of a model's registry that are looked through."""


@dataclass(frozen=True)
class RunFiles:
    """What a report reads. Every part may be missing: a run can end anywhere.

    Attributes:
        record: as stored under `runs/`.
        manifests: by stage name; of the stages that are done and whose files are whole.
        folders: their files.
        unfinished: name of the stage that was running when the run ended, or is running now.
        work: its work directory.
        home: `run.home` of the run, if it is on this machine.
        promotions: what the model registry says of the run's export, newest first.
    """

    record: Mapping[str, Any]
    manifests: Mapping[str, Manifest]
    folders: Mapping[str, Path]
    unfinished: str | None
    work: Path | None
    home: Path | None
    promotions: Sequence[Event] = ()

    def path(self, stage: str, name: str) -> Path | None:
        """A file of a stage: of its artifact, or of its work directory if it did not end. None if it is not there."""
        folder = self.folders.get(stage) or (self.work if stage == self.unfinished else None)
        path = folder / name if folder else None
        return path if path and path.is_file() else None

    def rows(self, stage: str, name: str, limit: int = MAX_ROWS) -> list[dict[str, Any]]:
        """The rows of a JSON-lines file of a stage; none if it is not there."""
        path = self.path(stage, name)
        return read_jsonl(path, limit) if path else []

    def json(self, stage: str, name: str) -> Any | None:
        """The content of a JSON file of a stage; None if it is not there or damaged."""
        path = self.path(stage, name)
        return read_json(path) if path else None

    def metrics(self, stage: str) -> dict[str, Any]:
        """The final numbers of a stage; none if it did not end."""
        return dict(self.manifests[stage].metrics) if stage in self.manifests else {}


def open_run(record: Mapping[str, Any], store: Store, home: Path | None = None) -> RunFiles:
    """Find what a run left. A damaged or missing artifact is left out: it is the store's business, not the report's."""
    manifests: dict[str, Manifest] = {}
    folders: dict[str, Path] = {}
    for item in record["stages"]:
        if "fingerprint" not in item:
            continue
        try:
            manifest = store.lookup(item["stage"], item["fingerprint"])
            if manifest is not None and not store.verify(manifest):
                folders[item["stage"]] = store.local_folder(manifest)
                manifests[item["stage"]] = manifest
        except PipelineError:
            continue
    unfinished = next((item["stage"] for item in record["stages"] if "fingerprint" not in item), None)
    work = _work_folder(record, home, unfinished)
    return RunFiles(record, manifests, folders, unfinished, work, home, _promotions(store, manifests.get("export")))


def _promotions(store: Store, export: Manifest | None) -> list[Event]:
    """Events of the registry about this export; a registry that cannot be read costs only them."""
    if export is None:
        return []
    try:
        events = [
            event for name in registry.names(store) for event in islice(registry.history(store, name), MAX_EVENTS)
        ]
    except PipelineError:
        return []
    return [event for event in events if event.subject.export.fingerprint == export.fingerprint]


def _work_folder(record: Mapping[str, Any], home: Path | None, stage: str | None) -> Path | None:
    """The work directory that the record names; in older records, the newest one of that stage."""
    if home is None or stage is None:
        return None
    named = next((item.get("work") for item in record["stages"] if item["stage"] == stage), None)
    folders = [home / "work" / str(named)] if named else sorted((home / "work").glob(f"{stage}-*"), key=_changed)
    return folders[-1] if folders and folders[-1].is_dir() else None


def _changed(path: Path) -> float:
    return path.stat().st_mtime


def read_jsonl(path: Path, limit: int = MAX_ROWS) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file; a half-written last line is left out, a missing file has none."""
    rows: list[dict[str, Any]] = []
    if not path.is_file():
        return rows
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if len(rows) >= limit:
                break
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(row, dict):
                rows.append(row)
    return rows


def having(rows: Iterable[dict[str, Any]], *keys: str) -> list[dict[str, Any]]:
    """The rows that hold all of these keys: what another version wrote is left out rather than misread."""
    return [row for row in rows if all(key in row for key in keys)]


def read_json(path: Path) -> Any | None:
    """The content of a JSON file; None if it is missing, torn or not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except (OSError, ValueError, RecursionError):
        return None


def number(value: Any) -> float | None:
    """`value` if it is a finite number, else None."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None


def series(rows: Iterable[Mapping[str, Any]], key: str) -> list[tuple[float, float]]:
    """(step, value) points of one metric, without the gaps."""
    points = ((number(row.get("step")), number(row.get(key))) for row in rows)
    return [(step, value) for step, value in points if step is not None and value is not None]
