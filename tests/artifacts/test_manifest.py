from __future__ import annotations

import hashlib
import json
import math
from datetime import UTC, datetime, timedelta, timezone
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from artifacts.manifest import (
    DamagedManifest,
    FileEntry,
    Manifest,
    ManifestDraft,
    NewerManifest,
    check_relative_path,
    complete,
    content_digest,
    parse_manifest,
)
from tasks.errors import StoreError

A = FileEntry(path="a.txt", size=1, sha256=hashlib.sha256(b"a").hexdigest())
B = FileEntry(path="d/b.txt", size=1, sha256=hashlib.sha256(b"b").hexdigest())


@pytest.fixture
def manifest(draft: Any) -> Manifest:
    return complete(draft("sft", metrics={"loss": 0.5}), [B, A])


def edited(manifest: Manifest, **changes: Any) -> bytes:
    data = json.loads(manifest.to_bytes())
    data.update(changes)
    return json.dumps({key: value for key, value in data.items() if value is not ...}).encode()


@pytest.mark.parametrize("path", ["a", "a/b.txt", "model-00001-of-00002.safetensors", ".hidden", "a..b", "名/ü", "a b"])
def test_good_paths(path: str) -> None:
    assert check_relative_path(path) == path


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "../x",
        "a/../../x",
        "a/..",
        ".",
        "./a",
        "a//b",
        "a/",
        "a\\b",
        "..\\x",
        "C:/x",
        "c:x",
        "a\0b",
        "a\nb",
        "\ud800",
    ],
)
def test_bad_paths(path: str) -> None:
    with pytest.raises(ValueError):
        check_relative_path(path)
    with pytest.raises(ValidationError):
        FileEntry(path=path, size=0, sha256="0" * 64)


@given(st.text(st.sampled_from("ab./\\:~ \n\0é"), max_size=12))
def test_an_accepted_path_stays_below_its_folder(path: str) -> None:
    try:
        check_relative_path(path)
    except ValueError:
        return
    base = PurePosixPath("/store/files")
    joined = base / path
    assert joined.is_relative_to(base) and joined != base and ".." not in joined.parts


def test_content_digest_by_hand() -> None:
    lines = f"{A.sha256}  a.txt\n{B.sha256}  d/b.txt\n"
    assert content_digest([B, A]) == hashlib.sha256(lines.encode()).hexdigest()
    assert content_digest([]) == hashlib.sha256(b"").hexdigest()


def test_round_trip(manifest: Manifest) -> None:
    assert parse_manifest(manifest.to_bytes(), "here") == manifest
    assert [entry.path for entry in manifest.files] == ["a.txt", "d/b.txt"]
    assert manifest.size_bytes == 2
    text = json.loads(manifest.to_bytes())
    assert text["finished_at"] == "2026-05-01T12:00:00Z"
    assert manifest.as_parent().model_dump() == {
        "stage": "sft",
        "fingerprint": manifest.fingerprint,
        "content_digest": manifest.content_digest,
    }


def test_nan_becomes_null_in_metrics_and_configs(draft: Any) -> None:
    made = draft("sft", metrics={"loss": math.nan, "curve": [1.0, math.inf]}, effective_config={"x": {"y": -math.inf}})
    assert made.metrics == {"loss": None, "curve": [1.0, None]}
    assert made.effective_config == {"x": {"y": None}}
    assert json.loads(complete(made, []).to_bytes())["metrics"] == {"loss": None, "curve": [1.0, None]}


def test_times_are_kept_in_utc(draft: Any) -> None:
    local = datetime(2026, 5, 1, 14, tzinfo=timezone(timedelta(hours=2)))
    assert draft("sft", finished=local).finished_at == datetime(2026, 5, 1, 12, tzinfo=UTC)
    with pytest.raises(ValidationError, match="timezone"):
        ManifestDraft.model_validate({**draft("sft").model_dump(), "finished_at": datetime(2026, 5, 1)})


def test_manifests_are_frozen_and_closed(manifest: Manifest) -> None:
    with pytest.raises(ValidationError):
        manifest.stage = "grpo"
    with pytest.raises(DamagedManifest, match="colour"):
        parse_manifest(edited(manifest, colour="red"), "here")


@pytest.mark.parametrize("version", [2, 99])
def test_a_newer_schema_names_both_versions(manifest: Manifest, version: int) -> None:
    with pytest.raises(NewerManifest) as caught:
        parse_manifest(edited(manifest, schema_version=version, surprise={}), "store/manifest.json")
    assert isinstance(caught.value, StoreError)
    assert f"version {version}" in str(caught.value) and "up to 1" in str(caught.value)
    assert "store/manifest.json" in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"schema_version": 0}, "schema_version"),
        ({"schema_version": "1"}, "schema_version"),
        ({"stage": ...}, "stage"),
        ({"stage": "../sft"}, "stage"),
        ({"fingerprint": "abc"}, "fingerprint"),
        ({"content_digest": "0" * 64}, "content_digest does not fit"),
        ({"files": [{"path": "../../etc/passwd", "size": 1, "sha256": "0" * 64}]}, "'..'"),
        ({"files": [{"path": "a", "size": -1, "sha256": "0" * 64}]}, "size"),
        ({"files": [A.model_dump(), A.model_dump()]}, "each path once"),
        ({"files": [B.model_dump(), A.model_dump()]}, "sorted"),
        ({"files": [{**A.model_dump(), "path": "d"}, B.model_dump()]}, "both a file and a folder"),
        ({"files_at": "../other"}, "files_at"),
        ({"finished_at": "yesterday"}, "finished_at"),
        ({"attempt": 0}, "attempt"),
    ],
)
def test_damage_is_named(manifest: Manifest, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(DamagedManifest, match=reason):
        parse_manifest(edited(manifest, **changes), "here")


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"metrics": NaN}', b"\0" * 100, b"1" * 5000]
)
def test_what_is_no_manifest_at_all(data: bytes) -> None:
    with pytest.raises(DamagedManifest, match="damaged"):
        parse_manifest(data, "here")


@given(st.data())
def test_a_cut_manifest_is_damaged(data: st.DataObject) -> None:
    fields = {
        "stage": "sft",
        "stage_version": 1,
        "fingerprint": "0" * 64,
        "started_at": "2026-05-01T11:00:00Z",
        "finished_at": "2026-05-01T12:00:00Z",
        "duration_s": 1,
    }
    whole = complete(ManifestDraft.model_validate(fields), [A, B]).to_bytes()
    end = data.draw(st.integers(0, len(whole) - 3))
    with pytest.raises(DamagedManifest):
        parse_manifest(whole[:end], "here")
