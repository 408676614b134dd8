"""Carry out the trials that are still missing, and write docs/reliability.md from all that are known.

    python -m benchmarks.reliability --kinds 4-damage 6-hostile --budget-minutes 8
    python -m benchmarks.reliability --kinds 1-kills --stages sft grpo --moments 10
    python -m benchmarks.reliability --render

Results accumulate in benchmarks/reliability.json. Some trials mount a small tmpfs and need root.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
import traceback
from pathlib import Path

from benchmarks.reliability.areas import AREAS
from benchmarks.reliability.lab import Lab
from benchmarks.reliability.render import write_page
from benchmarks.reliability.results import FILE, Results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=sorted(AREAS), default=sorted(AREAS), metavar="KIND")
    parser.add_argument("--only", default="", help="only trials whose key contains this text")
    parser.add_argument("--stages", nargs="+", default=[], help="only these stages; default: all")
    parser.add_argument("--moments", type=int, default=10, help="random moments per fault and stage")
    parser.add_argument("--budget-minutes", type=float, default=float("inf"), help="start no trial after this long")
    parser.add_argument("--home", type=Path, default=Path(tempfile.gettempdir()) / "grpo-reliability")
    parser.add_argument("--results", type=Path, default=FILE)
    parser.add_argument("--again", action="store_true", help="repeat trials that are known already")
    parser.add_argument("--keep", action="store_true", help="keep the trials' folders")
    parser.add_argument("--render", action="store_true", help="only write the page")
    arguments = parser.parse_args()
    results = Results(arguments.results)
    if not arguments.render:
        run_missing(arguments, results)
    print(write_page(results))


def run_missing(arguments: argparse.Namespace, results: Results) -> None:
    deadline = time.monotonic() + arguments.budget_minutes * 60
    lab = Lab(arguments.home.resolve())
    lab.folder.mkdir(parents=True, exist_ok=True)
    lab.prepare()
    for kind in arguments.kinds:
        area = AREAS[kind]
        # All stages at one moment before the next moment: a small budget then covers all of them.
        missing = [
            trial
            for trial in sorted(area.trials(arguments.moments), key=lambda trial: trial.moment)
            if (arguments.again or not results.done(trial))
            and arguments.only in trial.key
            and (not arguments.stages or trial.stage in arguments.stages)
        ]
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
