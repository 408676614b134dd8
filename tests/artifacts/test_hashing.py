from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from artifacts import hashing
from artifacts.hashing import check_files, free_bytes, hash_files, human_size, require_space, scan_folder
from artifacts.manifest import FileEntry
from tasks.errors import StoreError


def entries_of(folder: Path) -> list[FileEntry]:
    return hash_files([(file.relative, file.path) for file in scan_folder(folder)])[0]


def settle() -> None:
    time.sleep(hashing.TICK_NS / 1e9 + 0.02)


def test_scan_is_sorted_and_ignores_empty_folders(folder: Any) -> None:
    made = folder({"b": "2", "a/z": "1", "a.txt": "3", ".hidden": "4"})
    (made / "empty" / "deeper").mkdir(parents=True)
    assert [file.relative for file in scan_folder(made)] == [".hidden", "a.txt", "a/z", "b"]
    assert scan_folder(folder({})) == []


def test_known_digest(folder: Any) -> None:
    (entry,) = entries_of(folder({"x": "abc"}))
    assert entry.size == 3
    assert entry.sha256 == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2, B.1


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("../secret.txt", "leads out of its folder"),
        ("/etc/hostname", "leads out of its folder"),
        ("nowhere", "to nothing"),
        ("loop", "to nothing"),
        ("real", "to a folder"),
    ],
)
def test_links_that_are_refused(folder: Any, tmp_path: Path, target: str, reason: str) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    made = folder({"real/x": "1"})
    (made / "loop").symlink_to(target)
    with pytest.raises(StoreError, match=reason) as caught:
        scan_folder(made)
    assert str(made / "loop") in str(caught.value)


def test_a_link_inside_the_folder_stands_for_its_file(folder: Any) -> None:
    made = folder({"real/x": "content"})
    (made / "link").symlink_to("real/x")
    by_path = {entry.path: entry.sha256 for entry in entries_of(made)}
    assert by_path["link"] == by_path["real/x"]


def test_other_things_are_refused(folder: Any, tmp_path: Path) -> None:
    made = folder({})
    os.mkfifo(made / "pipe")
    with pytest.raises(StoreError, match="not a regular file"):
        scan_folder(made)
    with pytest.raises(StoreError, match="cannot be stored"):
        scan_folder(folder({"back\\slash": ""}))
    with pytest.raises(StoreError, match="no such folder"):
        scan_folder(tmp_path / "absent")


def test_problems_in_words(folder: Any, tmp_path: Path) -> None:
    made = folder({"gone": "1", "cut": "12345", "altered": "aaaa", "fine": "ok", "sub/deep": "x"})
    entries = entries_of(made)
    (made / "gone").unlink()
    (made / "cut").write_text("123")
    (made / "altered").write_text("aaab")
    shallow = check_files(made, entries, deep=False, verified=tmp_path / "v")
    assert shallow == ["cut: size differs: 3 bytes instead of 5", "gone: missing"]
    deep = check_files(made, entries, deep=True, verified=tmp_path / "v")
    assert deep[:2] == shallow and deep[2].startswith("altered: sha256 differs: ")
    assert len(deep) == 3


def test_links_put_in_the_place_of_files_are_noticed(folder: Any, tmp_path: Path) -> None:
    made = folder({"a": "1", "sub/deep/x": "2"})
    entries = entries_of(made)
    (made / "a").rename(tmp_path / "elsewhere")
    (made / "a").symlink_to(tmp_path / "elsewhere")
    (made / "sub").rename(tmp_path / "sub")
    (made / "sub").symlink_to(tmp_path / "sub")
    problems = check_files(made, entries, deep=True, verified=tmp_path / "v")
    assert [line.split(":")[0] for line in problems] == ["a", "sub/deep/x"]
    assert all("no longer a regular file" in line for line in problems)


def test_unchanged_files_are_not_read_again(folder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = folder({"a": "1", "b": "2"})
    entries = entries_of(made)
    settle()
    read: list[str] = []
    original = hashing.sha256_file

    def counted(path: Path) -> str:
        read.append(path.name)
        return original(path)

    monkeypatch.setattr(hashing, "sha256_file", counted)
    verified = tmp_path / "verified.json"
    assert check_files(made, entries, deep=True, verified=verified) == []
    assert sorted(read) == ["a", "b"]
    assert check_files(made, entries, deep=True, verified=verified) == []
    assert sorted(read) == ["a", "b"]
    (made / "b").write_text("3")
    os.utime(made / "b", ns=(0, 0))
    assert len(check_files(made, entries, deep=True, verified=verified)) == 1
    assert sorted(read) == ["a", "b", "b"]


def test_a_write_that_restores_size_and_mtime_is_noticed(folder: Any, tmp_path: Path) -> None:
    made = folder({"a": "1" * 100})
    entries = entries_of(made)
    settle()
    assert check_files(made, entries, deep=True, verified=tmp_path / "v") == []
    before = (made / "a").stat()
    with open(made / "a", "r+b") as file:
        file.write(b"2")
    os.utime(made / "a", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert len(check_files(made, entries, deep=True, verified=tmp_path / "v")) == 1


def test_a_file_hashed_right_after_a_write_is_not_vouched_for(folder: Any) -> None:
    """A second write in the same clock tick would leave the same ctime."""
    made = folder({"a": "1"})
    assert hash_files([("a", made / "a")])[1] == {}
    settle()
    assert list(hash_files([("a", made / "a")])[1]) == ["a"]


@pytest.mark.parametrize(
    "garbage", ["", "[]", "{", '{"version": 1, "files": {"a": 3}}', '{"version": 2, "files": {}}', "[" * 99999]
)
def test_a_broken_verified_file_only_costs_reading(folder: Any, tmp_path: Path, garbage: str) -> None:
    made = folder({"a": "1"})
    entries = entries_of(made)
    settle()
    verified = tmp_path / "verified.json"
    verified.write_text(garbage)
    assert check_files(made, entries, deep=True, verified=verified) == []
    assert list(json.loads(verified.read_text())["files"]) == ["a"]


def test_an_unwritable_verified_file_is_no_error(folder: Any, tmp_path: Path) -> None:
    made = folder({"a": "1"})
    entries = entries_of(made)
    settle()
    assert check_files(made, entries, deep=True, verified=tmp_path / "absent" / "v") == []


def test_another_name_of_a_file_may_go_while_it_is_read(folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when two processes store the same artifact, and the first deletes the folder that it came from."""
    path = folder({"x": "abc"}) / "x"
    other = path.with_name("y")
    os.link(path, other)
    read, reads = hashing.sha256_file, 0

    def unlinking(file: Path) -> str:
        nonlocal reads
        reads += 1
        time.sleep(0.02)  # the clock of change times is coarse
        other.unlink(missing_ok=True)
        return read(file)

    monkeypatch.setattr(hashing, "sha256_file", unlinking)
    (entry,) = hash_files([("x", path)])[0]
    assert entry.sha256.startswith("ba7816bf") and reads == 2


def test_a_file_that_changes_while_it_is_read(folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = folder({"a": "1"})

    def append(path: Path) -> str:
        with open(path, "a") as file:
            file.write("more")
        return "0" * 64

    monkeypatch.setattr(hashing, "sha256_file", append)
    with pytest.raises(StoreError, match="changed while it was read"):
        hash_files([("a", made / "a")])


def test_free_space(tmp_path: Path) -> None:
    free = free_bytes(tmp_path / "not" / "there" / "yet")
    assert free > 0
    require_space(tmp_path, 1, "a test")
    with pytest.raises(StoreError, match=r"too little space for a test: 1000000000.0 GB needed, .* free") as caught:
        require_space(tmp_path, 10**18, "a test")
    assert caught.value.fix


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (1_500_000, "1.5 MB"), (2e12, "2000.0 GB")]
)
def test_human_size(count: float, text: str) -> None:
    assert human_size(count) == text
