"""Carry out the trials that are still missing, and write docs/reliability.md from all that are known.

    python -m benchmarks.reliability --kinds 4-damage 6-hostile --budget-minutes 8
    python -m benchmarks.reliability --kinds 4-damage --stages grpo
    python -m benchmarks.reliability --kinds 1-kills 2-cancel --moments 10 --lanes 3
    python -m benchmarks.reliability --render

Results accumulate in benchmarks/reliability.json. Some trials mount a small tmpfs and need root.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

from benchmarks.reliability.areas import AREAS
from benchmarks.reliability.lab import Lab
from benchmarks.reliability.prefect_server import PORT
from benchmarks.reliability.render import write_page
from benchmarks.reliability.results import FILE, Results


def main() -> None:
    # As Ctrl-C: servers, workers and mounts are cleared away.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=sorted(AREAS), default=sorted(AREAS), metavar="KIND")
    parser.add_argument("--only", default="", help="only trials whose key contains this text")
    parser.add_argument(
        "--stages", nargs="+", default=[], help="only trials of these stages alone (3-storage, 4-damage); default: all"
    )
    parser.add_argument("--moments", type=int, default=10, help="random moments per fault and stage")
    parser.add_argument("--budget-minutes", type=float, default=float("inf"), help="start no trial after this long")
    parser.add_argument("--home", type=Path, default=Path(tempfile.gettempdir()) / "grpo-reliability")
    parser.add_argument("--results", type=Path, default=FILE)
    parser.add_argument("--again", action="store_true", help="repeat trials that are known already")
    parser.add_argument("--keep", action="store_true", help="keep the trials' folders")
    parser.add_argument(
        "--lanes",
        type=int,
        default=1,
        help="trials side by side, each lane with homes, a server and a worker of its own",
    )
    parser.add_argument("--lane", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--render", action="store_true", help="only write the page")
    arguments = parser.parse_args()
    if arguments.lanes > 1 and arguments.lane is None:
        in_lanes(arguments)
    elif not arguments.render:
        run_missing(arguments, Results(arguments.results))
    if arguments.lane is None:
        print(write_page(Results(arguments.results)))


def in_lanes(arguments: argparse.Namespace) -> None:
    """This program several times at once. What waits in one lane costs the others nothing; what computes slows them down."""
    lab = prepared(arguments.home.resolve())
    lanes = []
    try:
        for number in range(arguments.lanes):
            home = lab.folder / f"lane-{number}"
            if not (home / "base.done").exists():
                home.mkdir(exist_ok=True)
                subprocess.run(["cp", "-al", str(lab.base), str(lab.folder / "base.done"), str(home)], check=True)
            command = [sys.executable, "-m", "benchmarks.reliability", *sys.argv[1:], "--lane", str(number)]
            env = {**os.environ, "RELIABILITY_PORT": str(PORT + number)}
            lanes.append(subprocess.Popen([*command, "--home", str(home)], env=env))
        for lane in lanes:
            lane.wait()
    finally:
        for lane in lanes:
            lane.terminate()
            lane.wait()


def prepared(home: Path) -> Lab:
    lab = Lab(home)
    lab.folder.mkdir(parents=True, exist_ok=True)
    lab.prepare()
    return lab


def run_missing(arguments: argparse.Namespace, results: Results) -> None:
    deadline = time.monotonic() + arguments.budget_minutes * 60
    lab = prepared(arguments.home.resolve())
    for kind in arguments.kinds:
        area = AREAS[kind]
        # All stages at one moment before the next moment: a small budget then covers all of them.
        missing = [
            trial
            for number, trial in enumerate(sorted(area.trials(arguments.moments), key=lambda trial: trial.moment))
            if (arguments.lane is None or number % arguments.lanes == arguments.lane)
            and (arguments.again or not results.done(trial))
            and arguments.only in trial.key
            and (not arguments.stages or trial.stage in arguments.stages)
        ]
        if not missing:
            print(f"{kind}: no trial is missing that fits what was asked for", flush=True)
        if not missing or time.monotonic() > deadline:
            continue
        with area.ready(lab):
            for trial in missing:
                if time.monotonic() > deadline:
                    break
                began = time.monotonic()
                try:
                    outcome = area.run(lab, trial)
                except Exception as error:
                    traceback.print_exc()
                    outcome = {"error": f"{type(error).__name__}: {error}"[:2000]}
                seconds = time.monotonic() - began
                results.add(trial, {"trial_s": round(seconds, 1), **outcome})
                lost = outcome.get("lost")
                print(
                    f"{trial.key}: {seconds:.0f} s, lost {lost}, {outcome.get('error') or outcome}"[:1500], flush=True
                )
                if not arguments.keep and not lost and "error" not in outcome:
                    shutil.rmtree(lab.folder / "trials", ignore_errors=True)


if __name__ == "__main__":
    main()
