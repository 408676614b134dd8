"""Local copies of artifacts whose store is not on this machine: whole, verified, reused."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from artifacts.faults import translated
from artifacts.hashing import (
    VERIFIED,
    check_files,
    hash_files,
    refresh_verified,
    require_space,
    scan_folder,
    write_verified,
)
from artifacts.locks import file_lock
from artifacts.manifest import Manifest
from artifacts.staging import place_files, remove_folder, staging_folder, sweep, sync_folder
from tasks.errors import PipelineError

log = logging.getLogger(__name__)


class Copies:
    """Copies of one store's artifacts below the folder `base`."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._staging = base / ".staging"

    def _place(self, manifest: Manifest) -> Path:
        """By content too: a rerun of the stage must not be served from the old copy."""
        return self._base / manifest.stage / f"{manifest.fingerprint}-{manifest.content_digest[:16]}"

    def _lock(self, manifest: Manifest) -> AbstractContextManager[int]:
        return file_lock(self._base / "locks" / f"{manifest.stage}-{manifest.fingerprint[:32]}-copy.lock")

    def folder(self, manifest: Manifest, download: Callable[[Path], None]) -> Path:
        """The folder with the artifact's files. `download(folder)` fills an empty folder and checks the contents."""
        place = self._place(manifest)
        with self._lock(manifest):
            if place.is_dir():
                problems = check_files(place / "files", manifest.files, deep=True, verified=place / VERIFIED)
                if not problems:
                    return place / "files"
                log.warning("downloading again, the local copy is damaged: %s", "; ".join(problems[:3]))
                remove_folder(place)
            with translated(str(place), "keep a local copy"), staging_folder(self._staging) as aside:
                require_space(aside, manifest.size_bytes, "a local copy of the artifact")
                files = aside / "copy" / "files"
                files.mkdir(parents=True)
                download(files)
                self._put_in_place(aside / "copy", place)
        return place / "files"

    def adopt(self, manifest: Manifest, source: Path) -> None:
        """Turn a folder that was just stored into the copy, so that the next stage need not download it. If that is
        not possible, `source` is left alone."""
        place = self._place(manifest)
        try:
            with (
                self._lock(manifest),
                translated(str(place), "keep a local copy"),
                staging_folder(self._staging) as aside,
            ):
                files, copy = scan_folder(source), aside / "copy"
                place_files(files, copy / "files", move=True)
                entries, notes = hash_files([(file.relative, copy / "files" / file.relative) for file in files])
                if entries == list(manifest.files):  # else another host was first, and this folder is of no use
                    write_verified(copy / VERIFIED, notes)
                    remove_folder(place)
                    self._put_in_place(copy, place)
                remove_folder(source)
                refresh_verified(place / "files", place / VERIFIED)
        except PipelineError as error:
            log.warning("the artifact is stored, but there is no local copy of it: %s", error)

    def _put_in_place(self, made: Path, place: Path) -> None:
        place.parent.mkdir(parents=True, exist_ok=True)
        os.rename(made, place)
        sync_folder(place.parent)

    def forget(self, manifest: Manifest) -> None:
        remove_folder(self._place(manifest))

    def sweep(self) -> list[str]:
        return [str(path) for path in sweep(self._staging)]
