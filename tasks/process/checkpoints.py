"""Which checkpoint of a killed run can be trusted.

A trainer's checkpoint folder is complete once it holds `complete.json`, written last with the size of every other file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from tasks.process.jsonio import read_json, write_json

MARKER_FILE = "complete.json"
STATE_FILE = "trainer_state.json"

_NAME = re.compile(r"checkpoint-(\d+)")


def mark_complete(folder: Path) -> None:
    """Write the marker of a checkpoint folder, after all of its files have reached the disk."""
    sizes: dict[str, int] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path != folder / MARKER_FILE:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                sizes[path.relative_to(folder).as_posix()] = os.fstat(descriptor).st_size
            finally:
                os.close(descriptor)
    write_json(folder / MARKER_FILE, {"files": sizes})


def why_incomplete(folder: Path) -> str:
    """What is wrong with a checkpoint folder; empty when it is complete."""
    marker = read_json(folder / MARKER_FILE)
    if not isinstance(marker, dict) or not isinstance(marker.get("files"), dict):
        return f"{MARKER_FILE} is missing or damaged: the save did not finish"
    for name, size in marker["files"].items():
        try:
            found = (folder / name).stat().st_size
        except OSError:
            return f"{name} is missing"
        if found != size:
            return f"{name} has {found} bytes instead of {size}"
    if not isinstance(read_json(folder / STATE_FILE), dict):
        return f"{STATE_FILE} is missing or not JSON"
    return ""


def checkpoint_step(folder: Path) -> int:
    """The step of a folder `checkpoint-<step>`; -1 for another name."""
    match = _NAME.fullmatch(folder.name)
    return int(match.group(1)) if match else -1


def newest_complete(checkpoints: Path, log: Callable[[str], None]) -> Path | None:
    """The complete `checkpoint-<step>` with the highest step; every newer one passed over is logged with its reason."""
    if not checkpoints.is_dir():
        return None
    folders = [path for path in checkpoints.iterdir() if path.is_dir() and checkpoint_step(path) >= 0]
    for folder in sorted(folders, key=checkpoint_step, reverse=True):
        reason = why_incomplete(folder)
        if not reason:
            return folder
        log(f"checkpoint {folder.name} is passed over: {reason}")
    return None
