"""Which checkpoint of a killed run can be trusted.

A trainer's checkpoint folder is complete once it holds `complete.json`, written last with the size and sha256 of every
other file. The digest costs less than the write to disk that it follows, and tells a changed bit from a good resume.
"""

from __future__ import annotations

import hashlib
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
    files: dict[str, list[int | str]] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path != folder / MARKER_FILE:
            with path.open("rb") as file:
                os.fsync(file.fileno())
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                files[path.relative_to(folder).as_posix()] = [file.tell(), digest]
    write_json(folder / MARKER_FILE, {"files": files})


def why_incomplete(folder: Path) -> str:
    """What is wrong with a checkpoint folder; empty when it is complete."""
    marker = read_json(folder / MARKER_FILE)
    if not isinstance(marker, dict) or not isinstance(marker.get("files"), dict):
        return f"{MARKER_FILE} is missing or damaged: the save did not finish"
    for name, expected in marker["files"].items():
        if not (isinstance(expected, list) and len(expected) == 2):
            return f"{MARKER_FILE} is damaged, or of another version"
        try:
            with (folder / name).open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size != expected[0]:
                    return f"{name} has {size} bytes instead of {expected[0]}"
                if hashlib.file_digest(file, "sha256").hexdigest() != expected[1]:
                    return f"{name} has changed since it was saved"
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as error:
            return f"{name} cannot be read: {error.strerror}"
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
