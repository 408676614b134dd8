"""What runs leave below `run.home` besides artifacts: work directories of runs nobody went on with, and old SwanLab experiments."""

from __future__ import annotations

import os
import re
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from artifacts.locks import file_lock, lock_holder
from artifacts.store import Store
from tasks.errors import Retryable, StoreError
from tasks.work_dir import finished

_EXPERIMENT = re.compile(r"run-\d{8}_\d{6}-(?P<run>(?P<key>[0-9a-f]{16})[0-9a-f]{4})")
"""Folder of a SwanLab experiment: when it began, the beginning of the stage's fingerprint, and four more digits."""


@dataclass(frozen=True)
class Leftover:
    """A folder that was (or would be) deleted, or that is kept although it is old."""

    kind: str
    """`work` or `experiment`."""
    path: Path
    size_bytes: int
    reason: str
    kept: bool = False


def clear(home: Path, store: Store, older_than: timedelta, *, dry_run: bool) -> list[Leftover]:
    """Delete what nothing has written to for `older_than`, and nothing is running in.

    A work directory holds the checkpoints from which the same configuration would go on, and sometimes a finished result
    that could not be stored: that one is kept, whatever its age, until it is stored.

    Raises:
        StoreError: a folder cannot be deleted.
    """
    return [*_work(home, store, older_than, dry_run), *_experiments(home, older_than, dry_run)]


def _work(home: Path, store: Store, older_than: timedelta, dry_run: bool) -> Iterator[Leftover]:
    for folder in _old_folders(home / "work", older_than):
        try:
            with file_lock(home / "locks" / f"{folder.name}.lock", timeout_s=0):
                size, idle = _size(folder), _idle_s(folder)
                if idle <= older_than.total_seconds():  # worked in meanwhile
                    continue
                draft = finished(folder)
                if draft is not None and store.lookup(draft.stage, draft.fingerprint) is None:
                    reason = "it holds a finished result that could not be stored: run the same configuration again"
                    yield Leftover("work", folder, size, reason, kept=True)
                    continue
                _delete(folder, dry_run)
                yield Leftover("work", folder, size, f"nothing has gone on in it for {idle / 86_400:.0f} days")
        except Retryable:  # a stage is running in it
            continue


def _experiments(home: Path, older_than: timedelta, dry_run: bool) -> Iterator[Leftover]:
    for folder in _old_folders(home / "swanlab", older_than):
        match = _EXPERIMENT.fullmatch(folder.name)
        if match is None or any(lock_holder(path) for path in (home / "locks").glob(f"*-{match['key']}.lock")):
            continue
        size, days = _size(folder), _idle_s(folder) / 86_400
        if not dry_run:
            with _deleting(folder):
                from tasks.training.swanlab_setup import dashboard_installed, forget_attempts

                local = dashboard_installed() and (folder.parent / "runs.swanlab").exists()
                forget_attempts(folder.parent, match["run"], local)
        yield Leftover("experiment", folder, size, f"nothing was logged to it for {days:.0f} days")


def _old_folders(parent: Path, older_than: timedelta) -> list[Path]:
    """Folders (not links) in which nothing was written for that long, sorted."""
    if not parent.is_dir():
        return []
    folders = [path for path in sorted(parent.iterdir()) if path.is_dir() and not path.is_symlink()]
    return [path for path in folders if _idle_s(path) > older_than.total_seconds()]


def _idle_s(folder: Path) -> float:
    """Seconds since the newest change of the folder or of anything in it."""
    return time.time() - max((entry.st_mtime for entry in _entries(folder)), default=time.time())


def _size(folder: Path) -> int:
    return sum(entry.st_size for entry in _entries(folder) if stat.S_ISREG(entry.st_mode))


def _entries(folder: Path) -> Iterator[os.stat_result]:
    """The folder and everything in it, without what vanishes meanwhile."""
    for path in (folder, *folder.rglob("*")):
        with suppress(FileNotFoundError):
            yield path.lstat()


def _delete(folder: Path, dry_run: bool) -> None:
    if not dry_run:
        with _deleting(folder):
            shutil.rmtree(folder)


@contextmanager
def _deleting(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"cannot be deleted: {error.strerror}", where=str(folder), fix="check who owns it, and delete it by hand"
        ) from error
