"""Kills of every kind: nothing of a stage may be left, the save must be heard of, the lock held until the end."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

# A stage that saves on SIGTERM, for which it needs a worker that ends on SIGTERM at once; beside it helpers that ignore
# SIGTERM, one of them in a session of its own.
STAGE = """
import os, signal, subprocess, sys, time
from pathlib import Path

tag, folder, kinds = sys.argv[1], Path(sys.argv[2]), sys.argv[3].split(",")
if "watchdog" in kinds:
    from tasks.process.watchdog import Watchdog
    watchdog = Watchdog(folder / "stage.log")

def stop(*_):
    print("saved" if worker.poll() is None else "the worker is dead, cannot save", flush=True)
    if "watchdog" in kinds:
        watchdog.sweep()
    sys.exit(143)

signal.signal(signal.SIGTERM, signal.SIG_IGN if "stubborn" in kinds else stop)
worker = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)", tag])
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
# A shell's background job starts with SIGINT ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
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


@contextlib.contextmanager
def started(folder: Path, kinds: str, grace_s: float) -> Iterator[Run]:
    """A flow whose stage is up; whatever is left at the end is killed."""
    tag = f"tag-{uuid.uuid4().hex}"
    (folder / "stage.py").write_text(STAGE)
    (folder / "flow.py").write_text(FLOW)
    flow = subprocess.Popen(
        [sys.executable, folder / "flow.py", folder, tag, kinds, str(grace_s)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 30
        while not (folder / "ready").exists():
            assert time.monotonic() < deadline and flow.poll() is None, "the stage did not start"
            time.sleep(0.05)
        yield Run(folder, tag, flow)
    finally:
        for pid in tagged(tag):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        flow.wait()


@dataclass(frozen=True)
class Case:
    """Who is killed and how, and what must be seen.

    The victims die in the given order: a stage that is not to save goes first, and so does a guard
    (killed last, it may miss a stage that has already stopped and left, with nobody to sweep after it). `kinds` are traits of the fake stage: daemon (has a daemon without the marker), stubborn (ignores SIGTERM),
    watchdog. `again` is sent to the flow half a second later. `result` is what the flow got, if it lives: exit code, signal, ended_by.
    """

    victims: tuple[str, ...]
    signum: int
    kinds: str = ""
    saves: bool = True
    grace_s: float = 3.0
    again: int | None = None
    least_s: float = 0.0
    most_s: float = 10.0
    result: tuple[int, int | None, str] | None = None
    says: str = ""

    def __str__(self) -> str:
        again = f"-{signal.Signals(self.again).name}" if self.again else ""
        name = f"{signal.Signals(self.signum).name}{again}"
        return f"{'+'.join(self.victims)}-{name}-{self.kinds or 'plain'}-{self.grace_s:g}"


KILL, TERM, INT = signal.SIGKILL, signal.SIGTERM, signal.SIGINT
CASES = [
    Case(("flow",), KILL, "daemon", says="the launcher is gone"),
    Case(("flow",), TERM, "daemon", says="interrupted by TerminationSignal"),
    Case(("flow",), INT, says="interrupted by KeyboardInterrupt"),
    Case(("supervisor",), KILL, result=(137, 9, "supervisor_lost"), says="the supervisor was killed"),
    Case(("supervisor",), TERM, "daemon", result=(143, None, "interrupt"), says="asked to stop"),
    Case(("stage",), KILL, "daemon", saves=False, result=(137, 9, "itself")),
    Case(("guard", "stage"), KILL, "daemon", saves=False, result=(137, 9, "itself")),
    Case(("flow", "supervisor"), KILL, says="launcher and supervisor are gone"),
    Case(("stage", "supervisor"), KILL, saves=False, result=(137, 9, "supervisor_lost")),
    Case(("guard", "supervisor"), KILL, "watchdog", result=(137, 9, "supervisor_lost")),
    Case(("stage", "supervisor", "flow"), KILL, saves=False),
    Case(("guard", "supervisor", "flow"), KILL, "watchdog"),
    Case(("flow",), TERM, "stubborn", saves=False, grace_s=1.0, least_s=0.9, says="did not stop in time"),
    # A second SIGTERM, from a run and its worker that both see a cancel, takes nothing of the grace; Ctrl-C ends it at once.
    Case(("flow",), TERM, "stubborn", saves=False, grace_s=2.0, again=TERM, least_s=1.9, says="did not stop in time"),
    Case(("flow",), TERM, "stubborn", saves=False, grace_s=20.0, again=INT),
    # With the default grace and a stage that does not stop.
    Case(("flow",), KILL, "stubborn", saves=False, grace_s=25.0),
    Case(("supervisor",), KILL, "stubborn", saves=False, grace_s=25.0, result=(137, 9, "supervisor_lost")),
    Case(("flow", "supervisor"), KILL, "stubborn", saves=False, grace_s=25.0),
]


def play(case: Case, folder: Path) -> None:
    """Run one case and check all that it promises."""
    with started(folder, case.kinds, case.grace_s) as run:
        pids = run.pids()
        assert set(pids) == {"flow", "supervisor", "guard", "stage"}
        helpers = 3 + ("daemon" in case.kinds)
        assert len(tagged(run.tag)) == 4 + helpers, "flow, supervisor, guard, stage, worker and helpers"
        assert not run.lock_is_free()
        for victim in case.victims:
            os.kill(pids[victim], case.signum)
        if case.again is not None:
            time.sleep(0.5)
            os.kill(pids["flow"], case.again)
        took = run.wait_until_nothing_is_left(case.most_s)
        assert took >= case.least_s
        log = (folder / "stage.log").read_text()
        assert ("saved" in log) == case.saves and case.says in log and "Traceback" not in log
        if "flow" not in case.victims:
            result = json.loads((folder / "result.json").read_text())
            assert (result["exit_code"], result["signal"], result["ended_by"]) == case.result


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Case, Future[None]]]:
    """The selected cases, played side by side: they mostly wait."""
    selected = [item.callspec.params["case"] for item in request.session.items if item.module is request.module]
    selected.sort(key=lambda case: -case.grace_s)  # the long ones first
    with ThreadPoolExecutor(4) as pool:
        yield {case: pool.submit(play, case, tmp_path_factory.mktemp("run")) for case in selected}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_nothing_is_left(case: Case, outcomes: dict[Case, Future[None]]) -> None:
    outcomes[case].result()
