"""2. Cancelled from Prefect's command line, at random moments of every stage, with a worker and without one."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.reliability.area import Area
from benchmarks.reliability.kills import ROUNDS, STAGES, interrupted_runs
from benchmarks.reliability.lab import Lab
from benchmarks.reliability.prefect_server import prefect, with_worker
from benchmarks.reliability.results import Trial
from benchmarks.reliability.running import Running

KIND = "2-cancel"
WITHIN_S = 30.0
COMMAND_S = 2.5
BY_WORKER, ALONE = "prefect flow-run cancel", "prefect flow-run cancel, of a run without a worker"


def trials(moments: int) -> list[Trial]:
    chains = range(-(-moments // ROUNDS))
    return [Trial(KIND, fault, stage, n) for n in chains for stage in STAGES for fault in (BY_WORKER, ALONE)]


def run(lab: Lab, trial: Trial) -> dict[str, Any]:
    failed: list[str] = []

    def cancel(running: Running) -> float | None:
        asked = lab.call(prefect("flow-run", "cancel", running.run_id))
        if "terminal state" in asked.text:
            return None  # the stage was quicker than the command
        failed.extend([f"the command failed: {asked.tail(2)}"] if asked.code else [])
        return time.monotonic()

    # The command itself takes seconds to start: it is given before the moment, and what counts is what comes after it.
    outcome = interrupted_runs(lab, trial, cancel, ROUNDS, trial.fault == BY_WORKER, COMMAND_S)
    late = [
        f"alive for {r['gone_s']} s after the command" for r in outcome["rounds"] if (r["gone_s"] or 1e9) > WITHIN_S
    ]
    return {**outcome, "lost": outcome["lost"] + failed + late}


AREA = Area("Cancelled runs", trials, run, with_worker)
