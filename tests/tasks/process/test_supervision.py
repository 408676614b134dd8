"""Kills of every kind: nothing of a stage may be left, the save must be heard of, the lock held until the end."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

# A stage that saves on SIGTERM, with helpers that ignore SIGTERM, one of them in a session of its own.
STAGE = """
import os, signal, subprocess, sys, time
from pathlib import Path

tag, folder, kinds = sys.argv[1], Path(sys.argv[2]), sys.argv[3].split(",")
if "watchdog" in kinds:
    from tasks.process.watchdog import Watchdog
    watchdog = Watchdog(folder / "stage.log")

def stop(*_):
    print("saved", flush=True)
    if "watchdog" in kinds:
        watchdog.sweep()
    sys.exit(143)

signal.signal(signal.SIGTERM, signal.SIG_IGN if "stubborn" in kinds else stop)
helper = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
command = [sys.executable, "-S", "-c", helper, tag]
subprocess.Popen(command)
subprocess.Popen(command, start_new_session=True)
if "daemon" in kinds:  # an orphan in a session of its own, without the marker in its environment
    subprocess.run(
        [sys.executable, "-S", "-c", "import os, sys; os.fork() and os._exit(0); os.setsid(); "
         "os.execve(sys.argv[1], sys.argv[1:], {})", *command])
time.sleep(0.2)
(folder / "ready").write_text("")
print("ready", flush=True)
while True:
    time.sleep(0.1)
    print("step", flush=True)
"""

# A flow process: holds a lock, runs the stage, treats SIGTERM as Prefect's engine does.
FLOW = """
import dataclasses, fcntl, json, os, signal, sys
from pathlib import Path
from tasks.process.launch import run_supervised

class TerminationSignal(BaseException):
    pass

def on_term(*_):
    raise TerminationSignal

signal.signal(signal.SIGTERM, on_term)
folder, tag, kinds, grace = Path(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4])
lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT)
fcntl.flock(lock, fcntl.LOCK_EX)
result = run_supervised(
    [sys.executable, str(folder / "stage.py"), tag, str(folder), kinds],
    cwd=folder, env=dict(os.environ), log_path=folder / "stage.log", on_line=lambda line: None,
    grace_s=grace, inherit_fds=(lock,),
)
(folder / "result.json").write_text(json.dumps(dataclasses.asdict(result)))
"""


def tagged(tag: str) -> dict[int, list[str]]:
    """Command lines of the live processes that carry `tag` in theirs, by pid."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = Path(f"/proc/{name}/cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if tag in line:
            found[int(name)] = line
    return found


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


@dataclass
class Run:
    """A running flow with its supervised stage."""

    folder: Path
    tag: str
    flow: subprocess.Popen[bytes]

    def pids(self) -> dict[str, int]:
        """The pids of flow, supervisor, guard and stage."""
        found = {"flow": self.flow.pid}
        for pid, line in tagged(self.tag).items():
            if "tasks.process.supervisor" in line:
                found["supervisor" if parent(pid) == self.flow.pid else "guard"] = pid
            elif str(self.folder / "stage.py") in line:
                found["stage"] = pid
        return found

    def lock_is_free(self) -> bool:
        with open(self.folder / "lock") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    def wait_until_nothing_is_left(self, limit_s: float = 10.0) -> float:
        """Seconds until no process is left; the lock must not be free before that."""
        start = time.monotonic()
        while True:
            free = self.lock_is_free()
            left = {pid for pid in tagged(self.tag) if pid != self.flow.pid}
            assert not (free and left), f"the lock is free while {left} are alive"
            if not left and self.flow.poll() is not None:
                return time.monotonic() - start
            assert time.monotonic() - start < limit_s, f"left after {limit_s} s: {tagged(self.tag)}"
            time.sleep(0.05)

    def log(self) -> str:
        return (self.folder / "stage.log").read_text()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[object]:
    runs: list[Run] = []

    def start_run(kinds: str, grace_s: float = 3.0) -> Run:
        tag = f"tag-{uuid.uuid4().hex}"
        (tmp_path / "stage.py").write_text(STAGE)
        (tmp_path / "flow.py").write_text(FLOW)
        flow = subprocess.Popen(
            [sys.executable, tmp_path / "flow.py", tmp_path, tag, kinds, str(grace_s)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        run = Run(tmp_path, tag, flow)
        runs.append(run)
        deadline = time.monotonic() + 15
        while not (tmp_path / "ready").exists():
            assert time.monotonic() < deadline and flow.poll() is None, "the stage did not start"
            time.sleep(0.02)
        return run

    yield start_run
    for run in runs:
        for pid in tagged(run.tag):
            os.kill(pid, signal.SIGKILL)
        run.flow.wait()


@pytest.mark.parametrize(
    ("victims", "signum", "kinds", "saves"),
    [
        (("flow",), signal.SIGKILL, "daemon", True),
        (("flow",), signal.SIGTERM, "daemon", True),
        (("flow",), signal.SIGINT, "", True),
        (("supervisor",), signal.SIGKILL, "", True),
        (("supervisor",), signal.SIGTERM, "daemon", True),
        (("stage",), signal.SIGKILL, "daemon", False),
        (("flow", "supervisor"), signal.SIGKILL, "", True),
        (("supervisor", "stage"), signal.SIGKILL, "", False),
        (("flow", "supervisor", "stage"), signal.SIGKILL, "", False),
        (("flow", "supervisor", "guard"), signal.SIGKILL, "watchdog", True),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, tuple) else None,
)
def test_nothing_is_left(start, victims: tuple[str, ...], signum: int, kinds: str, saves: bool) -> None:
    run = start(kinds)
    pids = run.pids()
    assert set(pids) == {"flow", "supervisor", "guard", "stage"}
    assert len(tagged(run.tag)) == 4 + 2 + ("daemon" in kinds), "flow, supervisor, guard, stage and helpers"
    assert not run.lock_is_free()
    for victim in victims:
        os.kill(pids[victim], signum)
    run.wait_until_nothing_is_left()
    assert ("saved" in run.log()) == saves
    if "flow" not in victims:
        result = json.loads((run.folder / "result.json").read_text())
        expected = {
            ("supervisor",): {signal.SIGKILL: (137, 9, "supervisor_lost"), signal.SIGTERM: (143, None, "interrupt")},
            ("stage",): {signal.SIGKILL: (137, 9, "itself")},
            ("supervisor", "stage"): {signal.SIGKILL: (137, 9, "supervisor_lost")},
        }[victims][signum]
        assert (result["exit_code"], result["signal"], result["ended_by"]) == expected


def test_a_stage_that_ignores_sigterm_is_killed_after_the_grace(start) -> None:
    run = start("stubborn", grace_s=1.0)
    os.kill(run.flow.pid, signal.SIGTERM)
    assert 0.9 < run.wait_until_nothing_is_left() < 5
    assert "did not stop in time" in run.log()


def test_a_second_interrupt_during_the_grace_kills_at_once(start) -> None:
    run = start("stubborn", grace_s=20.0)
    os.kill(run.flow.pid, signal.SIGTERM)
    time.sleep(1.0)
    os.kill(run.flow.pid, signal.SIGTERM)
    assert run.wait_until_nothing_is_left() < 4
