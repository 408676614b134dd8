"""Where the local server keeps its database."""

from __future__ import annotations

from pathlib import Path

import pytest

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
