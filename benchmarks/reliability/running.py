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

GONE_S, END_S = 10.0, 300.0
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


class StageWasDone(Exception):
    """The run ended without starting the stage: an interrupted run had finished or stored it."""


class Running:
    """A flow run whose stage under test has started.

    Args:
        worker: a run of the deployment, carried out by the worker; otherwise one of the command line, which no worker knows.
        sets: settings beside the lab's.
    """

    def __init__(self, lab: Lab, home: Path, stage: str, worker: bool = True, sets: tuple[str, ...] = ()) -> None:
        self.lab, self.home, self.stage = lab, home, stage
        self.run_id = start_run(lab, lab.deployment, home, stage, sets) if worker else ""
        own = None if worker else lab.start(lab.command(home, "--stop-after", stage, sets=sets), home / "first.log")
        self.stage_pid = 0
        began = time.monotonic()
        while not self.find_stage(2):
            state = state_of(lab, self.run_id) if worker else {}
            if state.get("type") == "COMPLETED" or (own is not None and own.poll() == 0):
                raise StageWasDone
            if state.get("type") in FINAL or (own and own.poll()) or time.monotonic() - began > 240:
                raise RuntimeError(f"the stage did not start: {state}")
        if not worker:
            self.run_id = newest_run(lab, home)

    def find_stage(self, seconds: float) -> bool:
        """Wait for a process of the stage other than the last one."""
        last = self.stage_pid
        while seconds > 0:
            found = [pid for pid in _stage_processes(self.home, self.stage) if pid != last]
            if found:
                self.stage_pid = found[0]
                self.supervisor = psutil.Process(self.stage_pid).ppid()
                self.flow = psutil.Process(self.supervisor).ppid()
                return True
            if last and not works(self.flow):
                return False
            time.sleep(0.2)
            seconds -= 0.2
        return False

    def reach(self, share: float, early_s: float = 0.0) -> dict[str, Any]:
        """Wait until this share of the time is over that the uninterrupted stage would take, less `early_s`, or the stage has
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

    def heard(self, killed_at: float) -> dict[str, Any]:
        """The first line of the run's log in Prefect that tells of the fault, and when it came."""
        began = datetime.now(UTC) - timedelta(seconds=time.monotonic() - killed_at)
        asked = {"logs": {"flow_run_id": {"any_": [self.run_id]}}, "sort": "TIMESTAMP_ASC", "limit": 200}
        lines = HTTP.post(f"{self.lab.api}/logs/filter", json=asked).json()
        for line in lines if isinstance(lines, list) else ():
            after = (datetime.fromisoformat(line["timestamp"]) - began).total_seconds()
            if after > 0 and any(word in line["message"] for word in WORDS):
                return {"noticed_s": round(after, 1), "noticed": short(line["message"].splitlines()[0])}
        return {"noticed_s": None, "noticed": "the run's log says nothing"}

    def follow(self, killed_at: float, waits: bool = False) -> tuple[list[str], dict[str, Any]]:
        """To the end of the flow and of all that is its own: what is wrong, and the times.

        Args:
            waits: also for the state of a run that only the automation of `ops setup` ends.
        """
        ended: float | None = None
        gone: float | None = None
        flow_died_at: float | None = None
        state: dict[str, Any] = {}
        while time.monotonic() - killed_at < END_S:
            now = time.monotonic() - killed_at
            if flow_died_at is None and not works(self.flow):
                flow_died_at = now
            if flow_died_at is not None and gone is None and not self.alive():
                gone = now
            state = state_of(self.lab, self.run_id) or state
            if state.get("type") in FINAL and ended is None:
                ended = round(now, 1)
            if gone is not None and (ended is not None or (now > gone + 3 and not waits)):
                break
            time.sleep(0.5)
        lost = []
        if gone is None:
            lost.append(f"still alive after {END_S:.0f} s: {self.alive()}")
        elif flow_died_at is not None and gone - flow_died_at > GONE_S:
            lost.append(f"the stage outlived the flow by {gone - flow_died_at:.1f} s")
        return lost, {
            **self.heard(killed_at),
            "ended_s": ended,
            "state": f"{state.get('name')}: {(str(state.get('message') or '').splitlines() or [''])[0][:160]}",
            "gone_s": round(gone, 1) if gone is not None else None,
            "by_itself": state.get("type") == "COMPLETED",
        }


def _stage_processes(home: Path, stage: str) -> list[int]:
    mark = f"{home}/work/{stage}-"
    found = []
    for process in psutil.process_iter():
        try:
            line = process.cmdline()
        except psutil.Error:
            continue
        # The supervisor's command line holds the stage's.
        if "tasks.process.stage_main" in line and line[-1].startswith(mark) and "--parent-fd" not in line:
            found.append(process.pid)
    return found


def works(pid: int) -> bool:
    """Whether the process is there, and not only not waited for."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
