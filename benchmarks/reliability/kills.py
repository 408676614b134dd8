"""1. kill -9 and SIGTERM of every process there is, at random moments of every stage, under a real server and worker."""

from __future__ import annotations

import os
import random
import signal
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil

from artifacts.locks import lock_holder
from benchmarks.reliability.area import Area
from benchmarks.reliability.lab import Lab, below, compare, end, error_line, latest, losses, short, wait_for
from benchmarks.reliability.prefect_server import (
    HTTP,
    ensure,
    newest_run,
    start_run,
    start_server,
    state_of,
    with_worker,
)
from benchmarks.reliability.results import Trial

KIND = "1-kills"
# All but two of the three evaluations, which share their code. The order is that of interest.
STAGES = (
    "sft",
    "grpo",
    "evaluate_grpo",
    "export",
    "format_gate",
    "pass_rates",
    "dataset",
    "preflight",
    "evaluation_sets",
    "selection",
    "model",
)
SIGNALS = {"kill -9": signal.SIGKILL, "SIGTERM": signal.SIGTERM}
WHO = ("trainer", "supervisor", "flow", "worker", "server", "worker and flow")
RESTART = "server restart"
GONE_S, DOWN_S, END_S = 10.0, 15.0, 300.0
FINAL = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}


def trials(moments: int) -> list[Trial]:
    faults = [*(f"{name} {who}" for who in WHO for name in SIGNALS), RESTART]
    return [Trial(KIND, fault, stage, n) for n in range(moments) for stage in STAGES for fault in faults]


def run(lab: Lab, trial: Trial) -> dict[str, Any]:
    ensure(lab)
    home = lab.home(trial.key, trial.stage)
    running = Running(lab, home, trial)
    fault = trial.fault
    killed_at = time.monotonic()
    if fault == RESTART:
        end(lab.processes["server"])
        lab.processes["server"] = start_server(lab)
    else:
        number = next(SIGNALS[name] for name in SIGNALS if fault.startswith(name))
        who = fault.removeprefix("kill -9 ").removeprefix("SIGTERM ")
        for pid in running.pids(who):
            os.kill(pid, number)
        if who == "server":
            lab.processes["server"].wait(timeout=60)
            time.sleep(DOWN_S)
            lab.processes["server"] = start_server(lab)
    return running.see_through(killed_at)


class Running:
    """A flow run that is at a random moment of the stage under test: of the deployment by the worker, or (`worker=False`) of
    the command line, which no worker knows of. `early_s`: what acts on it takes so long to start."""

    def __init__(self, lab: Lab, home: Path, trial: Trial, worker: bool = True, early_s: float = 0) -> None:
        self.lab, self.home, self.trial = lab, home, trial
        self.run_id = start_run(lab, lab.deployment, home, trial.stage) if worker else ""
        if not worker:
            lab.start(lab.command(home, "--stop-after", trial.stage), home / "first.log")
        self.stage_pid = 0
        if wait_for(self._stage_process, 240, 0.1) is None:
            raise RuntimeError(f"the stage did not start: {state_of(lab, self.run_id)}")
        if not worker:
            self.run_id = newest_run(lab, home)
        self.supervisor = psutil.Process(self.stage_pid).ppid()
        self.flow = psutil.Process(self.supervisor).ppid()
        base = latest(lab.base, trial.stage)
        self.share = random.Random(trial.key).uniform(0.02, 0.98)
        began = time.monotonic()
        wait_s = self.share * (base.duration_s if base else 5) - early_s
        wait_for(lambda: not psutil.pid_exists(self.stage_pid), wait_s, 0.02)
        self.moment_s = round(time.monotonic() - began, 2)
        # Later than the base run's stage took, on a machine that is quicker today: between two steps of the flow.
        self.stage_had_ended = not psutil.pid_exists(self.stage_pid)

    def _stage_process(self) -> bool:
        mark = f"{self.home}/work/{self.trial.stage}-"
        for process in psutil.process_iter():
            try:
                line = process.cmdline()
            except psutil.Error:
                continue
            # The supervisor's command line holds the stage's.
            if "tasks.process.stage_main" in line and line[-1].startswith(mark) and "--parent-fd" not in line:
                self.stage_pid = process.pid
                return True
        return False

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
        return [pid for pid in asked if psutil.pid_exists(pid)]

    def _alive(self) -> list[int]:
        found = [process.pid for process in below(self.home)]
        return found + ([self.flow] if _works(self.flow) else [])

    def _heard(self, killed_at: float) -> dict[str, Any]:
        """The first line of the run's log in Prefect that tells of the fault, and when it came."""
        began = datetime.now(UTC) - timedelta(seconds=time.monotonic() - killed_at)
        asked = {"logs": {"flow_run_id": {"any_": [self.run_id]}}, "sort": "TIMESTAMP_ASC", "limit": 200}
        lines = HTTP.post(f"{self.lab.api}/logs/filter", json=asked).json()
        for line in lines:
            after = (datetime.fromisoformat(line["timestamp"]) - began).total_seconds()
            if after > 0 and any(word in line["message"] for word in WORDS):
                return {"noticed_s": round(after, 1), "noticed": short(line["message"].splitlines()[0])}
        return {"noticed_s": None, "noticed": "the run's log says nothing"}

    def see_through(self, killed_at: float, gone_s: float = GONE_S) -> dict[str, Any]:
        """Follow the run to its end, look for what is left, and run again if it did not complete by itself."""
        lab, home, stage = self.lab, self.home, self.trial.stage
        noticed: float | None = None
        gone: float | None = None
        state: dict[str, Any] = {}
        flow_died_at: float | None = None
        while time.monotonic() - killed_at < END_S:
            now = time.monotonic() - killed_at
            if flow_died_at is None and not _works(self.flow):
                flow_died_at = now
            if flow_died_at is not None and gone is None and not self._alive():
                gone = now
            state = state_of(lab, self.run_id) or state
            if state.get("type") in FINAL and noticed is None:
                noticed = round(now, 1)
            # A dead worker's run is only ended by the automation, after 150 s: looked at once, for the first stage.
            waits = stage == STAGES[0] and self.trial.moment == 0
            if gone is not None and (noticed is not None or (now > gone + 3 and not waits)):
                break
            time.sleep(0.2)
        lost = []
        if gone is None:
            left = self._alive()
            lost.append(f"still alive after {END_S:.0f} s: {left}")
        elif flow_died_at is not None and gone - flow_died_at > gone_s:
            lost.append(f"the stage outlived the flow by {gone - flow_died_at:.1f} s")
        held = [path.name for path in (home / "locks").glob("*.lock") if lock_holder(path)]
        lost += [f"lock held: {name}" for name in held]
        lost += losses(home, stage)
        kept = [path.parent.name for path in (home / "work").glob(f"{stage}-*/checkpoints/*/complete.json")]
        by_itself = state.get("type") == "COMPLETED"
        outcome: dict[str, Any] = {
            "share_of_stage": round(self.share, 2),
            "moment_s": self.moment_s,
            "stage_had_ended": self.stage_had_ended,
            **self._heard(killed_at),
            "ended_s": noticed,
            "state": f"{state.get('name')}: {(str(state.get('message') or '').splitlines() or [''])[0][:160]}",
            "gone_s": round(gone, 1) if gone is not None else None,
            "outlived_flow_s": round(gone - flow_died_at, 1) if gone is not None and flow_died_at is not None else None,
            "checkpoints_kept": len(kept),
        }
        if not by_itself:
            ended = lab.run(home, "--stop-after", stage)
            if ended.code:
                lost.append(f"the next run failed: {error_line(ended)}")
        result = compare(lab, home, stage)
        step = result.get("resumed_from_step")
        if kept and not by_itself and not step:
            lost.append("a checkpoint was there and the next run did not resume")
        who = "the run itself went on" if by_itself else "the next run went on"
        outcome["went_on"] = f"{who}{f' from step {step}' if step else ''}"
        outcome["by_itself"] = by_itself
        outcome["same_result"] = result
        return {"lost": lost, **outcome}


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


def _works(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


AREA = Area("Processes that die", trials, run, with_worker)
