"""Where the local server keeps its database."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

from flows import server
from tasks.errors import StoreError


def test_a_home_whose_parents_are_missing_is_made(tmp_path: Path) -> None:
    server._make_home(tmp_path / "a" / "b" / "prefect")
    assert (tmp_path / "a" / "b" / "prefect").is_dir()


def test_a_home_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="home folder cannot be made") as caught:
        server._make_home(tmp_path / "file" / "prefect")
    assert caught.value.where == str(tmp_path / "file" / "prefect")


def test_servers_of_one_home_start_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that migrate the same new database at the same time fail: "duplicate column name" or "database is locked"."""
    starting, most = [0], [0]

    def start(port: int, log_file: Path, watched: int) -> Any:
        starting[0] += 1
        most[0] = max(most[0], starting[0])
        return SimpleNamespace(terminate=lambda: None)

    def wait(url: str, process: Any, log_file: Path) -> None:
        time.sleep(0.05)
        starting[0] -= 1

    monkeypatch.setattr(server, "_start", start)
    monkeypatch.setattr(server, "_wait", wait)
    own: list[bool] = []

    def run(number: int) -> None:
        with (
            temporary_settings({PREFECT_HOME: tmp_path, PREFECT_API_URL: None}),
            server.prefect_server(tmp_path / f"{number}.log", lambda text: None) as started,
        ):
            own.append(started)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(4)))
    assert own == [True] * 4 and most == [1]
