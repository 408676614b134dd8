"""A store behind fsspec (S3, memory): files first, one folder per upload, then the manifest.

Files are used through a local cache of whole, verified artifacts. `<files folder>.json` keeps the ETag of each file,
so that a deep check needs no download as long as the object store still reports the same ETags.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from fsspec.asyn import sync

from artifacts.backend import MANIFEST, PUBLISH_LOCK, Stat, artifact_path
from artifacts.copies import Copies
from artifacts.faults import Redactor, translated
from artifacts.hashing import hash_files, human_size, scan_folder
from artifacts.locks import file_lock
from artifacts.manifest import FileEntry, Manifest, ManifestDraft, complete
from artifacts.staging import unchanged
from tasks.errors import PipelineError, Retryable, StoreError

log = logging.getLogger(__name__)

PATIENCE_S = 180.0
"""For one call, with all its attempts."""
SLOWEST_BYTES_PER_S = 250_000.0
"""Added to the patience for large files."""

_THREADS = 4
_SMALL_THREADS = 16
_CHUNK = 16 * 2**20

_In = TypeVar("_In")
_Out = TypeVar("_Out")


class RemoteBackend:
    """See `artifacts.backend.Backend`.

    Args:
        fs: an fsspec file system.
        base: the store's path on it.
        label: its URL without secrets.
        cache: local folder for copies and locks.
    """

    root = None

    def __init__(self, fs: Any, base: str, label: str, cache: Path, redact: Redactor) -> None:
        self._fs, self._base, self._redact = fs, base.rstrip("/"), redact
        self.label = label.rstrip("/")
        own = cache / hashlib.sha256(self.label.encode()).hexdigest()[:16]
        self.lock_folder = own / "locks"
        self._copies = Copies(own)

    def uri(self, path: str) -> str:
        return f"{self.label}/{path}"

    def _at(self, path: str) -> str:
        return f"{self._base}/{path}"

    def _translated(self, path: str, doing: str) -> AbstractContextManager[None]:
        return translated(self.uri(path), doing, self._redact)

    def _call(self, method: str, *args: Any, size: int = 0, **kwargs: Any) -> Any:
        """Call the file system, but not for ever: a server that accepts an upload and then says nothing would
        otherwise be waited for without end (aiohttp's timeouts begin after the request is sent)."""
        if not self._fs.async_impl:
            return getattr(self._fs, method)(*args, **kwargs)
        patience = PATIENCE_S + size / SLOWEST_BYTES_PER_S
        return sync(self._fs.loop, getattr(self._fs, f"_{method}"), *args, timeout=patience, **kwargs)

    def read(self, path: str) -> bytes | None:
        with self._translated(path, "read the file"):
            try:
                return bytes(self._call("cat_file", self._at(path)))
            except FileNotFoundError:
                return None

    def read_many(self, paths: list[str]) -> list[bytes | None]:
        return _in_threads(self.read, paths, _SMALL_THREADS)

    def write(self, path: str, data: bytes) -> None:
        with self._translated(path, "write the file"):
            self._call("pipe_file", self._at(path), data)

    def create(self, path: str, data: bytes) -> bool:
        """Exclusive between hosts where the object store has conditional writes (S3's If-None-Match); elsewhere only
        between the processes of one host."""
        with file_lock(self.lock_folder / "create.lock"):
            if self.read(path) is not None:
                return False
            try:
                with self._translated(path, "write the file"):
                    self._call("pipe_file", self._at(path), data, mode="create")
                return True
            except PipelineError as error:
                stored = self.read(path)
                if stored is not None:
                    # Ours, if the answer to the first attempt was lost and a second one found the file.
                    return stored == data
                if error.retryable:
                    raise
                log.debug("conditional write refused: %s", error)
            self.write(path, data)
            return True

    def delete(self, path: str) -> None:
        with self._translated(path, "delete the file"):
            try:
                self._call("rm_file", self._at(path))
            except FileNotFoundError:
                return

    def delete_tree(self, path: str) -> None:
        with self._translated(path, "delete the folder"):
            self._fs.invalidate_cache()
            try:
                self._call("rm", self._at(path), recursive=True)
            except FileNotFoundError:
                return

    def bin(self) -> AbstractContextManager[Callable[[str], None]]:
        return nullcontext(self.delete_tree)

    def names(self, path: str) -> list[str]:
        with self._translated(path, "list the folder"):
            self._fs.invalidate_cache()
            try:
                found = self._call("ls", self._at(path), detail=False)
            except FileNotFoundError:
                return []
        names = {str(name).rstrip("/").rsplit("/", 1)[-1] for name in found if str(name).strip("/") != self._at(path)}
        return sorted(name for name in names if name and not name.startswith("."))

    def tree(self, path: str) -> dict[str, Stat]:
        with self._translated(path, "list the folder"):
            self._fs.invalidate_cache()
            found = self._call("find", self._at(path), detail=True)
        prefix = self._at(path).lstrip("/") + "/"
        return {
            str(name).lstrip("/").removeprefix(prefix): Stat(
                int(info.get("size") or 0), _modified(info), str(info.get("ETag") or "").strip('"')
            )
            for name, info in found.items()
            if str(name).lstrip("/").startswith(prefix)
        }

    def publish(
        self, draft: ManifestDraft, folder: Path, *, keep_source: bool, current: Callable[[], Manifest | None]
    ) -> Manifest:
        files = scan_folder(folder)
        entries, _ = hash_files([(file.relative, file.path) for file in files])
        manifest = complete(draft, entries, files_at=f"files-{secrets.token_hex(8)}")
        artifact = artifact_path(draft.stage, draft.fingerprint)
        log.info("uploading %d files, %s, to %s", len(files), human_size(manifest.size_bytes), self.uri(artifact))
        try:
            self._upload([(file.relative, file.path) for file in files], manifest)
            with translated(str(folder), "read the folder"):
                for file in files:
                    unchanged(file)
        except BaseException:
            self._discard(manifest)
            raise
        # From here an error leaves the upload to gc: the manifest may have arrived although the answer did not.
        with file_lock(self.lock_folder / PUBLISH_LOCK):
            stored = current() or self._mark(manifest, current)
        if stored.files_at != manifest.files_at:
            self._discard(manifest)
        if not keep_source:
            self._copies.adopt(stored, folder)
        return stored

    def _upload(self, files: list[tuple[str, Path]], manifest: Manifest) -> None:
        place = self._files_path(manifest)

        def upload(file: tuple[str, Path]) -> None:
            relative, path = file
            with self._translated(f"{place}/{relative}", "upload the file"):
                self._call("put_file", str(path), self._at(f"{place}/{relative}"), size=path.stat().st_size)

        _in_threads(upload, files, _THREADS)
        stored = self.tree(place)
        for entry in manifest.files:
            size = stored[entry.path].size if entry.path in stored else None
            if size != entry.size:
                raise Retryable(
                    f"the upload is incomplete: {size or 0} of {entry.size} bytes arrived",
                    where=self.uri(f"{place}/{entry.path}"),
                    fix="run again",
                )
        self._write_etags(manifest, {path: seen.etag for path, seen in stored.items()})

    def _mark(self, manifest: Manifest, current: Callable[[], Manifest | None]) -> Manifest:
        """Write the manifest, only if there is none where the object store can do that (S3's If-None-Match). Where it
        cannot, of two hosts that write within the same instant the second one wins; each has its own whole upload."""
        path = f"{artifact_path(manifest.stage, manifest.fingerprint)}/{MANIFEST}"
        if self.read(path) is None:
            try:
                with self._translated(path, "write the file"):
                    self._call("pipe_file", self._at(path), manifest.to_bytes(), mode="create")
                return manifest
            except PipelineError as error:
                # Another host was first, or the store does not know conditional writes.
                log.debug("conditional write refused: %s", error)
                existing = current()
                if existing is not None:
                    return existing
                if error.retryable:
                    raise
        self.write(path, manifest.to_bytes())
        return manifest

    def _discard(self, manifest: Manifest) -> None:
        place = self._files_path(manifest)
        try:
            self.delete_tree(place)
            self.delete(f"{place}.json")
        except PipelineError as error:
            log.warning("left for gc: %s: %s", self.uri(place), error.message)

    def _files_path(self, manifest: Manifest) -> str:
        return f"{artifact_path(manifest.stage, manifest.fingerprint)}/{manifest.files_at}"

    def _write_etags(self, manifest: Manifest, etags: dict[str, str]) -> None:
        data = json.dumps({"version": 1, "etags": etags}, ensure_ascii=False)
        self.write(f"{self._files_path(manifest)}.json", data.encode("utf-8"))

    def _read_etags(self, manifest: Manifest) -> dict[str, str]:
        try:
            data = json.loads(self.read(f"{self._files_path(manifest)}.json") or b"{}")
            return {str(path): str(etag) for path, etag in data["etags"].items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return {}

    def problems(self, manifest: Manifest, deep: bool) -> list[str]:
        place = self._files_path(manifest)
        stored = self.tree(place)
        problems: list[str] = []
        unread: list[FileEntry] = []
        etags = self._read_etags(manifest) if deep else {}
        for entry in manifest.files:
            seen = stored.get(entry.path)
            if seen is None:
                problems.append(f"{entry.path}: missing")
            elif seen.size != entry.size:
                problems.append(f"{entry.path}: size differs: {seen.size} bytes instead of {entry.size}")
            elif deep and (not seen.etag or seen.etag != etags.get(entry.path)):
                unread.append(entry)
        digests = _in_threads(lambda entry: self._sha256(f"{place}/{entry.path}", entry.size), unread, _THREADS)
        for entry, digest in zip(unread, digests, strict=True):
            if digest != entry.sha256:
                problems.append(f"{entry.path}: sha256 differs: {digest[:12]}… instead of {entry.sha256[:12]}…")
        return problems

    def _sha256(self, path: str, size: int) -> str:
        digest = hashlib.sha256()
        with self._translated(path, "read the file"):
            for start in range(0, size, _CHUNK):
                digest.update(self._call("cat_file", self._at(path), start=start, end=min(start + _CHUNK, size)))
        return digest.hexdigest()

    def folder(self, manifest: Manifest) -> Path:
        return self._copies.folder(manifest, lambda target: self._download(manifest, target))

    def _download(self, manifest: Manifest, target: Path) -> None:
        place = self._files_path(manifest)
        log.info(
            "downloading %d files, %s, from %s", len(manifest.files), human_size(manifest.size_bytes), self.uri(place)
        )

        def download(entry: FileEntry) -> None:
            path = target / entry.path
            with self._translated(f"{place}/{entry.path}", "download the file"):
                path.parent.mkdir(parents=True, exist_ok=True)
                try:
                    self._call("get_file", self._at(f"{place}/{entry.path}"), str(path), size=entry.size)
                except FileNotFoundError:
                    self._damaged(place, f"{entry.path}: missing")

        _in_threads(download, manifest.files, _THREADS)
        entries, _ = hash_files([(entry.path, target / entry.path) for entry in manifest.files])
        wrong = [entry.path for entry, found in zip(manifest.files, entries, strict=True) if entry != found]
        if wrong:
            problems = self.problems(manifest, deep=True)
            if problems:
                self._damaged(place, "; ".join(problems[:3]))
            raise Retryable(f"{wrong[0]} arrived incomplete or altered", where=self.uri(place), fix="run again")

    def _damaged(self, place: str, problem: str) -> NoReturn:
        raise StoreError(f"the artifact is damaged: {problem}", where=self.uri(place), fix="run the stage again")

    def forget(self, manifest: Manifest) -> None:
        self._copies.forget(manifest)

    def sweep(self) -> list[str]:
        return self._copies.sweep()


def _in_threads(function: Callable[[_In], _Out], items: Iterable[_In], threads: int) -> list[_Out]:
    """In order; at the first error the rest is not started."""
    pool = ThreadPoolExecutor(threads)
    try:
        return list(pool.map(function, items))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _modified(info: dict[str, Any]) -> float | None:
    for name in ("LastModified", "last_modified", "mtime", "updated", "created"):
        value = info.get(name)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, (int, float)):
            return float(value)
    return None
