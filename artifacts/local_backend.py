"""A store in a local folder: artifacts are built aside and put in place by one rename."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from artifacts.backend import MANIFEST, PUBLISH_LOCK, Stat, artifact_path
from artifacts.faults import translated
from artifacts.hashing import VERIFIED, check_files, hash_files, refresh_verified, scan_folder, write_verified
from artifacts.locks import file_lock
from artifacts.manifest import Manifest, ManifestDraft, complete
from artifacts.staging import (
    create_file,
    place_files,
    remove_folder,
    staging_folder,
    sweep,
    sync_folder,
    write_file,
)
from tasks.errors import PipelineError, StoreError

log = logging.getLogger(__name__)


class LocalBackend:
    """See `artifacts.backend.Backend`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.label = str(root)
        self.lock_folder = root / "locks"
        self._staging = root / ".staging"

    def uri(self, path: str) -> str:
        return str(self.root / path)

    def read(self, path: str) -> bytes | None:
        with translated(self.uri(path), "read the file"):
            try:
                return (self.root / path).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def read_many(self, paths: list[str]) -> list[bytes | None]:
        return [self.read(path) for path in paths]

    def write(self, path: str, data: bytes) -> None:
        with translated(self.uri(path), "write the file"):
            write_file(self.root / path, data)

    def create(self, path: str, data: bytes) -> bool:
        with translated(self.uri(path), "write the file"):
            return create_file(self.root / path, data, self.lock_folder / "create.lock")

    def delete(self, path: str) -> None:
        with translated(self.uri(path), "delete the file"):
            (self.root / path).unlink(missing_ok=True)

    def delete_tree(self, path: str) -> None:
        with self.bin() as throw_away:
            throw_away(path)

    @contextmanager
    def bin(self) -> Iterator[Callable[[str], None]]:
        """Renamed into one staging folder, because deleting many files takes time and can be interrupted. On a disk that is
        full even for that, they are deleted in place."""
        with ExitStack() as stack:
            try:
                aside = stack.enter_context(staging_folder(self._staging))
            except (OSError, PipelineError) as error:
                log.debug("deleting in place: %s", error)
                aside = None

            def throw_away(path: str) -> None:
                folder = self.root / path
                with translated(self.uri(path), "delete the folder"):
                    if folder.is_symlink():
                        folder.unlink()
                    elif folder.exists():
                        if aside is not None and _renamed(folder, aside / secrets.token_hex(8)):
                            return
                        remove_folder(folder)

            yield throw_away

    def names(self, path: str) -> list[str]:
        with translated(self.uri(path), "list the folder"):
            try:
                return sorted(name for name in os.listdir(self.root / path) if not name.startswith("."))
            except (FileNotFoundError, NotADirectoryError):
                return []

    def tree(self, path: str) -> dict[str, Stat]:
        base = self.root / path
        found = {}
        with translated(self.uri(path), "list the folder"):
            for folder, _, names in os.walk(base):
                for name in names:
                    file = Path(folder, name)
                    try:
                        seen = file.lstat()
                    except FileNotFoundError:
                        continue
                    found[file.relative_to(base).as_posix()] = Stat(seen.st_size, seen.st_mtime)
        return found

    def publish(
        self, draft: ManifestDraft, folder: Path, *, keep_source: bool, current: Callable[[], Manifest | None]
    ) -> Manifest:
        target = self.root / artifact_path(draft.stage, draft.fingerprint)
        with translated(str(target), "store the artifact"), staging_folder(self._staging) as aside:
            files = scan_folder(folder)
            made = aside / "artifact"
            place_files(files, made / "files", move=not keep_source)
            entries, notes = hash_files([(file.relative, made / "files" / file.relative) for file in files])
            manifest = complete(draft, entries)
            write_verified(made / VERIFIED, notes)
            write_file(made / MANIFEST, manifest.to_bytes())
            with file_lock(self.lock_folder / PUBLISH_LOCK):
                manifest = current() or self._put_in_place(manifest, made, target, aside / "replaced")
        if not keep_source:
            remove_folder(folder)
            refresh_verified(target / manifest.files_at, target / VERIFIED)
        return manifest

    def _put_in_place(self, manifest: Manifest, made: Path, target: Path, replaced: Path) -> Manifest:
        target.parent.mkdir(parents=True, exist_ok=True)
        old = os.path.lexists(target)
        if old:
            os.rename(target, replaced)
        try:
            os.rename(made, target)
        except OSError:
            if old:
                os.rename(replaced, target)
            raise
        sync_folder(target.parent)
        return manifest

    def problems(self, manifest: Manifest, deep: bool) -> list[str]:
        artifact = self.root / artifact_path(manifest.stage, manifest.fingerprint)
        with translated(str(artifact), "check the artifact"):
            return check_files(artifact / manifest.files_at, manifest.files, deep=deep, verified=artifact / VERIFIED)

    def folder(self, manifest: Manifest) -> Path:
        folder = self.root / artifact_path(manifest.stage, manifest.fingerprint) / manifest.files_at
        if not folder.is_dir():
            raise StoreError("the artifact's files are gone", where=str(folder), fix="run the stage again")
        return folder

    def forget(self, manifest: Manifest) -> None:
        """A local store has no copies."""

    def sweep(self) -> list[str]:
        return [str(path) for path in sweep(self._staging)]


def _renamed(folder: Path, place: Path) -> bool:
    try:
        os.rename(folder, place)
    except OSError as error:
        log.debug("deleting in place: %s", error)
        return False
    return True
