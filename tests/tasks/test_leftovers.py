"""What is cleared from a home, and what never is."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from artifacts.locks import file_lock
from artifacts.manifest import ManifestDraft
from artifacts.store import Store, open_store
from flows import cli
from tasks.leftovers import Leftover, clear
from tasks.training.swanlab_setup import dashboard_installed
from tasks.work_dir import mark_finished

TWO_WEEKS = timedelta(days=14)
KEY = "0123456789abcdef"
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def store(home: Path) -> Store:
    return open_store(str(home / "store"))


def aged(folder: Path, days: float, *files: str) -> Path:
    """A folder with these files, all of this age."""
    for name in files or ("checkpoint-3/weights",):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("1234")
    return age(folder, days)


def age(folder: Path, days: float) -> Path:
    then = time.time() - days * 86_400
    for path in (*folder.rglob("*"), folder):
        os.utime(path, (then, then))
    return folder


def swept(home: Path, store: Store, dry_run: bool = False) -> list[Leftover]:
    return clear(home, store, TWO_WEEKS, dry_run=dry_run)


def test_old_work_goes_and_young_work_stays(home: Path, store: Store) -> None:
    old, young = aged(home / "work" / f"sft-{KEY}", 20), aged(home / "work" / f"grpo-{KEY}", 13)
    (said,) = swept(home, store, dry_run=True)
    assert (said.path, said.size_bytes, said.kept) == (old, 4, False) and old.exists()
    assert said.reason == "nothing has gone on in it for 20 days"
    assert [item.path for item in swept(home, store)] == [old] and not old.exists() and young.exists()
    assert swept(home, store) == []


def test_one_young_file_keeps_a_folder(home: Path, store: Store) -> None:
    folder = aged(home / "work" / f"sft-{KEY}", 20, "a", "deep/b")
    os.utime(folder / "deep" / "b")
    assert swept(home, store) == []


def test_work_in_which_a_stage_runs_stays_whatever_its_age(home: Path, store: Store) -> None:
    folder = aged(home / "work" / f"sft-{KEY}", 400)
    with file_lock(home / "locks" / f"{folder.name}.lock"):
        assert swept(home, store) == []
    assert len(swept(home, store)) == 1


def test_a_finished_result_stays_until_it_is_stored(home: Path, store: Store) -> None:
    folder = aged(home / "work" / f"sft-{KEY}", 0, "out/model")
    draft = ManifestDraft(
        stage="sft", stage_version=1, fingerprint=KEY * 4, terms={}, started_at=NOON, finished_at=NOON, duration_s=1.0
    )
    mark_finished(folder, draft)
    age(folder, 400)
    (kept,) = swept(home, store)
    assert kept.kept and "could not be stored" in kept.reason and folder.exists()
    store.commit(draft, folder / "out", keep_source=True)
    age(folder, 400)
    assert not swept(home, store)[0].kept and not folder.exists()


def test_links_and_files_are_not_ours(home: Path, store: Store, tmp_path: Path) -> None:
    elsewhere = aged(tmp_path / "elsewhere", 400)
    (home / "work").mkdir(parents=True)
    (home / "work" / "link").symlink_to(elsewhere)
    (home / "work" / "file").write_text("")
    assert swept(home, store) == [] and elsewhere.exists()
    inside = aged(home / "work" / f"sft-{KEY}", 400)
    (inside / "link").symlink_to(elsewhere)
    os.utime(inside / "link", (1, 1), follow_symlinks=False)
    age(inside, 400)
    assert len(swept(home, store)) == 1 and (elsewhere / "checkpoint-3" / "weights").exists()


def test_old_experiments_go_unless_their_stage_runs(home: Path, store: Store) -> None:
    old = aged(home / "swanlab" / f"run-20260101_101010-{KEY}0a1b", 40, "log")
    aged(home / "swanlab" / f"run-20261101_101010-{KEY}0a1c", 3, "log")
    aged(home / "swanlab" / "my-own-notes", 400, "log")
    with file_lock(home / "locks" / f"grpo-{KEY}.lock"):
        assert swept(home, store) == []
    assert [item.path for item in swept(home, store, dry_run=True)] == [old] and old.exists()
    assert [item.kind for item in swept(home, store)] == ["experiment"]
    assert not old.exists() and len(list((home / "swanlab").iterdir())) == 2


@pytest.mark.skipif(not dashboard_installed(), reason="swanboard is not installed")
def test_an_experiment_leaves_the_dashboard_too(home: Path, store: Store) -> None:
    from swanboard.db import connect
    from swanboard.db.models import Experiment, Project

    old = aged(home / "swanlab" / f"run-20260101_101010-{KEY}0a1b", 40, "log")
    connect(autocreate=True, path=str(old.parent))
    Project.init(name="p")
    Experiment.create(name="grpo", run_id=old.name, colors=("#fff", "#000"))
    age(old, 40)
    assert len(swept(home, store)) == 1
    with closing(sqlite3.connect(home / "swanlab" / "runs.swanlab")) as database:
        assert database.execute("select count(*) from experiment").fetchone() == (0,)


def test_the_command_says_first_and_deletes_when_told(home: Path, store: Store) -> None:
    folder = aged(home / "work" / f"sft-{KEY}", 20)

    def call(*more: str) -> str:
        return (
            CliRunner().invoke(cli.app, ["artifacts", "gc", "--home", str(home), *more], env={"NO_COLOR": "1"}).output
        )

    assert f"would delete work sft-{KEY}, 0.0 MB: nothing has gone on in it for 20 days" in call()
    assert "0 to delete" in call("--leftover-days", "30") and folder.exists()
    assert "1 deleted" in call("--delete") and not folder.exists()
