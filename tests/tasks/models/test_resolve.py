"""Hub models, unreadable ones, and what is refused before any stage starts. Nothing here reaches the network."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
import huggingface_hub
import pytest
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from tasks.errors import ModelError, PipelineError, Retryable
from tasks.models import model_folder, prepare_model
from tasks.models.resolve import check_source

COMMIT = "0123456789abcdef0123456789abcdef01234567"
HUB_ID = "team/model"


def write_model(folder: Path, weights: str = "weights", files: Iterable[str] = ()) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    for name in ("model.safetensors", "tokenizer.json", *files):
        (folder / name).write_text(weights)
    return folder


def prepare(source: str, dest: Path, *, revision: str | None = None, trust: bool = False) -> dict[str, Any]:
    dest.mkdir(exist_ok=True)
    return prepare_model(source, dest, revision=revision, seed=0, trust_remote_code=trust)


class Hub:
    """Stands in for `snapshot_download`: a snapshot folder per commit, as in the hub's cache."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.asked = folder, list[tuple[str | None, list[str]]]()
        self.main = COMMIT

    def __call__(self, source: str, revision: str | None, allow_patterns: list[str]) -> str:
        assert source == HUB_ID
        self.asked.append((revision, allow_patterns))
        return str(self.folder / (revision or self.main))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    made = Hub(tmp_path / "snapshots")
    write_model(made.folder / COMMIT)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", made)
    return made


def test_a_hub_model_is_recorded_with_its_commit(hub: Hub, tmp_path: Path) -> None:
    summary = prepare(HUB_ID, tmp_path / "out")
    assert (summary["commit"], summary["built"]) == (COMMIT, False)
    reference = json.loads((tmp_path / "out" / "reference.json").read_text())
    assert reference["commit"] == COMMIT
    assert [file["name"] for file in reference["files"]] == ["config.json", "model.safetensors", "tokenizer.json"]


def test_later_stages_keep_to_the_commit_when_the_branch_moves(hub: Hub, tmp_path: Path) -> None:
    prepare(HUB_ID, tmp_path / "out")
    hub.main = "f" * 40
    write_model(hub.folder / hub.main, weights="others!")  # as many bytes
    assert model_folder(tmp_path / "out", HUB_ID, None) == hub.folder / COMMIT
    assert hub.asked[-1][0] == COMMIT


def test_code_is_fetched_only_when_it_is_trusted(hub: Hub, tmp_path: Path) -> None:
    (hub.folder / COMMIT / "modeling.py").write_text("pass")
    prepare(HUB_ID, tmp_path / "trusted", trust=True)
    model_folder(tmp_path / "trusted", HUB_ID, None)
    assert ["*.py" in patterns for _, patterns in hub.asked] == [True, True]
    (hub.folder / COMMIT / "modeling.py").unlink()
    prepare(HUB_ID, tmp_path / "plain")
    model_folder(tmp_path / "plain", HUB_ID, None)
    assert ["*.py" in patterns for _, patterns in hub.asked[2:]] == [False, False]
    assert not any(pattern.endswith((".bin", ".pt")) for _, patterns in hub.asked for pattern in patterns)


def answered(status: int) -> httpx.Response:
    return httpx.Response(status, request=httpx.Request("GET", "https://hub.invalid"))


@pytest.mark.parametrize(
    ("error", "kind", "message", "fix"),
    [
        (
            LocalEntryNotFoundError("x"),
            ModelError,
            "not in the local cache and the hub cannot be reached",
            "connect once",
        ),
        (RepositoryNotFoundError("x", response=answered(404)), ModelError, "knows no such model", "HF_TOKEN"),
        (GatedRepoError("x", response=answered(403)), ModelError, "or it is private", "HF_TOKEN"),
        (RevisionNotFoundError("x", response=answered(404)), ModelError, "has no revision 'v9'", "model.revision"),
        (HfHubHTTPError("x", response=answered(401)), ModelError, "refused it with status 401", "HF_TOKEN"),
        (HfHubHTTPError("x", response=answered(503)), Retryable, "did not answer", ""),
        (HfHubHTTPError("x", response=answered(429)), Retryable, "did not answer", ""),
        (OfflineModeIsEnabled("x"), Retryable, "did not answer", ""),
        (TimeoutError(), Retryable, "did not answer: TimeoutError", ""),
    ],
)
def test_what_the_hub_can_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[PipelineError], message: str, fix: str
) -> None:
    def refuse(*_: Any, **__: Any) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(kind, match=message) as caught:
        prepare(HUB_ID, tmp_path / "out", revision="v9")
    assert type(caught.value) is kind
    assert HUB_ID in caught.value.where and fix in caught.value.fix


def test_a_name_that_no_hub_takes(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is not a hub id"):
        prepare("two words/model", tmp_path / "out")


def test_an_unreadable_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_model(tmp_path / "m")
    real = Path.open

    def deny(self: Path, *args: Any, **options: Any) -> Any:
        if self.name == "model.safetensors":
            raise PermissionError(13, "Permission denied")
        return real(self, *args, **options)

    monkeypatch.setattr(Path, "open", deny)
    with pytest.raises(ModelError, match=r"model\.safetensors cannot be read: Permission denied"):
        prepare(str(folder), tmp_path / "out")


def test_a_moved_model_with_the_same_files_is_the_same_reference(tmp_path: Path) -> None:
    """Stages depend on the digest of reference.json, so it holds neither path nor time."""
    for name in ("a", "b"):
        prepare(str(write_model(tmp_path / name)), tmp_path / f"out-{name}")
    first, second = [(tmp_path / f"out-{name}" / "reference.json").read_bytes() for name in ("a", "b")]
    assert first == second


def test_what_is_known_before_any_stage_starts(tmp_path: Path) -> None:
    good, bad = write_model(tmp_path / "good"), write_model(tmp_path / "bad")
    (bad / "model.safetensors").unlink()
    for source in ("tiny", HUB_ID, str(good)):
        check_source(source, trust_remote_code=False)
    for source, message in (
        (str(bad), "no safetensors"),
        (str(tmp_path / "none"), "there is no such model folder"),
        ("tinny", "there is no such model folder"),
        ("package:other", "no such package"),
    ):
        with pytest.raises(ModelError, match=message):
            check_source(source, trust_remote_code=False)
