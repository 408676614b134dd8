"""Folders that are built aside and then put in place by one rename.

Each staging folder has a lock beside it, held while it is being filled; whoever finds the lock free knows that its
owner died, and sweeps the folder away. So nothing half-written is ever in the final place, and nothing is left over.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from artifacts.faults import translated
from artifacts.hashing import TICK_NS, SourceFile, require_space
from artifacts.locks import file_lock
from tasks.errors import PipelineError, StoreError

log = logging.getLogger(__name__)

_NO_LINK = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES}


@contextmanager
def staging_folder(area: Path) -> Iterator[Path]:
    """An empty folder below `area`; what is left in it at the end is deleted. Dead ones are swept first."""
    sweep(area)
    name = secrets.token_hex(8)
    lock = area / f"{name}.lock"
    with file_lock(lock):
        folder = area / name
        try:
            with translated(str(area), "create a folder"):
                folder.mkdir()
            yield folder
        finally:
            remove_folder(folder)
            with contextlib.suppress(OSError):
                lock.unlink()


def sweep(area: Path) -> list[Path]:
    """Delete the staging folders whose owner is dead; return them."""
    swept = []
    if not area.is_dir():
        return []
    # The lock is made before its folder, so a folder without a lock that is held belongs to nobody.
    for lock in sorted(area.glob("*.lock")):
        with contextlib.suppress(PipelineError), file_lock(lock, timeout_s=0):
            folder = lock.with_suffix("")
            if folder.is_dir():
                log.info("removing what an interrupted commit left: %s", folder)
                swept.append(folder)
                remove_folder(folder)
            with contextlib.suppress(OSError):
                lock.unlink()
    return swept


def remove_folder(folder: Path) -> None:
    """Delete a folder of ours; what cannot be deleted is logged and left for gc."""
    if folder.is_symlink() or not folder.exists():
        return
    shutil.rmtree(folder, onerror=lambda _, path, info: log.warning("cannot delete %s: %s", path, info[1]))


def place_files(files: Sequence[SourceFile], target: Path, *, move: bool) -> None:
    """Put `files` below `target` and onto the disk, as hard links where possible if `move`, else as copies.

    The sources stay; after a move, the caller deletes them once the target is in place. A file that has other hard
    links is copied, because whoever holds those could change it.

    Raises:
        StoreError: too little space, or a source changed meanwhile.
    """
    target.mkdir(parents=True, exist_ok=True)
    device = target.stat().st_dev
    links = {file.relative for file in files if move and _can_link(file, device)}
    require_space(target, sum(file.seen.st_size for file in files if file.relative not in links), "the artifact")
    folders = {target}
    for file in files:
        place = target / file.relative
        if place.parent not in folders:
            place.parent.mkdir(parents=True, exist_ok=True)
            folders.update(parent for parent in place.parents if parent.is_relative_to(target))
        if file.relative not in links or not _link(file.path, place):
            _copy(file, place)
        _sync(place)
    for folder in folders:
        _sync(folder)
    if sum(file.seen.st_size for file in files) >= 2**20:
        # Linking and copying set ctime; hash later than its tick, or `verified.json` cannot vouch for the files.
        time.sleep(TICK_NS / 1e9 + 0.01)


def _can_link(file: SourceFile, device: int) -> bool:
    return not file.linked and file.seen.st_nlink == 1 and file.seen.st_dev == device


def _link(source: Path, place: Path) -> bool:
    try:
        os.link(source, place)
    except OSError as error:
        if error.errno in _NO_LINK:
            return False
        raise
    return True


def _copy(file: SourceFile, place: Path) -> None:
    shutil.copyfile(file.path, place)
    unchanged(file)


def unchanged(file: SourceFile) -> None:
    """StoreError if the file was written to since the folder was scanned."""
    now = file.path.stat()
    if (now.st_size, now.st_mtime_ns, now.st_ino) != (file.seen.st_size, file.seen.st_mtime_ns, file.seen.st_ino):
        raise StoreError(
            "changed while it was being stored", where=str(file.path), fix="stop what writes to it, then run again"
        )


def write_file(path: Path, data: bytes) -> None:
    """Write all of `data` to `path` or nothing, surviving a power cut."""
    with _written_aside(path, data) as temporary:
        os.replace(temporary, path)
    sync_folder(path.parent)


def create_file(path: Path, data: bytes, lock: Path) -> bool:
    """Write all of `data` to a `path` that does not exist yet, surviving a power cut; False if it exists.

    A hard link is what makes it exclusive; where there are none, the lock does.
    """
    with _written_aside(path, data) as temporary, file_lock(lock):
        try:
            if path.exists():
                return False
            if not _link(temporary, path):
                os.rename(temporary, path)
        except FileExistsError:
            return False
    sync_folder(path.parent)
    return True


@contextmanager
def _written_aside(path: Path, data: bytes) -> Iterator[Path]:
    """A hidden file beside `path` with all of `data`, on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name[:100]}-{secrets.token_hex(6)}")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def sync_folder(folder: Path) -> None:
    """Make renames in `folder` survive a power cut."""
    _sync(folder)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        # Some file systems cannot sync folders; files that cannot be written out must be an error.
        if path.is_dir() and error.errno in (errno.EINVAL, errno.ENOTSUP):
            return
        raise
    finally:
        os.close(fd)
