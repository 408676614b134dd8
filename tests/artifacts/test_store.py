"""What every store promises, wherever it is: each test runs on a folder, in memory and on S3."""

from __future__ import annotations

import logging
import math
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from artifacts import hashing
from artifacts.manifest import Manifest, NewerManifest
from artifacts.store import Store, open_store
from tasks.errors import StoreError

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def raw(store: Store) -> Any:
    """The place behind the store, to damage things in it."""
    return store._backend


def test_commit_lookup_use(store: Store, draft: Any, folder: Any) -> None:
    made = folder({"model.bin": b"\x00" * 1000, "sub/deep/log.txt": "a log", "empty": ""})
    want = contents(made)
    manifest = store.commit(draft("sft"), made)
    assert not made.exists()
    assert [(entry.path, entry.size) for entry in manifest.files] == [
        ("empty", 0),
        ("model.bin", 1000),
        ("sub/deep/log.txt", 5),
    ]
    assert store.lookup("sft", manifest.fingerprint) == manifest
    assert store.verify(manifest) == store.verify(manifest, deep=True) == []
    assert contents(store.local_folder(manifest)) == want
    assert store.uri(manifest) == f"{store.url}/artifacts/sft/{manifest.fingerprint}/manifest.json"


def test_what_was_just_stored_is_not_read_again(
    store: Store, draft: Any, folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = store.commit(draft("sft"), folder({"big": b"x" * 2**20, "small": "y"}))

    def refuse(path: Path) -> str:
        raise AssertionError(f"{path} was read again")

    monkeypatch.setattr(hashing, "sha256_file", refuse)
    assert store.verify(manifest, deep=True) == []
    assert (store.local_folder(manifest) / "small").read_text() == "y"


def test_nothing_is_there_at_first(store: Store) -> None:
    assert store.lookup("sft", "0" * 64) is None
    assert list(store.list()) == []
    assert store.list_records("runs") == []
    assert store.read_record("runs/a.json") is None


def test_an_empty_folder_is_an_artifact(store: Store, draft: Any, folder: Any) -> None:
    manifest = store.commit(draft("sft"), folder({}))
    assert manifest.files == ()
    assert store.lookup("sft", manifest.fingerprint) == manifest
    assert store.verify(manifest, deep=True) == []
    assert contents(store.local_folder(manifest)) == {}


def test_keep_source(store: Store, draft: Any, folder: Any) -> None:
    made = folder()
    manifest = store.commit(draft("sft"), made, keep_source=True)
    (made / "model.bin").write_text("changed afterwards")
    assert store.verify(manifest, deep=True) == []
    assert contents(store.local_folder(manifest))["model.bin"] == b"weights"


def test_equal_content_gives_an_equal_digest(store: Store, draft: Any, folder: Any) -> None:
    first = store.commit(draft("sft", seed=1), folder())
    second = store.commit(draft("sft", seed=2), folder())
    other = store.commit(draft("sft", seed=3), folder({"model.bin": "weightz"}))
    assert first.fingerprint != second.fingerprint
    assert first.content_digest == second.content_digest != other.content_digest


@pytest.mark.parametrize("damage", ["deleted", "truncated", "altered"])
def test_a_damaged_file_is_noticed_and_a_rerun_repairs_it(store: Store, draft: Any, folder: Any, damage: str) -> None:
    manifest = store.commit(draft("sft"), folder())
    assert store.verify(manifest, deep=True) == []
    path = f"artifacts/sft/{manifest.fingerprint}/{manifest.files_at}/model.bin"
    if damage == "deleted":
        raw(store).delete(path)
    else:
        raw(store).write(path, b"weigh" if damage == "truncated" else b"weightz")
    (problem,) = store.verify(manifest, deep=True)
    expected = {"deleted": "missing", "truncated": "size differs: 5 bytes instead of 7", "altered": "sha256 differs"}
    assert problem.startswith(f"model.bin: {expected[damage]}")
    assert store.verify(manifest) == ([] if damage == "altered" else [problem])

    repaired = store.commit(draft("sft"), folder())
    assert store.verify(repaired, deep=True) == []
    assert store.lookup("sft", manifest.fingerprint) == repaired


@pytest.mark.parametrize("data", [b"", b'{"schema_version": 1}'])
def test_a_damaged_manifest_counts_as_none(
    store: Store, draft: Any, folder: Any, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    manifest = store.commit(draft("sft"), folder())
    raw(store).write(f"artifacts/sft/{manifest.fingerprint}/manifest.json", data)
    with caplog.at_level(logging.WARNING):
        assert store.lookup("sft", manifest.fingerprint) is None
    assert "damaged" in caplog.text and store.uri(manifest) in caplog.text
    assert list(store.list()) == []
    again = store.commit(draft("sft"), folder())
    assert store.lookup("sft", manifest.fingerprint) == again


def test_a_manifest_copied_to_another_place_counts_as_none(store: Store, draft: Any, folder: Any) -> None:
    manifest = store.commit(draft("sft"), folder())
    raw(store).write(f"artifacts/sft/{'0' * 64}/manifest.json", manifest.to_bytes())
    assert store.lookup("sft", "0" * 64) is None


def test_a_newer_manifest_is_an_error_and_is_left_out_of_lists(store: Store, draft: Any, folder: Any) -> None:
    manifest = store.commit(draft("sft"), folder())
    newer = manifest.to_bytes().replace(b'"schema_version": 1', b'"schema_version": 7')
    raw(store).write(f"artifacts/sft/{manifest.fingerprint}/manifest.json", newer)
    with pytest.raises(NewerManifest, match=r"version 7.* up to 1"):
        store.lookup("sft", manifest.fingerprint)
    assert list(store.list()) == []


def test_the_first_commit_wins(store: Store, draft: Any, folder: Any) -> None:
    first = store.commit(draft("sft"), folder({"x": "first"}))
    second = store.commit(draft("sft", attempt=2), folder({"x": "second"}))
    assert second == first
    assert contents(store.local_folder(first)) == {"x": b"first"}


def test_a_forced_rerun_replaces(store: Store, draft: Any, folder: Any) -> None:
    store.commit(draft("sft"), folder({"x": "first", "old": ""}))
    second = store.commit(draft("sft", attempt=2), folder({"x": "second"}), replace=True)
    assert store.lookup("sft", second.fingerprint) == second
    assert second.attempt == 2
    assert contents(store.local_folder(second)) == {"x": b"second"}


def test_concurrent_commits_leave_one_whole_artifact(store: Store, draft: Any, folder: Any) -> None:
    count = 4
    folders = [folder({f"{name}.bin": f"{index}" * 1000 for name in "abc"}) for index in range(count)]
    results: list[Manifest] = []
    barrier = threading.Barrier(count)

    def commit(made: Path) -> None:
        barrier.wait()
        results.append(store.commit(draft("sft"), made))

    threads = [threading.Thread(target=commit, args=[made]) for made in folders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == count
    stored = store.lookup("sft", results[0].fingerprint)
    assert stored is not None
    assert all(result == stored for result in results)
    assert store.verify(stored, deep=True) == []
    assert len(set(contents(store.local_folder(stored)).values())) == 1


def test_a_refused_folder_is_left_alone(store: Store, draft: Any, folder: Any, tmp_path: Path) -> None:
    made = folder()
    (made / "link").symlink_to("/etc/hostname")
    with pytest.raises(StoreError, match="leads out of its folder"):
        store.commit(draft("sft"), made)
    (made / "link").unlink()
    manifest = store.commit(draft("sft"), made)
    assert store.verify(manifest, deep=True) == []


def test_invalidate_makes_only_this_artifact_go(
    store: Store, draft: Any, folder: Any, caplog: pytest.LogCaptureFixture
) -> None:
    sft = store.commit(draft("sft"), folder())
    grpo = store.commit(draft("grpo", parents={"sft": sft}), folder())
    store.invalidate(sft, "model.bin: missing")
    assert "model.bin: missing" in caplog.text
    assert store.lookup("sft", sft.fingerprint) is None
    assert store.lookup("grpo", grpo.fingerprint) == grpo
    again = store.commit(draft("sft"), folder())
    assert store.lookup("sft", sft.fingerprint) == again


def test_list_and_remove(store: Store, draft: Any, folder: Any) -> None:
    late = store.commit(draft("sft", seed=1, finished=NOON + timedelta(hours=1)), folder())
    early = store.commit(draft("grpo", seed=2, finished=NOON), folder())
    raw(store).write("artifacts/notes.txt", b"not an artifact")
    raw(store).write("artifacts/sft/README", b"not an artifact")
    assert list(store.list()) == [early, late]
    assert list(store.list("sft")) == [late]
    assert list(store.list("export")) == []
    store.remove(late)
    store.remove(late)
    assert list(store.list()) == [early]
    assert raw(store).tree(f"artifacts/sft/{late.fingerprint}") == {}


@pytest.mark.parametrize(
    ("stage", "fingerprint"), [("../x", "0" * 64), ("sft", "../x"), ("sft", "abc"), ("Sft", "0" * 64)]
)
def test_names_that_no_artifact_can_have(local_store: Store, stage: str, fingerprint: str) -> None:
    with pytest.raises(StoreError, match="is not"):
        local_store.lookup(stage, fingerprint)


def test_records(store: Store) -> None:
    store.write_record("runs/b.json", {"state": "done", "loss": math.nan})
    store.write_record("runs/a.json", {"state": "running"})
    store.write_record("runs/a.json", {"state": "done", "text": "中"})
    store.write_record("registry/maths/production.json", {"version": 1})
    raw(store).write("runs/notes.txt", b"")
    assert store.list_records("runs") == ["runs/a.json", "runs/b.json"]
    assert store.list_records("registry/") == ["registry/maths/production.json"]
    assert store.read_record("runs/a.json") == {"state": "done", "text": "中"}
    assert store.read_record("runs/b.json") == {"state": "done", "loss": None}


@pytest.mark.parametrize(
    "path", ["../x.json", "/etc/x.json", "runs/x.txt", "", "artifacts/sft/x.json", "locks/x.json", "runs/.x.json"]
)
def test_paths_that_are_no_records(local_store: Store, path: str) -> None:
    with pytest.raises(StoreError, match="not a record's path"):
        local_store.write_record(path, {})


def test_bad_records(store: Store) -> None:
    with pytest.raises(StoreError, match="not JSON"):
        store.write_record("runs/a.json", {"x": {1, 2}})
    raw(store).write("runs/a.json", b"[1]")
    with pytest.raises(StoreError, match="damaged: not a JSON object"):
        store.read_record("runs/a.json")
    raw(store).write("runs/a.json", b"{")
    with pytest.raises(StoreError, match="damaged: not JSON"):
        store.read_record("runs/a.json")


def test_check_writable_leaves_nothing(store: Store) -> None:
    store.check_writable()
    assert [name for name in raw(store).tree("") if "probe" in name and not name.startswith("locks/")] == []


def test_the_lock_of_an_artifact_is_on_this_machine(store: Store) -> None:
    path = store.lock_path("sft", "0" * 64)
    assert path.is_absolute() and path != store.lock_path("grpo", "0" * 64)


@pytest.mark.parametrize("url", ["", " ", "s3://", "memory://", "s3:/bucket/x", "zip://x::s3://bucket/y.zip"])
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(StoreError, match="not a store's URL"):
        open_store(url)


def test_unknown_file_systems_and_options() -> None:
    with pytest.raises(StoreError, match="nosuch"):
        open_store("nosuch://bucket/x")


def test_ways_to_write_a_local_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for url in (str(tmp_path / "a b"), f"file://{tmp_path}/a%20b", "a b", "./a b", "~/a b"):
        assert open_store(url).root == tmp_path / "a b"
        assert not (tmp_path / "a b").exists()
