"""Small JSON records beside the artifacts: runs, registry pointers, reports."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from artifacts.backend import ARTIFACTS, Backend
from artifacts.manifest import check_relative_path, finite_json
from tasks.errors import StoreError


def write(backend: Backend, path: str, data: Mapping[str, Any]) -> None:
    """Write a record, all or nothing.

    Raises:
        StoreError: the path does not end in .json, leads out of the store or into `artifacts/`; not JSON.
    """
    name = _record_path(backend, path)
    backend.write(name, _content(backend, name, data))


def create(backend: Backend, path: str, data: Mapping[str, Any]) -> bool:
    """Write a record that is not there yet; False if there is one. Errors as in `write`."""
    name = _record_path(backend, path)
    return backend.create(name, _content(backend, name, data))


def read(backend: Backend, path: str) -> dict[str, Any] | None:
    """A record, or None if there is none. StoreError if it is damaged."""
    name = _record_path(backend, path)
    data = backend.read(name)
    if data is None:
        return None
    try:
        record = json.loads(data)
        problem = "" if isinstance(record, dict) else "not a JSON object"
    except (ValueError, RecursionError) as error:
        record, problem = {}, f"not JSON: {error}"
    if problem:
        raise StoreError(f"the record is damaged: {problem}", where=backend.uri(name), fix="restore or delete it")
    return dict(record)


def paths(backend: Backend, prefix: str) -> list[str]:
    """Paths of the records below a folder, sorted."""
    folder = _record_path(backend, f"{prefix.rstrip('/')}/x.json").removesuffix("/x.json")
    return sorted(f"{folder}/{name}" for name in backend.tree(folder) if _is_record(name))


def to_bytes(data: Any) -> bytes:
    """Readable JSON, UTF-8; ValueError for NaN."""
    return (json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8")


def _content(backend: Backend, name: str, data: Mapping[str, Any]) -> bytes:
    try:
        return to_bytes(finite_json(dict(data)))
    except (TypeError, ValueError, RecursionError) as error:
        raise StoreError(f"the record is not JSON: {error}", where=backend.uri(name)) from None


def _record_path(backend: Backend, path: str) -> str:
    try:
        name = check_relative_path(path)
    except ValueError as error:
        raise StoreError(f"not a record's path: {error}", where=backend.label) from None
    if not _is_record(name) or name.split("/")[0] in (ARTIFACTS, "locks"):
        raise StoreError(f"not a record's path: {path!r}", where=backend.label, fix="use a path like runs/<name>.json")
    return name


def _is_record(path: str) -> bool:
    return path.endswith(".json") and not any(part.startswith(".") for part in path.split("/"))
