"""The artifact store: results of stages by fingerprint, and small JSON records beside them.

An artifact exists when its manifest does, and the manifest is written last. What a store promises does not depend
on where it is (a folder, S3, memory): a whole artifact or none, verified when used.
"""

from __future__ import annotations

import builtins
import logging
import os
import secrets
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from artifacts import gc as collector
from artifacts import records, refs
from artifacts.backend import INVALID, MANIFEST, PUBLISH_LOCK, Backend, artifact_keys, artifact_path
from artifacts.faults import Redactor, translated
from artifacts.hashing import free_bytes
from artifacts.local_backend import LocalBackend
from artifacts.locks import file_lock
from artifacts.manifest import (
    DamagedManifest,
    Manifest,
    ManifestDraft,
    NewerManifest,
    parse_manifest,
)
from artifacts.registry import KEPT_VERSIONS
from artifacts.remote_backend import RemoteBackend
from tasks.errors import StoreError

__all__ = ["Store", "free_bytes", "open_store"]

log = logging.getLogger(__name__)


class Store:
    """Artifacts and records in one place. Make one with `open_store`.

    Every method raises StoreError (or Retryable for a network that may come back) with the place and what to do.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def __repr__(self) -> str:
        return f"Store({self.url!r})"

    @property
    def url(self) -> str:
        """Where the store is, without secrets."""
        return self._backend.label

    @property
    def root(self) -> Path | None:
        """The folder of a local store; None for others."""
        return self._backend.root

    def uri(self, manifest: Manifest) -> str:
        """Path or URL of the artifact's manifest; `find` takes it."""
        return self._backend.uri(f"{artifact_path(manifest.stage, manifest.fingerprint)}/{MANIFEST}")

    def lock_path(self, stage: str, fingerprint: str) -> Path:
        """The file to lock (`artifacts.locks.file_lock`) while a stage makes this artifact. Always on a local disk:
        two hosts that share an object store exclude each other only at the commit, where the first one wins."""
        return self._backend.lock_folder / f"{stage}-{fingerprint[:32]}.lock"

    def lookup(self, stage: str, fingerprint: str) -> Manifest | None:
        """The artifact's manifest, or None. Says nothing about its files: see `verify`.

        A damaged manifest counts as none, with a warning in the log.

        Raises:
            NewerManifest: a newer version of the pipeline wrote it.
        """
        path = f"{artifact_path(stage, fingerprint)}/{MANIFEST}"
        return self._parse(self._backend.read(path), path)

    def _parse(self, data: bytes | None, path: str) -> Manifest | None:
        if data is None:
            return None
        where = self._backend.uri(path)
        try:
            manifest = parse_manifest(data, where)
            if path != f"{artifact_path(manifest.stage, manifest.fingerprint)}/{MANIFEST}":
                raise DamagedManifest(
                    f"it belongs to {manifest.stage}/{manifest.fingerprint[:12]} and was copied here", where=where
                )
        except DamagedManifest as error:
            log.warning("ignored, as if it were not there: %s", error)
            return None
        return manifest

    def verify(self, manifest: Manifest, deep: bool = False) -> builtins.list[str]:
        """What is wrong with the artifact's files, one sentence each (missing, size differs, sha256 differs).

        Args:
            deep: compare contents. Files that were hashed before and have not been touched since are not read again.
        """
        return self._backend.problems(manifest, deep)

    def commit(
        self, draft: ManifestDraft, folder: Path, *, replace: bool = False, keep_source: bool = False
    ) -> Manifest:
        """Store `folder` as the artifact of `draft`: all of it or nothing.

        If a whole artifact is already there (another process was faster), that one stays and is returned, so use
        the returned manifest. A damaged one is replaced. After an error `folder` is as it was, and commit
        can be called again.

        Args:
            folder: its files; no links that lead out of it. **Consumed**: a local store takes the files over as
                hard links and deletes the folder (get them back with `local_folder`).
            replace: replace a whole artifact too (a forced rerun).
            keep_source: copy, and leave `folder` alone.
        """

        def current() -> Manifest | None:
            if replace:
                return None
            manifest = self.lookup(draft.stage, draft.fingerprint)
            if manifest is None or self.verify(manifest, deep=True):
                return None
            log.info("%s was stored meanwhile by another process; it is kept", self.uri(manifest))
            return manifest

        return self._backend.publish(draft, Path(folder), keep_source=keep_source, current=current)

    def local_folder(self, manifest: Manifest) -> Path:
        """A folder with the artifact's files, to be read only. Object stores: downloaded once, verified, reused."""
        return self._backend.folder(manifest)

    def invalidate(self, manifest: Manifest, reason: str) -> None:
        """Make an artifact not exist, so that its stage (and only that) reruns. Its files stay until gc or commit;
        the manifest is kept aside as `manifest.invalid.json` with the reason."""
        place = artifact_path(manifest.stage, manifest.fingerprint)
        note = {"reason": reason, "at": datetime.now(UTC).isoformat(), "manifest": manifest.model_dump(mode="json")}
        self._backend.write(f"{place}/{INVALID}", records.to_bytes(note))
        self._backend.delete(f"{place}/{MANIFEST}")
        log.warning("%s %s is no longer valid: %s", manifest.stage, manifest.fingerprint[:12], reason)

    def list(self, stage: str | None = None) -> Iterator[Manifest]:
        """The manifests of all artifacts, oldest first. Damaged and newer ones are logged and left out."""
        paths = [f"{artifact_path(*key)}/{MANIFEST}" for key in artifact_keys(self._backend, stage)]
        found = []
        for path, data in zip(paths, self._backend.read_many(paths), strict=True):
            try:
                manifest = self._parse(data, path)
            except NewerManifest as error:
                log.warning("left out: %s", error)
                continue
            if manifest is not None:
                found.append(manifest)
        return iter(sorted(found, key=lambda item: (item.finished_at, item.stage, item.fingerprint)))

    def find(self, ref: str) -> Manifest:
        """The artifact that a user means: path or URL of a manifest, `latest`, `stage:latest`, a fingerprint or its
        beginning, `stage/beginning`, or the export behind `production`, `candidate` or `<model name>:production`.

        Raises:
            StoreError: none or several fit; the candidates are named.
        """
        return refs.find(self, self._backend, ref)

    def remove(self, manifest: Manifest) -> None:
        """Delete an artifact, its manifest first."""
        with self._backend.bin() as throw_away:
            self.remove_with(manifest, throw_away)

    def remove_with(self, manifest: Manifest, throw_away: Callable[[str], None]) -> None:
        """The same, as one of many; see `Backend.bin`."""
        place = artifact_path(manifest.stage, manifest.fingerprint)
        self._backend.delete(f"{place}/{MANIFEST}")
        throw_away(place)
        self._backend.forget(manifest)

    def gc(
        self,
        *,
        keep: Collection[str] = (),
        keep_last: int | None = None,
        older_than: timedelta | None = None,
        grace: timedelta = timedelta(days=1),
        kept_versions: int = KEPT_VERSIONS,
        dry_run: bool = False,
    ) -> builtins.list[collector.Removed]:
        """Delete what nobody needs; see `artifacts.gc.collect`."""
        return collector.collect(
            self,
            self._backend,
            keep=keep,
            keep_last=keep_last,
            older_than=older_than,
            grace=grace,
            kept_versions=kept_versions,
            dry_run=dry_run,
        )

    def check_writable(self) -> None:
        """Write, read back and delete a small file, and try a lock; StoreError with where and what to do if not."""
        name, data = f".probe-{secrets.token_hex(8)}", secrets.token_hex(8).encode()
        self._backend.write(name, data)
        stored = self._backend.read(name)
        self._backend.delete(name)
        if stored != data:
            raise StoreError("what was written reads back differently", where=self.url, fix="check the disk or bucket")
        with file_lock(self._backend.lock_folder / "probe.lock"):
            pass

    def write_record(self, path: str, data: Mapping[str, Any]) -> None:
        """Write a JSON record such as `runs/<run id>.json`, all or nothing. NaN becomes null."""
        records.write(self._backend, path, data)

    def create_record(self, path: str, data: Mapping[str, Any], *, needs: Collection[tuple[str, str]] = ()) -> bool:
        """Write a record that is not there yet; False if there is one. Of several that try at once, one succeeds.

        Args:
            needs: (stage, fingerprint) of artifacts that the record refers to; gc deletes none of them meanwhile.

        Raises:
            StoreError: (cause `artifact_gone`) one of them is not there.
        """
        with file_lock(self._backend.lock_folder / PUBLISH_LOCK):
            gone = [f"{stage}/{key[:16]}" for stage, key in needs if self.lookup(stage, key) is None]
            if gone:
                raise StoreError(
                    f"{', '.join(gone)} is not in the store any more",
                    where=self.url,
                    fix="run the pipeline again, or choose another version",
                    cause="artifact_gone",
                )
            return records.create(self._backend, path, data)

    def read_record(self, path: str) -> dict[str, Any] | None:
        """A record, or None if there is none. StoreError if it is damaged."""
        return records.read(self._backend, path)

    def list_records(self, prefix: str) -> builtins.list[str]:
        """Paths of the records below a folder such as `runs`, sorted; `read_record` takes them."""
        return records.paths(self._backend, prefix)


def open_store(url: str, *, storage_options: Mapping[str, Any] | None = None, cache: Path | None = None) -> Store:
    """Open a store; nothing is created or contacted yet (see `Store.check_writable`).

    Args:
        url: a local path, `file://`, `memory://name`, `s3://bucket/prefix` or another fsspec URL.
        storage_options: for the fsspec file system, e.g. `{"endpoint_url": ..., "key": ..., "secret": ...}`; by default
            S3 reads the usual AWS variables (AWS_ENDPOINT_URL among them). Never shown in a message.
        cache: folder for local copies of remote artifacts; by default `$XDG_CACHE_HOME/grpo-pipeline`.

    Raises:
        StoreError: the URL is empty or malformed, or its file system is not installed.
    """
    redact, options = Redactor(storage_options or {}), _revealed(storage_options or {})
    scheme, separator, rest = url.partition("://")
    if (
        not url.strip()
        or "::" in url
        or (not separator and url.split("/")[0].endswith(":"))
        or (separator and not rest)
    ):
        raise StoreError("not a store's URL", where=redact(url) or "store", fix="use a path or s3://bucket/prefix")
    if not separator or scheme in ("file", "local"):
        path = unquote(urlsplit(url).path) if url.startswith("file:///") else rest if separator else url
        return Store(LocalBackend(Path(path).expanduser().absolute()))
    label = redact(url)
    if scheme in ("s3", "s3a"):
        options = _s3_defaults(options)
    try:
        import fsspec

        with translated(label, "open the store", redact):
            fs, base = fsspec.core.url_to_fs(url, **options)
    except (ImportError, ValueError, TypeError) as error:
        reason = redact(str(error))
        raise StoreError(f"cannot open the store: {reason}", where=label, fix="check its URL and options") from None
    if cache is None:
        cache = _memory_cache() if scheme == "memory" else _default_cache()
    if scheme in ("s3", "s3a"):
        fs.retries = 3  # times the attempts of botocore
    return Store(RemoteBackend(fs, base, label, cache, redact))


def _s3_defaults(options: dict[str, Any]) -> dict[str, Any]:
    """Fresh listings (other processes write too), and an error after minutes rather than a quarter of an hour."""
    config = {"connect_timeout": 10, "read_timeout": 30, "retries": {"max_attempts": 2, "mode": "standard"}}
    return {
        "use_listings_cache": False,
        **options,
        "config_kwargs": {**config, **options.get("config_kwargs", {})},
    }


def _revealed(options: Mapping[str, Any]) -> dict[str, Any]:
    """Plain values of pydantic secrets, which a config keeps wrapped."""
    return {
        key: value.get_secret_value()
        if hasattr(value, "get_secret_value")
        else _revealed(value)
        if isinstance(value, Mapping)
        else value
        for key, value in options.items()
    }


def _default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "grpo-pipeline"


@lru_cache(maxsize=1)
def _memory_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="grpo-pipeline-")


def _memory_cache() -> Path:
    """A memory store ends with its process, and so do the copies of its artifacts."""
    return Path(_memory_folder().name)
