"""1. kill -9 and SIGTERM of every process there is, at random moments of every stage, under a real server and worker.

One trial walks through the chain on one home and strikes in every stage, three times where that ends the stage: a run that is ended is
followed by the next one, which is struck again; one that goes on by itself is struck again as it goes on.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from artifacts.locks import lock_holder
from benchmarks.reliability.area import Area
from benchmarks.reliability.lab import Lab, below, compare, end, error_line, latest, losses, wait_for
from benchmarks.reliability.prefect_server import ensure, start_server, with_worker
from benchmarks.reliability.results import Trial
from benchmarks.reliability.running import GONE_S, Running

KIND = "1-kills"
# All but two of the three evaluations, which share their code; in the order of the chain.
STAGES = (
    "model",
    "dataset",
    "preflight",
    "evaluation_sets",
    "sft",
    "format_gate",
    "pass_rates",
    "selection",
    "grpo",
    "evaluate_grpo",
    "export",
)
SIGNALS = {"kill -9": signal.SIGKILL, "SIGTERM": signal.SIGTERM}
WHO = ("trainer", "supervisor", "flow", "worker", "server", "worker and flow")
RESTART = "server restart"
TRAIN = ("sft", "grpo")
STOPS_NOTHING = {"kill -9 worker", "SIGTERM worker", "kill -9 server", "SIGTERM server", RESTART}
AUTOMATION = "worker and flow"
"""A run whose worker died with it is only ended by the automation, after 150 s: waited for once."""
DOWN_S = 15.0
PASSED_OVER = "dataset"
"""A walk hardly ever strikes the server here: the stage is over before the server is back from the strike before."""
STRIKES = 3

Act = Callable[[Running], float | None]
"""Strikes, and returns when (monotonic); None when there was nothing left to strike."""


def trials(moments: int) -> list[Trial]:
    faults = [*(f"{name} {who}" for who in WHO for name in SIGNALS), RESTART]
    walks = [
        Trial(KIND, fault, "", n)
        for n in range(moments)
        for fault in faults
        if n < trials_for(moments, strikes_of(fault))
    ]
    return walks + [Trial(KIND, f"{name} server", PASSED_OVER, n) for name in SIGNALS for n in range(moments)]


def strikes_of(fault: str) -> int:
    """Strikes in one stage of a trial."""
    return 1 if fault in STOPS_NOTHING else STRIKES


def trials_for(moments: int, strikes: int) -> int:
    return -(-moments // strikes)


def run(lab: Lab, trial: Trial) -> dict[str, Any]:
    return walk(lab, trial, lambda running: inflict(lab, trial.fault, running))


def inflict(lab: Lab, fault: str, running: Running) -> float | None:
    now = time.monotonic()
    if fault == RESTART:
        end(lab.processes["server"])
        lab.processes["server"] = start_server(lab)
        return now
    number = next(SIGNALS[name] for name in SIGNALS if fault.startswith(name))
    who = fault.removeprefix("kill -9 ").removeprefix("SIGTERM ")
    pids = running.pids(who)
    for pid in pids:
        os.kill(pid, number)
    if who == "worker":
        # Dead, it is started again for the next strike; one that only winds down is struck again.
        with suppress(subprocess.TimeoutExpired):
            lab.processes["worker"].wait(timeout=5)
    if who == "server":
        lab.processes["server"].wait(timeout=60)
        time.sleep(DOWN_S)
        lab.processes["server"] = start_server(lab)
    return now if pids else None


def walk(
    lab: Lab, trial: Trial, act: Act, worker: bool = True, early_s: float = 0.0, may_go_on: bool = True
) -> dict[str, Any]:
    """Strike in every stage of the chain (or in the trial's only), at random moments, and let it come to its end.

    Args:
        worker: the runs are of the deployment; otherwise of the command line, which no worker knows.
        early_s: how long before the moment `act` is called.
        may_go_on: whether a run may go on by itself after `act`.
    """
    home = lab.home(trial.key, STAGES)
    lost: list[str] = []
    done: list[dict[str, Any]] = []
    struck: list[tuple[Running, float]] = []
    running: Running | None = None
    stages = [trial.stage] if trial.stage else STAGES
    for stage, number in ((stage, number) for stage in stages for number in range(strikes_of(trial.fault))):
        ensure(lab)
        if running is None or running.over:
            running = Running(lab, home, worker)
        if not running.reach(stage):
            lost += [f"before {stage} the run ended: {running.said()}"] if running.over else []
            continue  # an earlier run had finished it
        moment = {"stage": stage, **running.wait_until(share(trial, stage, number), early_s)}
        at = act(running)
        if at is None:
            continue  # it was over earlier than in the uninterrupted run
        moment |= {"newest_checkpoint": newest_checkpoint(home, stage), "by_itself": True}
        lost += fell_back(home, moment, done)
        if trial.fault in STOPS_NOTHING:
            moment |= {"ended_s": None, "gone_s": None}
        else:
            waits = AUTOMATION not in trial.fault or (trial.moment == 0 and not done)
            wrong, seen = running.follow(at, waits, may_go_on)
            lost += wrong + (left_behind(home, stage) if running.over else [])
            moment |= seen
        done.append(moment)
        struck.append((running, at))
    if running is not None and not running.over:
        running.to_the_end()
        lost += [] if running.state.get("type") == "COMPLETED" else [f"the last run ended: {running.said()}"]
    if latest(home, STAGES[-1]) is None:
        ensure(lab)
        ended = lab.run(home)
        lost += [f"the last run failed: {error_line(ended)}"] if ended.code else []
    for number, (moment, (run, at)) in enumerate(zip(done, struck, strict=True)):
        then = struck[number + 1] if number + 1 < len(struck) else None
        moment |= run.heard(at, then[1] if then and then[0] is run else None)
    lost += left_behind(home, STAGES[-1]) + [text for moment in done for text in started_over(home, moment)]
    lost += still_there(home)
    watch_pace(lab, home)
    return {
        "lost": sorted(set(lost)),
        "rounds": done,
        "noticed": next((moment["noticed"] for moment in done if moment["noticed_s"] is not None), None),
        "went_on": f"{sum(moment['by_itself'] for moment in done)} of {len(done)} by itself",
        "results": {stage: compare(lab, home, stage) for stage in STAGES},
    }


def watch_pace(lab: Lab, home: Path) -> None:
    """How much longer the stages took than in the base run."""
    for stage in STAGES:
        made, base = latest(home, stage), latest(lab.base, stage)
        if made and base and not made.resumed_from_step and made.duration_s > 2:
            lab.slowness.append(made.duration_s / base.duration_s)


def share(trial: Trial, stage: str, number: int) -> float:
    """Where in the stage: anywhere; in further trials of a stage that trains, its second half, the first being imports."""
    dice = random.Random(f"{trial.key} {stage} {number}")
    return dice.uniform(0.5 if stage in TRAIN and (trial.moment or number) else 0.02, 0.98)


def started_over(home: Path, moment: dict[str, Any]) -> list[str]:
    """Whether the stage, ended before it was finished, went on from an older checkpoint than its newest complete one."""
    made, kept = latest(home, moment["stage"]), moment["newest_checkpoint"]
    step = (made.resumed_from_step if made else None) or 0
    if not kept or moment.get("finished", True) or step >= kept:
        return []
    return [f"{moment['stage']}: a checkpoint of step {kept} was there and it went on from {step}"]


def fell_back(home: Path, moment: dict[str, Any], earlier: list[dict[str, Any]]) -> list[str]:
    """Whether a complete checkpoint that was there at an earlier strike in this stage is gone, though the stage has not ended."""
    stage, now = moment["stage"], moment["newest_checkpoint"]
    before = max((one["newest_checkpoint"] for one in earlier if one["stage"] == stage), default=0)
    if now >= before or latest(home, stage) is not None:
        return []
    return [f"{stage}: a checkpoint of step {before} was there and now the newest is of step {now}"]


def still_there(home: Path) -> list[str]:
    """Processes that are left when all is done."""
    wait_for(lambda: not below(home), GONE_S)
    return [f"a process was left behind: {process.pid}" for process in below(home)]


def left_behind(home: Path, stage: str) -> list[str]:
    locks = [path for folder in (home / "locks", home / "store" / "locks") for path in folder.glob("*.lock")]
    held = [path.name for path in locks if lock_holder(path)]
    return [f"lock held: {name}" for name in held] + losses(home, stage)


def newest_checkpoint(home: Path, stage: str) -> int:
    """Step of the newest complete checkpoint in the stage's work directory; 0 for none."""
    marks = (home / "work").glob(f"{stage}-*/checkpoints/*/complete.json")
    return max((int(mark.parent.name.rpartition("-")[2]) for mark in marks), default=0)


AREA = Area("Processes that die", trials, run, with_worker)
