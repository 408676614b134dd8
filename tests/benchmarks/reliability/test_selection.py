"""Which trials a command line asks for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("psutil")
pytest.importorskip("httpx")

from benchmarks.reliability import __main__ as program
from benchmarks.reliability.lab import Lab


@pytest.mark.parametrize(("kind", "none"), [("1-kills", True), ("4-damage", False)])
def test_a_kind_whose_trials_walk_through_all_stages_says_that_none_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str, none: bool
) -> None:
    monkeypatch.setattr(Lab, "prepare", lambda self: None)
    monkeypatch.setattr(program, "write_page", lambda results: "page")
    # No minute is left: nothing is carried out.
    asked = ["reliability", "--kinds", kind, "--stages", "grpo", "--budget-minutes", "0"]
    monkeypatch.setattr(sys, "argv", [*asked, "--home", str(tmp_path), "--results", str(tmp_path / "none.json")])
    program.main()
    assert ("no trial is missing that fits" in capsys.readouterr().out) is none
