from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from artifacts.manifest import Manifest, ManifestDraft
from artifacts.store import Store, open_store
from tasks.errors import StoreError

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


def with_fingerprint(made: ManifestDraft, beginning: str) -> ManifestDraft:
    return made.model_copy(update={"fingerprint": beginning + made.fingerprint[len(beginning) :]})


@pytest.fixture
def three(store: Store, draft: Any, folder: Any) -> list[Manifest]:
    """Two sft artifacts and a grpo one, which begin with abcd1, abcd2 and abcd1."""
    made = [
        with_fingerprint(draft("sft", seed=1, finished=NOON), "abcd1"),
        with_fingerprint(draft("sft", seed=2, finished=NOON + timedelta(hours=2)), "abcd2"),
        with_fingerprint(draft("grpo", seed=3, finished=NOON + timedelta(hours=1)), "abcd1"),
    ]
    return [store.commit(item, folder()) for item in made]


def test_ways_to_name_an_artifact(store: Store, three: list[Manifest]) -> None:
    one, two, grpo = three
    for ref, wanted in {
        "latest": two,
        "sft:latest": two,
        "grpo:latest": grpo,
        two.fingerprint: two,
        "abcd2": two,
        " ABCD2 ": two,
        "sft/abcd1": one,
        "grpo/abcd": grpo,
        f"sft/{one.fingerprint}": one,
        store.uri(one): one,
        store.uri(one).removesuffix("/manifest.json"): one,
        store.uri(one).removesuffix("manifest.json"): one,
    }.items():
        assert store.find(ref) == wanted, ref


def test_ambiguous_names_list_the_candidates(store: Store, three: list[Manifest]) -> None:
    with pytest.raises(StoreError, match=r"fits 2 artifacts: grpo/abcd1.*, sft/abcd1.*") as caught:
        store.find("abcd1")
    assert "more digits or the stage" in str(caught.value)


def test_names_that_fit_nothing_list_what_there_is(store: Store, three: list[Manifest]) -> None:
    for ref in ("ffff", "sft/ffff", "export/abcd", f"{store.url}/artifacts/sft/{'f' * 64}/manifest.json"):
        with pytest.raises(StoreError) as caught:
            store.find(ref)
        assert re.search("sft/abcd2|newest are|has none yet", str(caught.value)), ref
        assert "artifacts ls" in str(caught.value)


@pytest.mark.parametrize(
    "ref", ["", "abc", "banana", "sft:", "sft:newest", "../../etc/passwd", "s3://else/where/x", "abcd1\n../x", "a/\0"]
)
def test_what_names_nothing(local_store: Store, ref: str) -> None:
    with pytest.raises(StoreError) as caught:
        local_store.find(ref)
    assert caught.value.fix


def test_an_empty_store(store: Store) -> None:
    with pytest.raises(StoreError, match="no artifact of any stage yet"):
        store.find("latest")
    with pytest.raises(StoreError, match="no artifact of sft yet"):
        store.find("sft:latest")
    with pytest.raises(StoreError, match="the store has none yet"):
        store.find("abcd")


def test_relative_paths_and_links(
    local_store: Store, draft: Any, folder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = local_store.commit(draft("sft"), folder())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "store")
    rest = f"artifacts/sft/{manifest.fingerprint}"
    for ref in (f"store/{rest}/manifest.json", f"./store/{rest}", f"link/{rest}", f"file-store/../store/{rest}"):
        if not ref.startswith("file-"):
            assert local_store.find(ref) == manifest, ref


def test_a_manifest_from_elsewhere_finds_its_artifact_here(
    store: Store, draft: Any, folder: Any, tmp_path: Path
) -> None:
    elsewhere = open_store(str(tmp_path / "elsewhere"))
    there = elsewhere.commit(draft("sft"), folder())
    with pytest.raises(StoreError, match="no artifact of this store"):
        store.find(elsewhere.uri(there))
    here = store.commit(draft("sft"), folder())
    assert store.find(elsewhere.uri(there)) == here
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(StoreError, match="damaged"):
        store.find(str(tmp_path / "broken.json"))
    with pytest.raises(StoreError, match="cannot read the manifest"):
        store.find(str(tmp_path / "absent.json"))
