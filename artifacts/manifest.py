"""The manifest of an artifact: what a stage made, from what, how, and the digests that prove it.

`manifest.json` is written last and is the commit mark: an artifact without one does not exist. Its fields hold
JSON only, so that a manifest stays readable when classes move.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    model_validator,
)

from tasks.errors import StoreError

SCHEMA_VERSION = 1
MAX_MANIFEST_BYTES = 64 * 2**20

_DRIVE = re.compile(r"[A-Za-z]:")


class DamagedManifest(StoreError):
    """A manifest that is not JSON, lacks a field, or contradicts itself."""

    default_cause = "manifest_damaged"

    def __init__(self, problem: str, where: str) -> None:
        super().__init__(f"the manifest is damaged: {problem}", where=where, fix="run its stage again")


class NewerManifest(StoreError):
    """A manifest that a newer version of the pipeline wrote."""

    default_cause = "manifest_newer"


def check_relative_path(path: str) -> str:
    """Return `path` if it is a relative POSIX path that stays below its folder.

    Raises:
        ValueError: empty, absolute, a drive, a backslash, a control character, not valid Unicode, or a part that
            is empty, `.` or `..`.
    """
    if not path:
        raise ValueError("a path must not be empty")
    if path.startswith("/") or _DRIVE.match(path):
        raise ValueError(f"{path!r} is an absolute path")
    if "\\" in path:
        raise ValueError(f"{path!r} has a backslash; use /")
    if any(ord(char) < 32 or ord(char) == 127 or 0xD800 <= ord(char) <= 0xDFFF for char in path):
        raise ValueError(f"{path!r} has a control character or is not valid Unicode")
    if any(part in ("", ".", "..") for part in path.split("/")):
        raise ValueError(f"{path!r} has an empty, '.' or '..' part")
    return path


def finite_json(value: Any) -> Any:
    """`value` with NaN and infinities, at any depth, replaced by None (JSON has no spelling for them)."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite_json(item) for item in value]
    return value


def _utc(moment: datetime) -> datetime:
    return moment.astimezone(UTC)


RelativePath = Annotated[str, AfterValidator(check_relative_path)]
JsonObject = Annotated[dict[str, JsonValue], BeforeValidator(finite_json)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
StageName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
Moment = Annotated[AwareDatetime, AfterValidator(_utc)]


class _Closed(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class FileEntry(_Closed):
    """One file of an artifact."""

    path: RelativePath
    """Relative to the artifact's files, with `/`."""
    size: int = Field(ge=0)
    """Bytes."""
    sha256: Sha256


class Parent(_Closed):
    """The artifact that an input came from."""

    stage: StageName
    fingerprint: Sha256
    content_digest: Sha256


class ManifestDraft(_Closed):
    """A manifest without its files; the store hashes them and returns the `Manifest`."""

    schema_version: Literal[1] = 1
    stage: StageName
    stage_version: int = Field(ge=0)
    """Raised by hand when the code of a stage changes its result."""
    fingerprint: Sha256
    terms: dict[str, JsonValue] = Field(default_factory=dict)
    """What the fingerprint was computed from; the answer to "why does it rerun"."""
    metrics: JsonObject = Field(default_factory=dict)
    """NaN and infinities are stored as null."""
    config: JsonObject = Field(default_factory=dict)
    """As requested."""
    effective_config: JsonObject = Field(default_factory=dict)
    """As read back from the trainer."""
    parents: dict[str, Parent] = Field(default_factory=dict)
    """By the name of the input."""
    library_versions: dict[str, str] = Field(default_factory=dict)
    git_revision: str | None = None
    hardware: JsonObject = Field(default_factory=dict)
    """`gpus` (names) and `cpus` (cores) that the stage could use; empty in artifacts of older versions."""
    attempt: int = Field(default=1, ge=1)
    started_at: Moment
    finished_at: Moment
    duration_s: float = Field(ge=0, allow_inf_nan=False)
    notes: list[str] = Field(default_factory=list)
    resumed_from_step: int | None = Field(default=None, ge=0)


class Manifest(ManifestDraft):
    """What the store knows about an artifact. Results passed between stages are manifests, never weights."""

    files: tuple[FileEntry, ...]
    """Sorted by path."""
    content_digest: Sha256
    """`content_digest(files)`; children put this into their fingerprint, so that equal content gives equal keys."""
    files_at: str = Field(default="files", pattern=r"^files(-[0-9a-f]{8,32})?$")
    """Name of the folder beside manifest.json that holds the files (object stores: one per upload)."""

    @model_validator(mode="after")
    def _consistent(self) -> Manifest:
        paths = [entry.path for entry in self.files]
        if paths != sorted(paths) or len(set(paths)) != len(paths):
            raise ValueError("files must be sorted by path, each path once")
        clash = set(paths) & {parent for path in paths for parent in _folders_of(path)}
        if clash:
            raise ValueError(f"{min(clash)!r} is both a file and a folder")
        if self.content_digest != content_digest(self.files):
            raise ValueError("content_digest does not fit the files")
        return self

    @property
    def size_bytes(self) -> int:
        return sum(entry.size for entry in self.files)

    def as_parent(self) -> Parent:
        """The reference that a child's manifest keeps under the name of the input."""
        return Parent(stage=self.stage, fingerprint=self.fingerprint, content_digest=self.content_digest)

    def to_bytes(self) -> bytes:
        """Readable JSON, UTF-8."""
        data = self.model_dump(mode="json")
        return (json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8")


def complete(draft: ManifestDraft, files: Iterable[FileEntry], files_at: str = "files") -> Manifest:
    """The manifest of `draft` with its files."""
    entries = tuple(sorted(files, key=lambda entry: entry.path))
    fields = {name: getattr(draft, name) for name in ManifestDraft.model_fields}
    return Manifest(**fields, files=entries, content_digest=content_digest(entries), files_at=files_at)


def content_digest(files: Sequence[FileEntry]) -> str:
    """sha256 over one line `sha256  path` a file, sorted by path (the format of `sha256sum`).

    Depends on names and contents only: not on times, sizes on disk, owner or order.
    """
    lines = [f"{entry.sha256}  {entry.path}\n" for entry in sorted(files, key=lambda entry: entry.path)]
    return hashlib.sha256("".join(lines).encode("utf-8")).hexdigest()


def parse_manifest(data: bytes, where: str) -> Manifest:
    """Read a manifest.

    Raises:
        NewerManifest: its schema version is above `SCHEMA_VERSION`.
        DamagedManifest: anything else that is wrong with it.
    """
    raw = raw_manifest(data, where)
    version = raw.get("schema_version")
    if isinstance(version, int) and not isinstance(version, bool) and version > SCHEMA_VERSION:
        raise NewerManifest(
            f"the manifest has schema version {version}; this version of the pipeline reads up to {SCHEMA_VERSION}",
            where=where,
            fix="update the pipeline, or use another store",
        )
    try:
        return Manifest.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"])) or "manifest"
        raise DamagedManifest(f"{field}: {first['msg']}", where=where) from None


def raw_manifest(data: bytes, where: str) -> dict[str, Any]:
    """The manifest's JSON object, whatever its schema version; DamagedManifest if it is none."""
    if len(data) > MAX_MANIFEST_BYTES:
        raise DamagedManifest(f"larger than {MAX_MANIFEST_BYTES} bytes", where=where)
    try:
        raw = json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise DamagedManifest(f"not JSON: {error}", where=where) from None
    if not isinstance(raw, dict):
        raise DamagedManifest(f"a {type(raw).__name__}, not an object", where=where)
    return raw


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _folders_of(path: str) -> list[str]:
    parts = path.split("/")[:-1]
    return ["/".join(parts[: index + 1]) for index in range(len(parts))]
