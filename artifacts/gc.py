"""Deleting what nobody needs: old artifacts, uploads that never got their manifest, and dead staging folders."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Any

from artifacts import registry
from artifacts.backend import MANIFEST, PUBLISH_LOCK, Backend, Stat, artifact_keys, artifact_path
from artifacts.locks import file_lock
from artifacts.manifest import DamagedManifest, Manifest, NewerManifest, parse_manifest, raw_manifest

if TYPE_CHECKING:
    from artifacts.store import Store

log = logging.getLogger(__name__)

_Key = tuple[str, str]
_BATCH = 50  # a commit waits for as many deletions at most
_UPLOAD = re.compile(r"files(-[0-9a-f]{8,32})?(\.json)?")


@dataclass(frozen=True)
class Removed:
    """Something that gc deleted, or would delete."""

    kind: str
    """`artifact`, `half-written` (files without a valid manifest) or `staging`."""
    stage: str
    fingerprint: str
    uri: str
    size_bytes: int
    reason: str


def collect(
    store: Store,
    backend: Backend,
    *,
    keep: Collection[str],
    keep_last: int | None,
    older_than: timedelta | None,
    grace: timedelta,
    kept_versions: int,
    dry_run: bool,
) -> list[Removed]:
    """Delete artifacts and leftovers; return what was (or with `dry_run` would be) deleted.

    An artifact goes if a rule was given (`keep_last` or `older_than`) and all rules allow it: its fingerprint is not in
    `keep`, it is not among the `keep_last` newest of its stage, it finished longer than `older_than` ago, and no
    artifact that stays has it among its ancestors. Without a rule only leftovers go: files without a valid
    manifest whose newest file is older than `grace` (younger ones may be an upload in progress), and staging
    folders of dead processes. Artifacts of a newer pipeline version stay, with their parents; so do those that the
    registry points to (candidate, production, the newest `kept_versions` former productions), with their ancestors.

    A run in progress uses artifacts that nothing refers to yet: put their fingerprints into `keep`, or choose
    `older_than` above the length of a run.
    """
    whole, protected, leftover = _survey(backend)
    promoted = registry.referenced(store, kept_versions)
    doomed = _doomed(whole, protected | promoted, set(keep), keep_last, older_than)
    removed = []
    if not dry_run:
        removed += [Removed("staging", "", "", place, 0, "its process is dead") for place in backend.sweep()]
    removed += _collect_doomed(store, backend, doomed, promoted, kept_versions, dry_run)
    for key in leftover:
        with _no_commit(backend, dry_run):
            if store.lookup(*key) is None:
                removed += _half_written(backend, key, grace, dry_run)
    if backend.root is None:
        gone = {_key(manifest) for manifest in doomed}
        for manifest in (item for item in whole if _key(item) not in gone):
            removed += _lost_uploads(backend, manifest, grace, dry_run)
    for item in removed:
        log.info("%s %s: %s", "would remove" if dry_run else "removed", item.uri, item.reason)
    return removed


def _collect_doomed(
    store: Store, backend: Backend, doomed: list[Manifest], promoted: set[_Key], kept_versions: int, dry_run: bool
) -> list[Removed]:
    removed: list[Removed] = []
    with nullcontext(_keep) if dry_run else backend.bin() as throw_away:
        for start in range(0, len(doomed), _BATCH):
            with _no_commit(backend, dry_run):
                for manifest in doomed[start : start + _BATCH]:
                    if not dry_run and registry.referenced(store, kept_versions) != promoted:
                        log.warning("a model was promoted meanwhile; the other artifacts are left for the next gc")
                        return removed
                    if store.lookup(*_key(manifest)) != manifest:  # made again since the survey
                        continue
                    if not dry_run:
                        store.remove_with(manifest, throw_away)
                    reason = f"finished {manifest.finished_at:%Y-%m-%d %H:%M} UTC, not kept by any rule or artifact"
                    uri = store.uri(manifest)
                    removed.append(Removed("artifact", *_key(manifest), uri, manifest.size_bytes, reason))
    return removed


def _keep(path: str) -> None:
    """A dry run throws nothing away."""


def _no_commit(backend: Backend, dry_run: bool) -> AbstractContextManager[int]:
    """Keeps commits on this machine from putting an artifact in place between our look and our deletion."""
    return nullcontext(0) if dry_run else file_lock(backend.lock_folder / PUBLISH_LOCK)


def _survey(backend: Backend) -> tuple[list[Manifest], set[_Key], list[_Key]]:
    """Valid artifacts, keys that newer artifacts need (themselves included), and places without a valid manifest."""
    keys = artifact_keys(backend)
    paths = [f"{artifact_path(*key)}/{MANIFEST}" for key in keys]
    whole: list[Manifest] = []
    protected: set[_Key] = set()
    leftover: list[_Key] = []
    for key, path, data in zip(keys, paths, backend.read_many(paths), strict=True):
        try:
            manifest = None if data is None else parse_manifest(data, path)
        except NewerManifest:
            protected |= {key, *_raw_parents(raw_manifest(data or b"", path))}
            continue
        except DamagedManifest:
            manifest = None
        if manifest is None or _key(manifest) != key:
            leftover.append(key)
        else:
            whole.append(manifest)
    return whole, protected, leftover


def _raw_parents(raw: dict[str, Any]) -> Iterable[_Key]:
    """As far as they can be read in a schema that is not known."""
    parents = raw.get("parents")
    for parent in parents.values() if isinstance(parents, dict) else ():
        if isinstance(parent, dict):
            yield str(parent.get("stage")), str(parent.get("fingerprint"))


def _doomed(
    whole: list[Manifest],
    protected: set[_Key],
    keep: set[str],
    keep_last: int | None,
    older_than: timedelta | None,
) -> list[Manifest]:
    if keep_last is None and older_than is None:
        return []
    by_key = {_key(item): item for item in whole}
    stay = protected | {_key(item) for item in whole if item.fingerprint in keep}
    if keep_last is not None:
        for _, group in groupby(
            sorted(whole, key=lambda item: (item.stage, item.finished_at)), lambda item: item.stage
        ):
            stay |= {_key(item) for item in list(group)[max(0, keep_last) * -1 :] if keep_last > 0}
    if older_than is not None:
        limit = datetime.now(UTC) - older_than
        stay |= {_key(item) for item in whole if item.finished_at > limit}
    queue = list(stay)
    while queue:
        item = by_key.get(queue.pop())
        for parent in item.parents.values() if item is not None else ():
            key = (parent.stage, parent.fingerprint)
            if key not in stay:
                stay.add(key)
                queue.append(key)
    return sorted((item for key, item in by_key.items() if key not in stay), key=lambda item: item.finished_at)


def _half_written(backend: Backend, key: _Key, grace: timedelta, dry_run: bool) -> list[Removed]:
    place = artifact_path(*key)
    tree = backend.tree(place)
    if not _old(tree, grace):
        return []
    if not dry_run:
        backend.delete_tree(place)
    size = sum(seen.size for seen in tree.values())
    return [Removed("half-written", *key, backend.uri(place), size, "it has no valid manifest")]


def _lost_uploads(backend: Backend, manifest: Manifest, grace: timedelta, dry_run: bool) -> list[Removed]:
    """Uploads beside the one that the manifest names: interrupted, or of a host that came second."""
    place = artifact_path(manifest.stage, manifest.fingerprint)
    removed = []
    for name in backend.names(place):
        if not _UPLOAD.fullmatch(name) or name.removesuffix(".json") == manifest.files_at:
            continue
        tree = backend.tree(f"{place}/{name}") if not name.endswith(".json") else {}
        if name.endswith(".json") or _old(tree, grace):
            uri, size = backend.uri(f"{place}/{name}"), sum(seen.size for seen in tree.values())
            if tree:
                removed.append(Removed("half-written", *_key(manifest), uri, size, "another upload was committed"))
            if not dry_run:
                backend.delete_tree(f"{place}/{name}")
    return removed


def _old(tree: dict[str, Stat], grace: timedelta) -> bool:
    """Whether nothing was written for as long as `grace`. A time that is not known counts as now."""
    now = time.time()
    newest = max((now if seen.modified is None else seen.modified for seen in tree.values()), default=0.0)
    return now - newest > grace.total_seconds()


def _key(manifest: Manifest) -> _Key:
    return manifest.stage, manifest.fingerprint
