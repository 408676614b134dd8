"""A store in a folder: interrupted at every point, full and read-only disks, hard links."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from artifacts import staging
from artifacts.manifest import Manifest
from artifacts.store import Store, open_store
from tasks.errors import Retryable, StoreError


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("before", ["nothing", "a damaged artifact"])
def test_kill_9_at_any_moment_of_a_commit(
    tmp_path: Path, draft: Any, folder: Any, run_until_call: Any, before: str
) -> None:
    want = {"model.bin": b"weights", "sub/log.txt": b"a log"}
    number, outcomes = 0, []
    finished = False
    while not finished:
        number += 1
        assert number < 200
        store = open_store(str(tmp_path / f"store-{number}"))
        if before != "nothing":
            old = store.commit(draft("sft"), folder({"model.bin": "something else"}))
            (store.local_folder(old) / "model.bin").unlink()
        made = folder()
        finished = run_until_call(number, lambda store=store, made=made: store.commit(draft("sft"), made))

        found = store.lookup("sft", draft("sft").fingerprint)
        whole = found is not None and not store.verify(found, deep=True)
        if whole:
            assert found is not None
            assert contents(store.local_folder(found)) == want
        else:
            assert contents(made) == want, f"work lost at call {number}"
        outcomes.append(whole)
        # The next run: it commits again what is not there, and leaves nothing over.
        if not whole:
            found = store.commit(draft("sft"), made)
        assert found is not None and store.verify(found, deep=True) == []
        store.gc()
        assert list((tmp_path / f"store-{number}" / ".staging").iterdir()) == []
    assert outcomes == sorted(outcomes) and not outcomes[0], "the commit is one moment"


def test_files_are_taken_over_not_copied(local_store: Store, draft: Any, folder: Any) -> None:
    made = folder()
    inode = (made / "model.bin").stat().st_ino
    manifest = local_store.commit(draft("sft"), made)
    stored = local_store.local_folder(manifest) / "model.bin"
    assert stored.stat().st_ino == inode and stored.stat().st_nlink == 1


def test_files_that_others_hold_are_copied(local_store: Store, draft: Any, folder: Any, tmp_path: Path) -> None:
    made = folder()
    os.link(made / "model.bin", tmp_path / "elsewhere")
    manifest = local_store.commit(draft("sft"), made)
    (tmp_path / "elsewhere").write_text("changed")
    assert local_store.verify(manifest, deep=True) == []


def test_another_file_system_is_copied_from(
    local_store: Store, draft: Any, folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.EXDEV, "cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    made = folder()
    manifest = local_store.commit(draft("sft"), made)
    assert local_store.verify(manifest, deep=True) == []
    assert not made.exists()


FAULTS = [
    (errno.ENOSPC, StoreError, "no space left", "gc"),
    (errno.EROFS, StoreError, "read-only", "writable"),
    (errno.EACCES, StoreError, "access is denied", "permissions"),
    (errno.EDQUOT, StoreError, "quota", "quota"),
    (errno.EIO, StoreError, "I/O error", "disk"),
    (errno.ESTALE, Retryable, "Stale", "retry"),
]


@pytest.mark.parametrize("call", ["fsync", "mkdir", "rename"])
@pytest.mark.parametrize(("number", "kind", "reason", "fix"), FAULTS)
def test_a_failed_commit_loses_nothing(
    local_store: Store,
    draft: Any,
    folder: Any,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    number: int,
    kind: type[Exception],
    reason: str,
    fix: str,
) -> None:
    made = folder()
    want = contents(made)
    original = getattr(os, call)

    def fail(path: Any, *args: Any, **kwargs: Any) -> Any:
        if call == "fsync" or ".staging" in str(path):
            raise OSError(number, os.strerror(number))
        return original(path, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(kind) as caught:
            local_store.commit(draft("sft"), made)
    assert reason in str(caught.value) and fix in str(caught.value)
    assert str(local_store.root) in str(caught.value)
    assert contents(made) == want
    assert local_store.lookup("sft", draft("sft").fingerprint) is None
    manifest = local_store.commit(draft("sft"), made)
    assert local_store.verify(manifest, deep=True) == []


def test_too_little_space_is_said_before_copying(
    local_store: Store, draft: Any, folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("artifacts.hashing.free_bytes", lambda path: 3)
    made = folder()
    with pytest.raises(StoreError, match="too little space for the artifact"):
        local_store.commit(draft("sft"), made, keep_source=True)
    local_store.commit(draft("sft"), made)  # hard links need no space


def test_a_file_written_during_the_commit_is_refused(
    local_store: Store, draft: Any, folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = folder()
    original = staging.shutil.copyfile

    def copy_while_it_grows(source: Path, target: Path) -> None:
        original(source, target)
        with open(source, "a") as file:
            file.write("more")

    monkeypatch.setattr(staging.shutil, "copyfile", copy_while_it_grows)
    with pytest.raises(StoreError, match="changed while it was being stored"):
        local_store.commit(draft("sft"), made, keep_source=True)


def test_a_store_that_is_a_file(tmp_path: Path, draft: Any, folder: Any) -> None:
    (tmp_path / "store").write_text("")
    store = open_store(str(tmp_path / "store"))
    assert store.lookup("sft", "0" * 64) is None
    with pytest.raises(StoreError, match=r"store.*file is where a folder"):
        store.check_writable()
    made = folder()
    with pytest.raises(StoreError):
        store.commit(draft("sft"), made)
    assert (made / "model.bin").exists()


def test_a_store_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(str(tmp_path / "store"))

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(StoreError, match="read-only") as caught:
        store.check_writable()
    assert str(tmp_path / "store") in str(caught.value) and caught.value.fix


def test_a_half_written_folder_is_never_taken_for_whole(local_store: Store, draft: Any, folder: Any) -> None:
    """Whatever lies in the place of an artifact, without a manifest it is none; and a commit replaces it."""
    wanted = draft("sft")
    assert local_store.root is not None
    place = local_store.root / "artifacts" / "sft" / wanted.fingerprint
    (place / "files").mkdir(parents=True)
    (place / "files" / "model.bin").write_text("half")
    (place / "files" / "stale.bin").write_text("from another time")
    assert local_store.lookup("sft", wanted.fingerprint) is None
    assert list(local_store.list()) == []
    manifest = local_store.commit(wanted, folder())
    assert set(contents(local_store.local_folder(manifest))) == {"model.bin", "sub/log.txt"}


def test_a_moved_store_still_works(tmp_path: Path, draft: Any, folder: Any) -> None:
    manifest = open_store(str(tmp_path / "store")).commit(draft("sft"), folder())
    (tmp_path / "store").rename(tmp_path / "moved")
    moved = open_store(str(tmp_path / "moved"))
    assert moved.lookup("sft", manifest.fingerprint) == manifest
    assert moved.verify(manifest, deep=True) == []


def test_files_that_are_gone(local_store: Store, draft: Any, folder: Any) -> None:
    manifest: Manifest = local_store.commit(draft("sft"), folder())
    staging.remove_folder(local_store.local_folder(manifest))
    with pytest.raises(StoreError, match="files are gone"):
        local_store.local_folder(manifest)
    assert local_store.verify(manifest) == ["model.bin: missing", "sub/log.txt: missing"]
