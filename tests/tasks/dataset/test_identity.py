"""What the dataset stage's fingerprint says about the contents of its sources."""

from __future__ import annotations

import os
from pathlib import Path

import fsspec
import pytest

from pipeline_config.data import DataConfig
from pipeline_config.sources import Columns, FileSource, HubSource, SumSource
from tasks.dataset.identity import file_identity, source_identities
from tasks.errors import DataError

COLUMNS = Columns(working="working")
ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # SHA-256 of "abc", FIPS 180-2 appendix B.1


def test_generators_have_no_contents() -> None:
    assert source_identities(DataConfig()) == []


def test_a_local_file_is_known_by_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("abc")
    assert file_identity(str(path)) == file_identity(f"file://{path}") == ABC
    path.write_text("abd")
    assert file_identity(str(path)) != ABC
    path.write_text("abc")
    os.utime(path, (1, 1))
    assert file_identity(str(path)) == ABC, "the time of a file does not matter"


def test_all_lists_are_looked_at(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.jsonl").write_text(name)
    files = [FileSource(url=str(tmp_path / f"{name}.jsonl"), columns=COLUMNS) for name in "abc"]
    data = DataConfig(train=(files[2], SumSource()), sft=(files[1],), eval=(files[0],))
    found = source_identities(data)
    assert [entry[:2] for entry in found] == [["file", str(tmp_path / f"{name}.jsonl")] for name in "abc"]
    assert found == source_identities(DataConfig(train=(files[0], files[1], files[2], SumSource())))
    (tmp_path / "b.jsonl").write_text("changed")
    assert found != source_identities(data)


def test_a_remote_file() -> None:
    fs = fsspec.filesystem("memory")
    fs.pipe("/identity-test/a.jsonl", b"abc")
    first = file_identity("memory://identity-test/a.jsonl")
    assert first == file_identity("memory://identity-test/a.jsonl")
    fs.pipe("/identity-test/a.jsonl", b"abcd")
    assert first != file_identity("memory://identity-test/a.jsonl")


def test_hub_sets(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text("abc")
    pinned = HubSource(dataset="openai/gsm8k", revision="e53f048")
    loose = HubSource(dataset="unsloth/OpenMathReasoning-mini")
    local = HubSource(dataset=str(tmp_path), layout="gsm8k")
    assert source_identities(DataConfig(train=(local,), sft=(pinned,), eval=(loose,))) == [
        ["folder", [["train.jsonl", ABC]]],
        ["hub", "openai/gsm8k", "main", "train", "e53f048"],
        ["hub", "unsloth/OpenMathReasoning-mini", None, "cot", None],
    ]


def test_a_url_counts_without_its_query(monkeypatch: pytest.MonkeyPatch) -> None:
    class Remote:
        protocol = "https"

        def info(self, path: str) -> dict[str, str]:
            return {"ETag": '"abc"'}

    monkeypatch.setattr(fsspec, "url_to_fs", lambda url: (Remote(), url))
    source = FileSource(url="https://host/a.jsonl?download=1", columns=COLUMNS)
    assert source_identities(DataConfig(train=(source,))) == [["file", "https://host/a.jsonl", "abc"]]


def test_a_missing_file_ends_at_once(tmp_path: Path) -> None:
    source = FileSource(url=str(tmp_path / "none.jsonl"), columns=COLUMNS)
    with pytest.raises(DataError, match="there is no such file"):
        source_identities(DataConfig(train=(source,)))
    with pytest.raises(DataError, match="cannot be read"):
        file_identity("nosuchprotocol://a.jsonl")
