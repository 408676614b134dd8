"""2. Cancelled from Prefect's command line, at random moments of every stage, with a worker and without one."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

from benchmarks.reliability.area import Area
from benchmarks.reliability.kills import STRIKES, trials_for, walk
from benchmarks.reliability.lab import ROOT, Lab, end
from benchmarks.reliability.prefect_server import with_worker
from benchmarks.reliability.results import Trial
from benchmarks.reliability.running import Running

KIND = "2-cancel"
WITHIN_S = 30.0
COMMAND_S = 0.5
COMMAND = """
import runpy, sys
import prefect.cli.flow_run
sys.argv = ["prefect", "flow-run", "cancel", sys.stdin.readline().strip()]
runpy.run_module("prefect", run_name="__main__", alter_sys=True)
"""
"""The command, with its imports, which take seconds, done before the moment comes: some stages take less than they do."""
BY_WORKER, ALONE = "prefect flow-run cancel", "prefect flow-run cancel, of a run without a worker"


def trials(moments: int) -> list[Trial]:
    return [Trial(KIND, fault, "", n) for n in range(trials_for(moments, STRIKES)) for fault in (BY_WORKER, ALONE)]


def run(lab: Lab, trial: Trial) -> dict[str, Any]:
    failed: list[str] = []
    ready = [command(lab)]

    def cancel(running: Running) -> float | None:
        asked = ready[0]
        said, _ = asked.communicate(f"{running.run_id}\n", timeout=120)
        now = time.monotonic()
        ready[0] = command(lab)
        if "terminal state" in said:
            return None  # the stage was quicker than the command
        failed.extend([f"the command failed: {said[-300:]}"] if asked.returncode else [])
        return now

    try:
        # What counts is what comes after the command.
        outcome = walk(lab, trial, cancel, trial.fault == BY_WORKER, COMMAND_S, may_go_on=False)
    finally:
        end(ready[0])
    late = [
        f"{r['stage']}: alive for {r['gone_s']} s after the command"
        for r in outcome["rounds"]
        if (r["gone_s"] or 1e9) > WITHIN_S
    ]
    return {**outcome, "lost": outcome["lost"] + failed + late}


def command(lab: Lab) -> subprocess.Popen[str]:
    """`prefect flow-run cancel`, waiting for a run's id on its standard input."""
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND],
        cwd=ROOT,
        env=lab.env(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


AREA = Area("Cancelled runs", trials, run, with_worker)
