"""What ends a run before any stage process starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline_config.loading import load_config
from tasks.errors import ConfigError, DataError, ModelError, PipelineError, StoreError
from tasks.preflight.local import check_before_start
from tasks.storage import store_of


def check(home: Path, *overrides: str) -> None:
    config = load_config("tiny", overrides=[f"run.home={home}", "run.min_free_gb=0", *overrides])
    check_before_start(config, store_of(config))


def test_a_sound_configuration_passes_and_leaves_no_probe(tmp_path: Path) -> None:
    check(tmp_path / "new" / "home")
    left = {path.relative_to(tmp_path / "new" / "home").as_posix() for path in (tmp_path / "new").rglob("*")} - {"."}
    assert all(name == "store" or name.startswith("store/locks") for name in left), left


def test_a_hub_model_is_not_asked_for_here(tmp_path: Path) -> None:
    check(tmp_path, "model.source=no-such-owner/no-such-model")


@pytest.mark.parametrize(
    ("override", "kind", "where", "message"),
    [
        ("run.min_free_gb=99999", StoreError, "run.home", "GB are free and run.min_free_gb asks for 99999"),
        ("run.home=file", StoreError, "run.home", "cannot be written: File exists"),
        ("run.home=file/below", StoreError, "run.home", "cannot be written: Not a directory"),
        ("run.store=file/store", StoreError, "file/store", "a file is where a folder should be"),
        ("model.source=./nowhere", ModelError, "model.source (./nowhere)", "there is no such model folder"),
        ("model.source=empty", ModelError, "model.source (empty)", "no config.json"),
        ("model.chat_template=none.jinja", ConfigError, "model.chat_template (none.jinja)", "No such file"),
        (
            "data.train=[{kind: file, url: none.jsonl, columns: {working: w}}]",
            DataError,
            "none.jsonl",
            "there is no such file",
        ),
    ],
)
def test_what_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    override: str,
    kind: type[PipelineError],
    where: str,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    with pytest.raises(kind) as caught:
        check(tmp_path / "home", override)
    assert where in caught.value.where
    assert message in caught.value.message
    assert caught.value.fix
