"""Hashing the files of a folder, and checking them against their manifest entries, fast.

`verified.json` beside an artifact remembers what was hashed: path -> [size, mtime_ns, ctime_ns, inode, sha256]. The
kernel sets ctime on every write, rename and link and no program can set it back, so a file with the same
four numbers is the file that was hashed and is not read again. ctime advances in ticks of up to 10 ms: a write in
the same tick would go unnoticed, so what was hashed within `TICK_NS` of its ctime is not remembered.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import stat
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from artifacts.faults import translated
from artifacts.manifest import FileEntry, check_relative_path
from tasks.errors import StoreError

log = logging.getLogger(__name__)

VERIFIED = "verified.json"
TICK_NS = 50_000_000

_THREADS = min(4, os.cpu_count() or 1)
_READS = 3
"""How often a file is read whose other names go meanwhile."""
_Seen = tuple[int, int, int, int]


@dataclass(frozen=True)
class SourceFile:
    """A file to be stored."""

    relative: str
    path: Path
    """Absolute; the target if the file was given as a link inside the folder."""
    seen: os.stat_result
    linked: bool
    """It was given as a symbolic link."""


def scan_folder(folder: Path) -> list[SourceFile]:
    """All files below `folder`, sorted by relative path. Empty folders are ignored.

    Raises:
        StoreError: not a folder; a link that leads out of it or to a folder; a socket, pipe or device; a name that
            a manifest cannot hold.
    """
    if not folder.is_dir():
        raise StoreError("there is no such folder to store", where=str(folder), fix="run the stage again")
    with translated(str(folder), "read the folder"):
        return sorted(_walk(folder, folder.resolve(), ""), key=lambda file: file.relative)


def _walk(folder: Path, root: Path, prefix: str) -> Iterator[SourceFile]:
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda item: item.name):
            relative = prefix + entry.name
            try:
                check_relative_path(relative)
            except ValueError as error:
                raise StoreError(f"a file's name cannot be stored: {error}", where=str(folder)) from None
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(Path(entry.path), root, relative + "/")
                continue
            path, linked = Path(entry.path), entry.is_symlink()
            if linked:
                path = _link_target(path, root)
            seen = path.stat()
            if not stat.S_ISREG(seen.st_mode):
                raise StoreError("is not a regular file", where=entry.path, fix="remove it from the folder")
            yield SourceFile(relative, path, seen, linked)


def _link_target(path: Path, root: Path) -> Path:
    fix = "put a copy of the file there instead (cp -L, shutil.copyfile)"
    try:
        target = path.resolve(strict=True)
    except (OSError, RuntimeError):
        raise StoreError("is a symbolic link to nothing", where=str(path), fix=fix) from None
    if not target.is_relative_to(root):
        raise StoreError("is a symbolic link that leads out of its folder", where=str(path), fix=fix)
    if target.is_dir():
        raise StoreError("is a symbolic link to a folder", where=str(path), fix="put the folder itself there instead")
    return target


def sha256_file(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_files(files: Sequence[tuple[str, Path]]) -> tuple[list[FileEntry], dict[str, list[int | str]]]:
    """Hash (relative path, path) pairs in threads (hashlib releases the GIL).

    Returns:
        the entries in the given order, and the content for `write_verified`.

    Raises:
        StoreError: a file changed while it was read.
    """
    with ThreadPoolExecutor(_THREADS) as pool:
        results = list(pool.map(lambda file: _hash_one(*file), files))
    return [entry for entry, _ in results], {entry.path: note for entry, note in results if note is not None}


def _hash_one(relative: str, path: Path) -> tuple[FileEntry, list[int | str] | None]:
    with translated(str(path), "read the file"):
        for _ in range(_READS):
            before = path.stat()
            began = time.time_ns()
            digest = sha256_file(path)
            after = path.stat()
            # Only its change time moves when another name of the file goes: a commit that has just ended deletes its folder.
            if _key(before) == _key(after) or (before.st_size, before.st_mtime_ns) != (
                after.st_size,
                after.st_mtime_ns,
            ):
                break
    if _key(before) != _key(after):
        raise StoreError("changed while it was read", where=str(path), fix="stop what writes to it, then run again")
    entry = FileEntry(path=relative, size=after.st_size, sha256=digest)
    settled = began - after.st_ctime_ns > TICK_NS
    return entry, [*_key(after), digest] if settled else None


def _key(seen: os.stat_result) -> _Seen:
    return seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino


def check_files(base: Path, entries: Sequence[FileEntry], *, deep: bool, verified: Path) -> list[str]:
    """What is wrong with the files below `base`, in words; empty if nothing.

    Args:
        deep: compare sha256 too, reading only the files that `verified` does not vouch for.
        verified: the `verified.json`, read and brought up to date.
    """
    problems: list[str] = []
    unread: list[tuple[FileEntry, Path]] = []
    notes = _read_verified(verified) if deep else {}
    folders: dict[str, bool] = {}
    for entry in entries:
        path = base / entry.path
        try:
            seen = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            problems.append(f"{entry.path}: missing")
            continue
        if not stat.S_ISREG(seen.st_mode) or _below_link(base, entry.path, folders):
            problems.append(f"{entry.path}: is no longer a regular file of the artifact (link or folder)")
        elif seen.st_size != entry.size:
            problems.append(f"{entry.path}: size differs: {seen.st_size} bytes instead of {entry.size}")
        elif deep and notes.get(entry.path) != [*_key(seen), entry.sha256]:
            unread.append((entry, path))
    if unread:
        problems += _compare(unread, notes, verified)
    return problems


def _below_link(base: Path, relative: str, known: dict[str, bool]) -> bool:
    """Whether a folder between `base` (included) and the file is a symbolic link."""
    folder = os.path.dirname(relative)
    if folder not in known:
        known[folder] = (base / folder).is_symlink() or (folder != "" and _below_link(base, folder, known))
    return known[folder]


def _compare(unread: list[tuple[FileEntry, Path]], notes: dict[str, list[int | str]], verified: Path) -> list[str]:
    found, new = hash_files([(entry.path, path) for entry, path in unread])
    problems = []
    for (entry, _), actual in zip(unread, found, strict=True):
        if actual.sha256 != entry.sha256:
            problems.append(f"{entry.path}: sha256 differs: {actual.sha256[:12]}… instead of {entry.sha256[:12]}…")
            new.pop(entry.path, None)
    if new:
        try:
            write_verified(verified, {**notes, **new})
        except OSError as error:  # a read-only store is still usable: its files are read again next time
            log.debug("cannot write %s: %s", verified, error)
    return problems


def write_verified(path: Path, notes: dict[str, list[int | str]]) -> None:
    """Remember hashed files. Not synced to disk: a lost or broken file only costs reading again."""
    temporary = path.with_name(f".{path.name}-{os.urandom(6).hex()}")
    temporary.write_text(json.dumps({"version": 1, "files": notes}), encoding="utf-8")
    os.replace(temporary, path)


def refresh_verified(base: Path, path: Path) -> None:
    """Bring ctimes up to date after we deleted the other hard links of the files, which sets ctime and nothing else.
    A file whose size, mtime or inode has changed as well is forgotten."""
    fresh: dict[str, list[int | str]] = {}
    for relative, note in _read_verified(path).items():
        try:
            key = _key((base / relative).lstat())
        except OSError:
            continue
        if [key[0], key[1], key[3]] == [note[0], note[1], note[3]]:
            fresh[relative] = [*key, note[4]]
    try:
        write_verified(path, fresh)
    except OSError as error:
        log.debug("cannot write %s: %s", path, error)


def _read_verified(path: Path) -> dict[str, list[int | str]]:
    try:
        data = json.loads(path.read_bytes())
        files = data["files"] if data["version"] == 1 else {}
        return {str(name): list(note) for name, note in files.items() if len(note) == 5}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


def free_bytes(path: Path) -> int:
    """Bytes free for this user on the file system that holds `path`, which need not exist yet."""
    place = path.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    with translated(str(path), "find out how much space is free"):
        usage = os.statvfs(place)
    return usage.f_bavail * usage.f_frsize


def require_space(path: Path, needed: int, what: str) -> None:
    """StoreError if fewer than `needed` bytes are free at `path`."""
    free = free_bytes(path)
    if free < needed:
        raise StoreError(
            f"too little space for {what}: {human_size(needed)} needed, {human_size(free)} free",
            where=str(path),
            fix="free some space (`artifacts gc` lists what can go) or use another disk",
        )


def human_size(count: float) -> str:
    """Bytes for people: `999 B`, `1.5 MB`, `12.3 GB` (powers of 1000)."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.95 or unit == "GB":
            break
        count /= 1000
    return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
