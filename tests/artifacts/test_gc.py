from __future__ import annotations

import errno
import json
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from artifacts.gc import Removed
from artifacts.locks import file_lock
from artifacts.manifest import Manifest
from artifacts.store import Store, open_store

NOW = datetime.now(UTC)
DAY = timedelta(days=1)


@pytest.fixture(params=["local", "memory"])
def some_store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """The rules do not depend on the place; these are the quick ones."""
    if request.param == "local":
        return open_store(str(tmp_path / "store"))
    return open_store(f"memory://{tmp_path.name}/store", cache=tmp_path / "cache")


@pytest.fixture
def chain(some_store: Store, draft: Any, folder: Any) -> list[Manifest]:
    """Four runs, one a day, the oldest first: dataset -> sft -> grpo each; the first two share their dataset."""
    made: list[Manifest] = []
    data = None
    for number in range(4):
        finished = NOW - (4 - number) * DAY
        if number != 1:
            data = some_store.commit(draft("dataset", seed=number, finished=finished), folder({"d": str(number)}))
            made.append(data)
        sft = some_store.commit(
            draft("sft", seed=number, finished=finished, parents={"data": data}), folder({"s": "1"})
        )
        grpo = some_store.commit(
            draft("grpo", seed=number, finished=finished, parents={"model": sft}), folder({"g": "1"})
        )
        made += [sft, grpo]
    return made


def left(store: Store) -> list[str]:
    return sorted(f"{item.stage}{item.terms['seed']}" for item in store.list())


def names(removed: list[Removed]) -> list[str]:
    return sorted(f"{item.kind} {item.stage}" for item in removed)


def test_without_a_rule_nothing_whole_goes(some_store: Store, chain: list[Manifest]) -> None:
    assert some_store.gc(grace=timedelta(0)) == []
    assert len(left(some_store)) == 11


def test_keep_last_keeps_ancestors(some_store: Store, chain: list[Manifest]) -> None:
    removed = some_store.gc(keep_last=1)
    assert names(removed) == ["artifact dataset"] * 2 + ["artifact grpo"] * 3 + ["artifact sft"] * 3
    assert left(some_store) == ["dataset3", "grpo3", "sft3"]
    for manifest in some_store.list():
        assert some_store.verify(manifest, deep=True) == []


def test_older_than_and_keep(some_store: Store, chain: list[Manifest]) -> None:
    """grpo of run 1 is kept by name, and with it its sft and the dataset that it shares with run 0."""
    grpo1 = next(item for item in chain if item.stage == "grpo" and item.terms["seed"] == 1)
    some_store.gc(older_than=1.5 * DAY, keep={grpo1.fingerprint})
    assert left(some_store) == ["dataset0", "dataset3", "grpo1", "grpo3", "sft1", "sft3"]


def test_all_rules_must_allow_it(some_store: Store, chain: list[Manifest]) -> None:
    some_store.gc(older_than=1.5 * DAY, keep_last=3)
    assert left(some_store) == ["dataset0", "dataset2", "dataset3", "grpo1", "grpo2", "grpo3", "sft1", "sft2", "sft3"]


def test_dry_run_says_the_same_and_does_nothing(some_store: Store, chain: list[Manifest]) -> None:
    planned = some_store.gc(keep_last=0, dry_run=True)
    assert len(left(some_store)) == 11
    assert some_store.gc(keep_last=0) == planned
    assert left(some_store) == []
    assert all(item.size_bytes > 0 and item.reason and item.uri.startswith(some_store.url) for item in planned)


def test_half_written_artifacts_go_after_a_grace_time(store: Store, draft: Any, folder: Any) -> None:
    manifest = store.commit(draft("sft"), folder())
    whole = store.commit(draft("grpo"), folder())
    store.invalidate(manifest, "a test")
    assert store.gc() == []
    (removed,) = store.gc(grace=timedelta(0))
    assert (removed.kind, removed.stage, removed.fingerprint) == ("half-written", "sft", manifest.fingerprint)
    assert store._backend.tree(f"artifacts/sft/{manifest.fingerprint}") == {}
    assert store.verify(whole, deep=True) == []


def test_uploads_that_lost_go_after_a_grace_time(s3_store: Store, draft: Any, folder: Any) -> None:
    old = s3_store.commit(draft("sft"), folder())
    new = s3_store.commit(draft("sft", attempt=2), folder(), replace=True)
    assert old.files_at != new.files_at
    assert s3_store.gc() == []
    (removed,) = s3_store.gc(grace=timedelta(0))
    assert removed.kind == "half-written" and removed.uri.endswith(old.files_at)
    assert s3_store._backend.names(f"artifacts/sft/{new.fingerprint}") == [
        new.files_at,
        f"{new.files_at}.json",
        "manifest.json",
    ]
    assert s3_store.verify(new, deep=True) == []


def test_artifacts_of_a_newer_version_stay_with_their_parents(store: Store, draft: Any, folder: Any) -> None:
    sft = store.commit(draft("sft"), folder())
    grpo = store.commit(draft("grpo", parents={"model": sft}), folder())
    data = json.loads(grpo.to_bytes())
    data.update(schema_version=9, something_new=[1])
    path = f"artifacts/grpo/{grpo.fingerprint}/manifest.json"
    store._backend.write(path, json.dumps(data).encode())
    assert store.gc(keep_last=0, grace=timedelta(0)) == []
    assert store.lookup("sft", sft.fingerprint) == sft
    assert store._backend.read(path) is not None


def test_staging_of_the_dead_goes_and_of_the_living_stays(local_store: Store, draft: Any, folder: Any) -> None:
    local_store.commit(draft("sft"), folder())
    assert local_store.root is not None
    area = local_store.root / ".staging"
    for name in ("dead", "living"):
        (area / name).mkdir()
        (area / name / "file").write_text("half")
        (area / f"{name}.lock").write_text("")
    with file_lock(area / "living.lock"):
        (removed,) = local_store.gc()
    assert removed.kind == "staging" and removed.uri.endswith("dead")
    assert sorted(path.name for path in area.iterdir()) == ["living", "living.lock"]


def test_an_old_time_stamp_is_what_counts_for_half_written(local_store: Store, folder: Any) -> None:
    assert local_store.root is not None
    place = local_store.root / "artifacts" / "sft" / ("0" * 64)
    (place / "files").mkdir(parents=True)
    for name, age in (("old", 5), ("newest", 2)):
        (place / "files" / name).write_text("x")
        os.utime(place / "files" / name, times=(0, time.time() - age * 3600))
    assert local_store.gc(grace=timedelta(hours=3)) == []
    assert names(local_store.gc(grace=timedelta(hours=1))) == ["half-written sft"]


def test_an_artifact_made_again_meanwhile_stays(
    local_store: Store, draft: Any, folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = local_store.commit(draft("sft", finished=NOW - 9 * DAY), folder())
    from artifacts import gc

    original = gc._doomed

    def doomed(*args: Any) -> list[Manifest]:
        result = original(*args)
        local_store.commit(draft("sft", finished=NOW), folder(), replace=True)
        return result

    monkeypatch.setattr(gc, "_doomed", doomed)
    assert local_store.gc(older_than=DAY) == []
    assert local_store.lookup("sft", old.fingerprint) is not None


def test_a_read_only_store_can_be_planned(
    local_store: Store, draft: Any, folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    local_store.commit(draft("sft"), folder())

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError(30, "read-only")

    for name in ("mkdir", "unlink", "rename"):
        monkeypatch.setattr(Path, name, refuse)
    assert len(local_store.gc(keep_last=0, dry_run=True)) == 1


def test_a_full_disk_can_be_cleaned(
    local_store: Store, draft: Any, folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even a lock or a folder can be made in staging."""
    local_store.commit(draft("sft"), folder())
    local_store.gc(keep_last=1)

    def full(path: Path, *args: Any, **kwargs: Any) -> None:
        if not path.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "mkdir", full)
    assert len(local_store.gc(keep_last=0)) == 1
    assert local_store._backend.tree("artifacts") == {}
