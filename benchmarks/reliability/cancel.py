"""2. Cancelled from Prefect's command line, at random moments of every stage."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.reliability.area import Area
from benchmarks.reliability.kills import STAGES, Running
from benchmarks.reliability.lab import Lab
from benchmarks.reliability.prefect_server import ensure, prefect, with_worker
from benchmarks.reliability.results import Trial

KIND = "2-cancel"
WITHIN_S = 30.0
COMMAND_S = 2.5
BY_WORKER, ALONE = "prefect flow-run cancel", "prefect flow-run cancel, of a run without a worker"


def trials(moments: int) -> list[Trial]:
    return [Trial(KIND, fault, stage, n) for n in range(moments) for stage in STAGES for fault in (BY_WORKER, ALONE)]


def run(lab: Lab, trial: Trial) -> dict[str, Any]:
    ensure(lab)
    # The command itself takes seconds to start: it is given before the moment, and what counts is what comes after it.
    for early_s in (COMMAND_S, 1e9):
        running = Running(
            lab, lab.home(trial.key, trial.stage), trial, worker=trial.fault == BY_WORKER, early_s=early_s
        )
        asked = lab.call(prefect("flow-run", "cancel", running.run_id))
        if "terminal state" not in asked.text:
            break  # otherwise the stage was quicker than the command: once more, as soon as it starts
    else:
        raise RuntimeError("the run had always ended before the command: nothing was tried")
    outcome = running.see_through(time.monotonic())
    if asked.code:
        outcome["lost"].append(f"the command failed: {asked.tail(2)}")
    if outcome["gone_s"] is None or outcome["gone_s"] > WITHIN_S:
        outcome["lost"].append(f"alive for {outcome['gone_s']} s after the command")
    return {**outcome, "command_s": round(asked.seconds, 1)}


AREA = Area("Cancelled runs", trials, run, with_worker)
