"""A flow run whose stage under test is at work: where its processes are, and what becomes of them and of it."""

from __future__ import annotations

import statistics
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil

from benchmarks.reliability.lab import Lab, below, latest, short, wait_for
from benchmarks.reliability.prefect_server import HTTP, newest_run, start_run, state_of

GONE_S, END_S, LOOK_S = 10.0, 300.0, 2.0
RETRIES = ("run.retries=5",)
"""Of a stage: it is ended several times in one run."""
FINAL = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}
WORDS = (
    "was killed",
    "supervisor",
    "interrupted",
    "stopped",
    "retry",
    "crashed",
    "Crashed",
    "exception",
    "status code",
)


class Running:
    """A flow run of the whole chain.

    Args:
        worker: a run of the deployment, carried out by the worker; otherwise one of the command line, which no worker knows.

    Attributes:
        state: what Prefect last said of it: type, name, message.
        over: whether its end was seen.
    """

    def __init__(self, lab: Lab, home: Path, worker: bool = True) -> None:
        self.lab, self.home = lab, home
        self.run_id = start_run(lab, lab.deployment, home, "", RETRIES) if worker else ""
        self._own = None if worker else lab.start(lab.command(home, sets=RETRIES), home / "runs.log")
        self.stage, self.stage_pid = "", 0
        self.supervisor = self.flow = 0
        self.state: dict[str, Any] = {}
        self._looked_at = 0.0
        self.over = False

    def reach(self, stage: str, seconds: float = 240.0) -> bool:
        """Wait for a process of this stage; False when the stage is stored without one, or the run has ended (`over`)."""
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            if self._find(stage):
                return True
            if latest(self.home, stage):
                return False
            self._look()
            if self.state.get("type") in FINAL or (self._own and self._own.poll() is not None):
                self.over = True
                return False
            time.sleep(0.2)
        raise RuntimeError(f"{stage} did not start within {seconds:.0f} s")

    def _find(self, stage: str) -> bool:
        """Whether there is a process of the stage; it is then the one at hand."""
        for pid, supervisor in _stage_processes(self.home, stage):
            try:
                self.flow = psutil.Process(supervisor).ppid()
            except psutil.Error:
                continue
            self.stage, self.stage_pid, self.supervisor = stage, pid, supervisor
            self.run_id = self.run_id or newest_run(self.lab, self.home)
            return True
        return False

    def wait_until(self, share: float, early_s: float = 0.0) -> dict[str, Any]:
        """Wait until this share of the time is over that the uninterrupted stage takes, less `early_s`, or the stage has
        ended."""
        base = latest(self.lab.base, self.stage)
        began = time.monotonic()
        slower = min(1.5, statistics.median(self.lab.slowness[-5:] or [1.0]))
        wait_s = share * slower * (base.duration_s if base else 5) - early_s
        wait_for(lambda: not psutil.pid_exists(self.stage_pid), wait_s, 0.02)
        return {
            "share_of_stage": round(share, 2),
            "moment_s": round(time.monotonic() - began, 2),
            "stage_had_ended": not psutil.pid_exists(self.stage_pid),
        }

    def pids(self, who: str) -> list[int]:
        worker = self.lab.processes["worker"].pid
        asked = {
            "trainer": [self.stage_pid],
            "supervisor": [self.supervisor],
            "flow": [self.flow],
            "worker": [worker],
            "server": [self.lab.processes["server"].pid],
            "worker and flow": [worker, self.flow],
        }[who]
        return [pid for pid in asked if works(pid)]

    def alive(self) -> list[int]:
        found = [process.pid for process in below(self.home)]
        return found + ([self.flow] if works(self.flow) else [])

    def outlived(self) -> list[int]:
        """Processes of the stage that was struck which are still there after `GONE_S`, beside those that took its place."""
        struck = (self.stage_pid, self.supervisor)
        wait_for(lambda: not any(works(pid) for pid in struck), GONE_S)
        return [pid for pid in struck if works(pid)]

    def heard(self, killed_at: float, until: float | None = None) -> dict[str, Any]:
        """The first line of the run's log in Prefect that tells of the fault, and when it came (times: monotonic)."""
        now, here = datetime.now(UTC), time.monotonic()
        began = now - timedelta(seconds=here - killed_at)
        before = now - timedelta(seconds=here - until) if until else now + timedelta(minutes=1)
        within = {"after_": began.isoformat(), "before_": before.isoformat()}
        asked = {"logs": {"flow_run_id": {"any_": [self.run_id]}, "timestamp": within}, "sort": "TIMESTAMP_ASC"}
        lines = HTTP.post(f"{self.lab.api}/logs/filter", json=asked).json()
        for line in lines if isinstance(lines, list) else ():
            if any(word in line["message"] for word in WORDS):
                after = (datetime.fromisoformat(line["timestamp"]) - began).total_seconds()
                return {"noticed_s": round(after, 1), "noticed": short(line["message"].splitlines()[0])}
        return {"noticed_s": None, "noticed": "the run's log says nothing"}

    def follow(self, killed_at: float, waits: bool = True, may_go_on: bool = True) -> tuple[list[str], dict[str, Any]]:
        """Until the flow and all that is its own has ended, or the run goes on by itself: what is wrong, and the times.

        Args:
            waits: also for the state of a run that only the automation of `ops setup` ends.
            may_go_on: False for a run that was told to end, and may have begun its next stage before it heard of that.
        """
        ended: float | None = None
        gone: float | None = None
        flow_died_at: float | None = None
        again: float | None = None
        while (now := time.monotonic() - killed_at) < END_S:
            if flow_died_at is None and not works(self.flow):
                flow_died_at = now
            if may_go_on and flow_died_at is None and self._goes_on():
                again = round(now, 1)
                break
            if flow_died_at is not None and gone is None and not self.alive():
                gone = now
            self._look(0.3 if flow_died_at is not None else LOOK_S)
            if self.state.get("type") in FINAL and ended is None:
                ended = round(now, 1)
            if gone is not None and (ended is not None or (now > gone + 3 and not waits)):
                break
            time.sleep(0.3)
        self.over = again is None
        lost = []
        if self.over and gone is None:
            lost.append(f"{self.stage}: still alive after {END_S:.0f} s: {self.alive()}")
        elif gone is not None and flow_died_at is not None and gone - flow_died_at > GONE_S:
            lost.append(f"{self.stage}: the stage outlived the flow by {gone - flow_died_at:.1f} s")
        if self.over and waits and ended is None:
            lost.append(f"{self.stage}: Prefect was not told of the end within {END_S:.0f} s: {self.said()}")
        if again is not None and (left := self.outlived()):
            lost.append(f"{self.stage}: its processes {left} were still there when the run went on")
        return lost, {
            "ended_s": ended if self.over else None,
            "state": self.said() if self.over else "went on",
            "gone_s": round(gone, 1) if gone is not None else None,
            "again_s": again,
            "by_itself": again is not None or self.state.get("type") == "COMPLETED",
            # Before the strike or after it, where that came too late to stop it.
            "finished": latest(self.home, self.stage) is not None
            or any((self.home / "work").glob(f"{self.stage}-*/finished.json")),
        }

    def _look(self, every_s: float = LOOK_S) -> None:
        """Ask Prefect for the run's state, unless that was done a moment ago: an answer costs its server 30 ms of a core."""
        if self.run_id and time.monotonic() - self._looked_at >= every_s:
            self._looked_at = time.monotonic()
            self.state = state_of(self.lab, self.run_id) or self.state

    def said(self) -> str:
        message = str(self.state.get("message") or "").splitlines()
        return f"{self.state.get('name')}: {short(message[0])[:160] if message else ''}"

    def _goes_on(self) -> bool:
        """Whether the flow has started a stage process since: the stage once more, or the next one."""
        return any(supervisor != self.supervisor for _, supervisor in _stage_processes(self.home))

    def to_the_end(self) -> None:
        """Wait for the end of the run."""

        def final() -> bool:
            if self._own is not None:
                # A run whose stages are all stored starts no process by which Prefect's run could be told.
                code = self._own.poll()
                self.state = {"type": "FAILED" if code else "COMPLETED", "name": f"exit code {code}"}
                return code is not None
            self.state = state_of(self.lab, self.run_id) or self.state
            return self.state.get("type") in FINAL

        self.over = wait_for(final, END_S, 1.0) is not None


def _stage_processes(home: Path, stage: str = "") -> list[tuple[int, int]]:
    """Supervised processes of a stage, or of any: pid, and pid of the supervisor."""
    mark = f"{home}/work/{stage}-" if stage else f"{home}/work/"
    found = []
    for process in psutil.process_iter():
        try:
            line = process.cmdline()
            # The supervisor's command line holds the stage's, and what a stage forks has the same.
            if "tasks.process.stage_main" in line and line[-1].startswith(mark) and "--parent-fd" not in line:
                parent = process.parent()
                if parent is not None and "tasks.process.supervisor" in parent.cmdline():
                    found.append((process.pid, parent.pid))
        except psutil.Error:
            continue
    return found


def works(pid: int) -> bool:
    """Whether the process is there, and not only not waited for."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
