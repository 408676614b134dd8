"""What a reliability trial calls lost: each thing that can be lost, lost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("psutil")
pytest.importorskip("httpx")

from artifacts.locks import file_lock
from benchmarks.reliability import cancel, kills, running
from benchmarks.reliability.running import Running


@pytest.fixture
def struck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """A run whose stage is a process that goes on, and whose flow is gone; Prefect calls it Running for ever."""
    monkeypatch.setattr(running, "END_S", 1.0)
    monkeypatch.setattr(running, "GONE_S", 0.2)
    monkeypatch.setattr(running, "state_of", lambda lab, run_id: {"type": "RUNNING", "name": "Running"})
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    run = Running.__new__(Running)
    values: dict[str, Any] = {"stage": "sft", "stage_pid": process.pid, "supervisor": 0, "flow": 0, "run_id": "1"}
    vars(run).update(values, lab=None, home=tmp_path, state={}, over=False, _looked_at=0.0)
    yield run
    process.kill()
    process.communicate()


def test_a_run_whose_end_nobody_hears_of(struck: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    lost, seen = struck.follow(running.time.monotonic())
    assert len(lost) == 1 and "Prefect was not told of the end" in lost[0] and seen["ended_s"] is None
    monkeypatch.setattr(running, "state_of", lambda lab, run_id: {"type": "CRASHED", "name": "Crashed"})
    lost, seen = struck.follow(running.time.monotonic())
    assert lost == [] and seen["ended_s"] is not None


def test_a_process_that_outlives_its_stage(struck: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Running, "_goes_on", lambda self: True)
    vars(struck)["flow"] = struck.stage_pid  # any living process
    lost, seen = struck.follow(running.time.monotonic())
    assert lost == [f"sft: its processes [{struck.stage_pid}] were still there when the run went on"]
    assert seen["by_itself"] and not struck.over


def test_a_process_that_is_left_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kills, "GONE_S", 0.2)
    assert kills.still_there(tmp_path) == []
    left = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()", str(tmp_path)], stdin=subprocess.PIPE
    )
    try:
        assert kills.still_there(tmp_path) == [f"a process was left behind: {left.pid}"]
    finally:
        left.communicate()


def test_a_checkpoint_that_went(tmp_path: Path) -> None:
    done = [{"stage": "sft", "newest_checkpoint": 9}, {"stage": "grpo", "newest_checkpoint": 2}]
    assert kills.fell_back(tmp_path, {"stage": "sft", "newest_checkpoint": 9}, done) == []
    assert kills.fell_back(tmp_path, {"stage": "export", "newest_checkpoint": 0}, done) == []
    lost = kills.fell_back(tmp_path, {"stage": "sft", "newest_checkpoint": 3}, done)
    assert lost == ["sft: a checkpoint of step 9 was there and now the newest is of step 3"]


@pytest.mark.parametrize("folder", ["locks", "store/locks"])
def test_a_lock_that_is_held(tmp_path: Path, folder: str) -> None:
    with file_lock(tmp_path / folder / "sft-1.lock"):
        assert "lock held: sft-1.lock" in kills.left_behind(tmp_path, "model")
    assert kills.left_behind(tmp_path, "model") == []


def test_a_command_that_came_too_late_is_followed_by_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first finds the run ended; the second, which is another process, fails and says so."""
    answers = iter([("it is in a terminal state", 1), ("no server", 1), ("", 0)])
    started = []

    def command(lab: Any) -> Any:
        said, code = next(answers)
        once = iter([(said, "")])
        started.append(SimpleNamespace(communicate=lambda *_, **__: next(once), returncode=code, poll=lambda: code))
        return started[-1]

    def walk(lab: Any, trial: Any, act: Any, *_: Any, **__: Any) -> dict[str, Any]:
        run = SimpleNamespace(run_id="1")
        assert act(run) is None and act(run) is not None
        return {"lost": [], "rounds": [{"stage": "sft", "gone_s": 31.0}]}

    monkeypatch.setattr(cancel, "command", command)
    monkeypatch.setattr(cancel, "walk", walk)
    found = cancel.run(SimpleNamespace(), SimpleNamespace(fault=cancel.ALONE))  # type: ignore[arg-type]
    assert len(started) == 3
    assert found["lost"] == ["the command failed: no server", "sft: alive for 31.0 s after the command"]


def test_a_cancelled_run_that_begins_its_next_stage_is_followed_to_its_end(
    struck: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Running, "_goes_on", lambda self: True)
    monkeypatch.setattr(running, "state_of", lambda lab, run_id: {"type": "CANCELLED", "name": "Cancelled"})
    lost, seen = struck.follow(running.time.monotonic(), may_go_on=False)
    assert lost == [] and struck.over and seen["again_s"] is None and seen["ended_s"] is not None
