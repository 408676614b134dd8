"""1. kill -9 and SIGTERM of every process there is, at random moments of every stage, under a real server and worker.

One trial is up to three moments on one home: a run that is interrupted, the next run interrupted again, and so on, and
at the end a run that is left alone. A run that goes on by itself (its trainer was killed) is hit again as it goes on.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from artifacts.locks import lock_holder
from benchmarks.reliability.area import Area
from benchmarks.reliability.lab import Lab, compare, end, error_line, latest, losses
from benchmarks.reliability.prefect_server import ensure, start_server, with_worker
from benchmarks.reliability.results import Trial
from benchmarks.reliability.running import Running, StageWasDone

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
TRAIN = ("sft", "grpo")
ROUNDS = 3
GOES_ON = {"kill -9 trainer", "kill -9 supervisor"}
"""After these the flow tries the stage again."""
ONCE = {"kill -9 worker", "SIGTERM worker", "kill -9 server", "SIGTERM server", RESTART}
"""These stop nothing, so there is no next run to interrupt."""
DOWN_S = 15.0
TRIES = 3


def trials(moments: int) -> list[Trial]:
    faults = [*(f"{name} {who}" for who in WHO for name in SIGNALS), RESTART]
    return [
        Trial(KIND, fault, stage, n)
        for n in range(moments)
        for stage in STAGES
        for fault in faults
        if fault in ONCE or n < -(-moments // rounds_at(stage))
    ]


def run(lab: Lab, trial: Trial) -> dict[str, Any]:
    if trial.fault in GOES_ON:
        return hit_again_as_it_goes_on(lab, trial)
    rounds = 1 if trial.fault in ONCE else rounds_at(trial.stage)
    return interrupted_runs(lab, trial, lambda running: inflict(lab, trial.fault, running), rounds)


def rounds_at(stage: str) -> int:
    """Moments in a row: several where there are checkpoints to go on from."""
    return ROUNDS if stage in TRAIN else 1


def share(trial: Trial, dice: random.Random) -> float:
    """Where in the stage: anywhere; in further trials of a stage that trains, its second half, the first being imports."""
    return dice.uniform(0.5 if trial.stage in TRAIN and trial.moment else 0.02, 0.98)


def inflict(lab: Lab, fault: str, running: Running) -> float | None:
    """Do it, and return when (monotonic); None when there was nothing left to do it to."""
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
    if who == "server":
        lab.processes["server"].wait(timeout=60)
        time.sleep(DOWN_S)
        lab.processes["server"] = start_server(lab)
    return now if pids else None


def interrupted_runs(
    lab: Lab,
    trial: Trial,
    act: Callable[[Running], float | None],
    rounds: int,
    worker: bool = True,
    early_s: float = 0.0,
) -> dict[str, Any]:
    """One run after the other on one home, each interrupted by `act` at a random moment, and then one that is not."""
    for seed in range(TRIES):
        dice = random.Random(f"{trial.key} {seed}")
        outcome = interrupted_from(lab, trial, act, dice, rounds, worker, early_s)
        if outcome is not None:
            return outcome
    raise RuntimeError("the stage was always over before its moment: nothing was tried")


def interrupted_from(
    lab: Lab,
    trial: Trial,
    act: Callable[[Running], float | None],
    dice: random.Random,
    rounds: int,
    worker: bool,
    early_s: float,
) -> dict[str, Any] | None:
    """None if the stage was over before its first moment."""
    home = lab.home(trial.key, trial.stage)
    lost: list[str] = []
    done: list[dict[str, Any]] = []
    newest = 0
    while len(done) < rounds and not (done and done[-1]["by_itself"]):
        ensure(lab)
        try:
            running = Running(lab, home, trial.stage, worker)
        except StageWasDone:
            break
        moment = running.reach(share(trial, dice), early_s)
        at = act(running)
        # A run whose worker died with it is only ended by the automation, after 150 s: waited for once.
        first = trial.stage == STAGES[0] and trial.moment == 0 and not done
        waits = first or "worker and flow" not in trial.fault
        wrong, seen = running.follow(at or time.monotonic(), waits)
        lost += wrong + left_behind(home, trial.stage)
        kept = newest_checkpoint(home, trial.stage)
        if kept < newest and latest(home, trial.stage) is None:
            lost.append(f"the newest checkpoint was of step {newest} and is of step {kept}")
        newest = kept
        if at is None:
            break  # the stage was over earlier than in the uninterrupted run
        done.append({**moment, **seen, "newest_checkpoint": kept})
    return concluded(lab, home, trial, done, lost, newest) if done else None


def hit_again_as_it_goes_on(lab: Lab, trial: Trial) -> dict[str, Any]:
    """One run, whose stage is killed at random moments of three attempts in a row."""
    for seed in range(TRIES):
        outcome = hit_again_from(lab, trial, random.Random(f"{trial.key} {seed}"))
        if outcome is not None:
            return outcome
    raise RuntimeError("the stage was always over before its moment: nothing was tried")


def hit_again_from(lab: Lab, trial: Trial, dice: random.Random) -> dict[str, Any] | None:
    """None if the stage was over before its first moment."""
    home = lab.home(trial.key, trial.stage)
    ensure(lab)
    running = Running(lab, home, trial.stage, sets=(f"run.retries={ROUNDS}",))
    done: list[dict[str, Any]] = []
    times: list[float] = []
    rounds = rounds_at(trial.stage)
    while len(done) < rounds:
        moment = running.reach(share(trial, dice))
        at = inflict(lab, trial.fault, running)
        if at is None:
            break
        times.append(at)
        kept = newest_checkpoint(home, trial.stage)
        done.append({**moment, "ended_s": None, "gone_s": None, "by_itself": True, "newest_checkpoint": kept})
        if len(done) < rounds and not running.find_stage(60):
            break
    if not done:
        running.follow(time.monotonic())
        return None
    wrong, seen = running.follow(times[-1])
    for one, at in zip(done, times, strict=True):
        one |= running.heard(at)
    done[-1] |= seen
    newest = newest_checkpoint(home, trial.stage)
    return concluded(lab, home, trial, done, wrong + left_behind(home, trial.stage), newest)


def concluded(
    lab: Lab, home: Path, trial: Trial, done: list[dict[str, Any]], lost: list[str], newest: int
) -> dict[str, Any]:
    """Run once more unless the last run completed, and compare with the uninterrupted run."""
    by_itself = bool(done[-1]["by_itself"])
    # Then the next run only stores it.
    finished = any((home / "work").glob(f"{trial.stage}-*/finished.json"))
    if not by_itself:
        ended = lab.run(home, "--stop-after", trial.stage)
        lost += [f"the next run failed: {error_line(ended)}"] if ended.code else []
    result = compare(lab, home, trial.stage)
    step = result.get("resumed_from_step")
    made, base = latest(home, trial.stage), latest(lab.base, trial.stage)
    if made and base and not step and made.duration_s > 2:
        lab.slowness.append(made.duration_s / base.duration_s)
    if newest and not (by_itself or finished) and (step or 0) < newest:
        lost.append(f"a checkpoint of step {newest} was there and the next run went on from {step}")
    who = "the run itself went on" if by_itself else "the next run went on"
    return {
        "lost": sorted(set(lost)),
        "rounds": done,
        "noticed": done[0].get("noticed"),
        "went_on": f"{who}{f' from step {step}' if step else ''}",
        "by_itself": by_itself,
        "same_result": result,
    }


def left_behind(home: Path, stage: str) -> list[str]:
    held = [path.name for path in (home / "locks").glob("*.lock") if lock_holder(path)]
    return [f"lock held: {name}" for name in held] + losses(home, stage)


def newest_checkpoint(home: Path, stage: str) -> int:
    """Step of the newest complete checkpoint in the stage's work directory; 0 for none."""
    marks = (home / "work").glob(f"{stage}-*/checkpoints/*/complete.json")
    return max((int(mark.parent.name.rpartition("-")[2]) for mark in marks), default=0)


AREA = Area("Processes that die", trials, run, with_worker)
