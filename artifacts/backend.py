"""What the store needs from the place that holds it, and where things lie in it.

- `artifacts/<stage>/<fingerprint>/manifest.json`: the commit mark
- `artifacts/<stage>/<fingerprint>/files/...` (object stores: `files-<random>/...`, one per upload)
- `runs/<run id>.json` and the like: records
- `registry/<name>/<number>.json`: events of a promoted model; see `artifacts.registry`
- `locks/`, `.staging/`: local stores only
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from artifacts.manifest import Manifest, ManifestDraft
from tasks.errors import StoreError

ARTIFACTS = "artifacts"
MANIFEST = "manifest.json"
INVALID = "manifest.invalid.json"
PUBLISH_LOCK = "publish.lock"


_STAGE = re.compile(r"[a-z][a-z0-9_]{0,63}")
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


def artifact_path(stage: str, fingerprint: str) -> str:
    """The artifact's folder. StoreError for names that no artifact can have (they could lead out of the store)."""
    if not _STAGE.fullmatch(stage):
        raise StoreError(f"{stage!r} is not the name of a stage", fix="use lower-case letters, digits and _")
    if not _FINGERPRINT.fullmatch(fingerprint):
        raise StoreError(f"{fingerprint!r} is not a fingerprint", fix="give all 64 hex digits, or use Store.find")
    return f"{ARTIFACTS}/{stage}/{fingerprint}"


def artifact_keys(backend: Backend, stage: str | None = None) -> list[tuple[str, str]]:
    """(stage, fingerprint) of each artifact's folder, sorted, with a manifest or without; other names are ignored."""
    stages = [stage] if stage is not None else backend.names(ARTIFACTS)
    return [
        (name, fingerprint)
        for name in stages
        if _STAGE.fullmatch(name)
        for fingerprint in backend.names(f"{ARTIFACTS}/{name}")
        if _FINGERPRINT.fullmatch(fingerprint)
    ]


@dataclass(frozen=True)
class Stat:
    """A stored file. `modified` is seconds since the epoch, or None if the place does not say."""

    size: int
    modified: float | None
    etag: str = ""


class Backend(Protocol):
    """A place that holds a store. Paths are relative to the store, with `/`."""

    label: str
    """Path or URL, without secrets."""
    lock_folder: Path
    """On this machine's disk."""

    @property
    def root(self) -> Path | None:
        """The folder of a local store."""

    def uri(self, path: str) -> str: ...

    def read(self, path: str) -> bytes | None:
        """The file's content; None if there is none."""

    def read_many(self, paths: list[str]) -> list[bytes | None]: ...

    def write(self, path: str, data: bytes) -> None:
        """All or nothing."""

    def create(self, path: str, data: bytes) -> bool:
        """Write a file that is not there yet, all or nothing; False if there is one. Of several that try, one succeeds."""

    def delete(self, path: str) -> None:
        """Delete a file, if it is there."""

    def delete_tree(self, path: str) -> None:
        """Delete a folder, if it is there."""

    def bin(self) -> AbstractContextManager[Callable[[str], None]]:
        """To delete many folders: `throw_away(path)` takes one out of sight at once, and the end of the block frees the
        space."""

    def names(self, path: str) -> list[str]:
        """Names directly below a folder, sorted, hidden ones left out; empty if there is no such folder."""

    def tree(self, path: str) -> dict[str, Stat]:
        """All files below a folder, by path relative to it."""

    def publish(
        self, draft: ManifestDraft, folder: Path, *, keep_source: bool, current: Callable[[], Manifest | None]
    ) -> Manifest:
        """Store `folder` as the artifact, the manifest last. If `current()`, called just before the commit, returns
        a manifest, that one stays and is returned."""

    def problems(self, manifest: Manifest, deep: bool) -> list[str]:
        """What is wrong with the artifact's files, in words."""

    def folder(self, manifest: Manifest) -> Path:
        """A local folder with the artifact's files."""

    def forget(self, manifest: Manifest) -> None:
        """Delete local copies of an artifact that is no longer in the store."""

    def sweep(self) -> list[str]:
        """Delete what dead processes left in staging; return their places."""
