"""Finding the artifact that a user means."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from artifacts import registry
from artifacts.backend import ARTIFACTS, MANIFEST, Backend, artifact_keys
from artifacts.manifest import MAX_MANIFEST_BYTES, Manifest, parse_manifest
from tasks.errors import StoreError

if TYPE_CHECKING:
    from artifacts.store import Store

_HEX = re.compile(r"[0-9a-f]{4,64}")
_PLACE = re.compile(rf"{ARTIFACTS}/([a-z][a-z0-9_]*)/([0-9a-f]{{64}})(?:/{re.escape(MANIFEST)})?/?\Z")
_SHOWN = 8
_FIX = "`artifacts ls` lists what there is"


def find(store: Store, backend: Backend, ref: str) -> Manifest:
    """See `Store.find`."""
    text = ref.strip().replace("\0", "")
    name, separator, last = text.rpartition(":")
    if last in registry.POINTERS and "/" not in name:
        export = registry.pointer(store, text).export
        return _by_prefix(store, backend, export.stage, export.fingerprint)
    if text == "latest" or (separator and last == "latest" and "/" not in name):
        return _latest(store, name or None)
    stage, _, prefix = text.rpartition("/")
    if _HEX.fullmatch(prefix.lower()) and "/" not in stage:
        return _by_prefix(store, backend, stage or None, prefix.lower())
    if "/" in text or text.endswith(".json"):
        return _by_place(store, backend, text)
    raise StoreError(
        f"{ref!r} names no artifact",
        where=store.url,
        fix="give the path of a manifest, at least 4 digits of a fingerprint, stage/digits, latest, stage:latest or "
        "production",
    )


def _latest(store: Store, stage: str | None) -> Manifest:
    found = list(store.list(stage))
    if not found:
        raise StoreError(f"there is no artifact of {stage or 'any stage'} yet", where=store.url, fix=_FIX)
    return found[-1]


def _by_prefix(store: Store, backend: Backend, stage: str | None, prefix: str) -> Manifest:
    keys = [key for key in artifact_keys(backend, stage) if key[1].startswith(prefix)]
    found = [manifest for key in keys if (manifest := store.lookup(*key)) is not None]
    what = f"{stage}/{prefix}" if stage else prefix
    if not found:
        raise StoreError(
            f"no artifact's fingerprint begins with {what!r}{_near(store, stage)}", where=store.url, fix=_FIX
        )
    if len(found) > 1:
        raise StoreError(
            f"{what!r} fits {len(found)} artifacts: {_names(found)}",
            where=store.url,
            fix="give more digits or the stage",
        )
    return found[0]


def _by_place(store: Store, backend: Backend, text: str) -> Manifest:
    """A path or URL in this store, or a manifest file elsewhere whose artifact is in this store too."""
    if text.startswith(backend.label.rstrip("/") + "/"):
        place = _PLACE.match(text.removeprefix(backend.label.rstrip("/") + "/"))
    else:
        place = None
        if backend.root is not None and "://" not in text:
            path = Path(text).expanduser().absolute()
            if path.resolve().is_relative_to(backend.root.resolve()):
                place = _PLACE.match(path.resolve().relative_to(backend.root.resolve()).as_posix())
    if place is None and "://" not in text:
        place = _PLACE.match(_place_in_file(Path(text).expanduser()))
    manifest = store.lookup(place[1], place[2]) if place else None
    if manifest is None:
        raise StoreError(f"{text!r} is no artifact of this store{_near(store, None)}", where=store.url, fix=_FIX)
    return manifest


def _place_in_file(path: Path) -> str:
    file = path / MANIFEST if path.is_dir() else path
    try:
        with open(file, "rb") as stream:
            data = stream.read(MAX_MANIFEST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise StoreError(f"cannot read the manifest: {reason}", where=str(file), fix=_FIX) from None
    manifest = parse_manifest(data, str(file))
    return f"{ARTIFACTS}/{manifest.stage}/{manifest.fingerprint}"


def _near(store: Store, stage: str | None) -> str:
    newest = list(store.list(stage))[-_SHOWN:][::-1]
    return f"; the newest are {_names(newest)}" if newest else "; the store has none yet"


def _names(manifests: Sequence[Manifest]) -> str:
    shown = ", ".join(f"{item.stage}/{item.fingerprint[:12]}" for item in manifests[:_SHOWN])
    return shown + (f" and {len(manifests) - _SHOWN} more" if len(manifests) > _SHOWN else "")
