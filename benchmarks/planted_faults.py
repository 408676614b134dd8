"""Real GRPO runs on the `tiny` profile, each with one planted fault: is it named, how soon, and what do the remedies make of it?

    python benchmarks/tiny_seeds.py --seeds 1 --home /tmp/tiny-seeds        # the SFT model
    python benchmarks/planted_faults.py --home /tmp/tiny-seeds --work /tmp/faults

Every run is the GRPO stage's own entry with `grpo.remedies: act`, 48 completions a step. `named_at` is the step at which the watchdog acted for
the first time, `onset` the step from which the fault shows (1 where it is planted in data, reward or settings). Held-out accuracy is
pass@1 at temperature 1, against the SFT model's on the same problems, with the paired 95 % interval of the difference. Each fault is
stored as it is done. Writes benchmarks/planted_faults.json.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from grpo_runs import ROOT, StageContext, inputs_of, load_config, right_counts, rows_of, run_grpo

from tasks.grpo import entry
from tasks.grpo.guards import OwnLearningRate

PROBLEMS, SAMPLES = 100, 8
COMMON = [
    "grpo.per_device_train_batch_size=48",
    "grpo.max_steps=24",
    "grpo.save_steps=2",
    "grpo.learning_rate=1e-4",
    "grpo.checkpoint_choice.enabled=false",
    "evaluation.batch_size=480",
]
OWN_REWARD = ["grpo.rewards.preset=null"]
REWARDS = '''
def never(completions, **kwargs):
    """Looks for tags that the contract does not have."""
    return [1.0 if "<answer>" in c[-1]["content"] else 0.0 for c in completions]

def short(completions, **kwargs):
    """Pays for brevity, whatever the answer."""
    return [1.0 - len(c[-1]["content"]) / 200 for c in completions]
'''
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Fault:
    """A planted fault: the verdicts that name it, settings, what it does to the training rows, and its first step (None: seen in the log)."""

    verdicts: tuple[str, ...]
    settings: tuple[str, ...] = ()
    rows: Callable[[Rows], Rows] | None = None
    onset: int | None = 1
    nan_at: int | None = None
    worked_only: bool = False


def too_hard(share: float) -> Callable[[Rows], Rows]:
    """Replace that share of the problems by sums of five numbers, which the SFT model never gets right."""

    def change(rows: Rows) -> Rows:
        chance, out = random.Random(0), []
        for row in rows:
            if chance.random() < share:
                terms = [chance.randint(11, 99) for _ in range(5)]
                row = {**row, "question": f"What is {' + '.join(map(str, terms))}?", "answer": str(sum(terms))}
            out.append(row)
        return out

    return change


FAULTS: dict[str, Fault] = {
    "reward never matches": Fault(
        ("extraction_failed",), (*OWN_REWARD, 'grpo.rewards.functions=[{path: "planted_rewards:never"}]')
    ),
    "all wrong": Fault(("all_wrong",), rows=too_hard(1.0)),
    "mostly dead": Fault(("dead_groups",), rows=too_hard(0.8)),
    "learning rate x 100": Fault(("kl_explosion",), ("grpo.learning_rate=5e-3",)),
    "8 tokens": Fault(("truncation_spiral",), ("grpo.max_completion_length=8",)),
    "short answers paid": Fault(
        ("length_collapse", "reward_hacking"),
        (
            *OWN_REWARD,
            'grpo.rewards.functions=[{path: "planted_rewards:short"}]',
            "grpo.learning_rate=3e-4",
            "grpo.max_steps=60",
        ),
        onset=None,
    ),
    "temperature 0.1": Fault(("entropy_collapse",), ("grpo.temperature=0.1",)),
    "NaN at step 10": Fault(("late_nan",), onset=10, nan_at=10),
    "all right": Fault(("all_correct",), worked_only=True),
    "healthy": Fault((), onset=None),
}


def plant_nan(at_step: int, flag: Path) -> None:
    """Have the next trainers put NaN into one gradient at one step, once."""
    import torch

    class Planted(OwnLearningRate):
        hook: Any = None

        def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            if state.global_step + 1 == at_step and not flag.exists():
                flag.touch()
                self.hook = next(model.parameters()).register_hook(lambda grad: grad * torch.nan)

        def on_step_end(self, *_: Any, **__: Any) -> None:
            if self.hook is not None:
                self.hook.remove()

    entry.OwnLearningRate = Planted  # type: ignore[misc]


def all_right(inputs: dict[str, Path], work: Path) -> tuple[dict[str, Path], Rows]:
    """An SFT model that saw 150 more steps of worked traces only, and the training problems it always gets right."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from tasks.sft.entry import run

    folder = work / "worked-sft"
    data = folder / "dataset"
    if not (folder / "out" / "model").exists():
        for made in (data, folder / "out", folder / "checkpoints"):
            made.mkdir(parents=True, exist_ok=True)
        traces = rows_of(inputs, "sft")
        longest = sorted(len(json.dumps(row)) for row in traces)[int(0.45 * len(traces))]
        pq.write_table(pa.Table.from_pylist([r for r in traces if len(json.dumps(r)) >= longest]), data / "sft.parquet")
        config = load_config("tiny", overrides=["sft.max_steps=150"])
        run(StageContext(config, {"model": inputs["sft"], "dataset": data}, folder, seed=1))
    worked = {"sft": folder / "out", "dataset": inputs["dataset"]}
    rows = rows_of(inputs, "train")[:160]
    counts = right_counts(worked["sft"] / "model", rows, COMMON, 16)
    return worked, [row for row, count in zip(rows, counts, strict=True) if count == 16]


def first_fall(rows: Rows) -> int:
    """First step at which three rows' mean share of right answers is below 80 % of the first three rows'."""
    right = [row["outcomes/right"] for row in rows if "outcomes/right" in row]
    return next((i + 1 for i in range(3, len(right)) if fmean(right[i - 2 : i + 1]) < 0.8 * fmean(right[:3])), 0)


def sft_counts(inputs: dict[str, Path], rows: Rows, path: Path) -> list[int]:
    """Right completions of the SFT model per problem, measured once."""
    path = path.with_suffix(".counts.json")
    if not path.exists():
        path.write_text(json.dumps(right_counts(inputs["sft"] / "model", rows, COMMON, SAMPLES)), encoding="utf-8")
    counts: list[int] = json.loads(path.read_text(encoding="utf-8"))
    return counts


def one(name: str, home: Path, work: Path) -> dict[str, Any]:
    """Run one fault and measure it."""
    fault, inputs, train = FAULTS[name], inputs_of(home / "seed-1"), None
    folder = work / name.replace(" ", "-")
    work.mkdir(parents=True, exist_ok=True)
    (work / "planted_rewards.py").write_text(REWARDS, encoding="utf-8")
    sys.path.insert(0, str(work))
    if fault.worked_only:
        inputs, train = all_right(inputs, work)
    elif fault.rows:
        train = fault.rows(rows_of(inputs, "train"))
    if fault.nan_at:
        flag = work / "nan-planted"
        flag.unlink(missing_ok=True)
        plant_nan(fault.nan_at, flag)
    began = time.monotonic()
    done = run_grpo(inputs, folder, [*COMMON, *fault.settings], train)
    entry.OwnLearningRate = OwnLearningRate  # type: ignore[misc]
    seconds = time.monotonic() - began
    logs = [*done["before"], done["rows"]]
    onset = fault.onset or (first_fall(logs[0]) if fault.verdicts else 0)
    named = done["steps"][0]["because"] if done["steps"] else done["error"]
    named_at = done["steps"][0]["at_step"] if done["steps"] else logs[0][-1]["step"] if named else None
    evaluated = rows_of(inputs, "eval")[:PROBLEMS]
    result = {
        "fault": name,
        "onset": onset,
        "named": named,
        "named_at": named_at,
        "rows_after_onset": named_at - onset if named_at is not None else None,
        "right_name": named in fault.verdicts if fault.verdicts else named is None,
        "remedies": [
            {k: s[k] for k in ("rung", "because", "at_step", "changes", "start", "resumed_from")}
            | {"set_aside": len(s["set_aside"])}
            for s in done["steps"]
        ],
        "ended": done["error"] or "trained to the end",
        "notes": done["notes"],
        "seconds": round(seconds, 1),
    }
    before = sft_counts(inputs, evaluated, work / ("worked" if fault.worked_only else "sft"))
    result["sft_pass_at_1"] = round(sum(before) / len(before) / SAMPLES, 4)
    if done["error"] is None:
        after = right_counts(done["model"], evaluated, COMMON, SAMPLES)
        gaps = [(b - a) / SAMPLES for a, b in zip(before, after, strict=True)]
        error = 1.96 * stdev(gaps) / math.sqrt(len(gaps))
        result["pass_at_1"] = round(sum(after) / len(after) / SAMPLES, 4)
        result["gain_95"] = [round(fmean(gaps) - error, 4), round(fmean(gaps) + error, 4)]
    return result


def healthy_seeds(home: Path) -> list[dict[str, Any]]:
    """The stored GRPO runs of the `tiny` profile, row by row: verdicts and notes that were raised on the way."""
    from tasks.diagnosis.doctor import diagnose_rows
    from tasks.diagnosis.readers import read_log
    from tasks.diagnosis.run_info import from_settings

    info, found = from_settings(load_config("tiny").grpo), []
    for path in sorted(home.glob("seed-*/store/artifacts/grpo/*/files/metrics.jsonl")):
        rows = read_log(path)
        seen = [diagnose_rows(rows[: end + 1], info) for end in range(len(rows))]
        raised = {d.verdict for d in seen if d.failed} | {note["name"] for d in seen for note in d.notes}
        found.append({"seed": path.parts[len(home.parts)], "rows": len(rows), "raised": sorted(raised)})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--only", choices=list(FAULTS))
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    results = []
    for name in FAULTS:
        path = arguments.work / f"{name.replace(' ', '-')}.json"
        if not path.exists() and arguments.only in (None, name):
            path.write_text(json.dumps(one(name, arguments.home, arguments.work), indent=1), encoding="utf-8")
        if path.exists():
            results.append(json.loads(path.read_text(encoding="utf-8")))
    if arguments.only is None:
        data = {
            "settings": COMMON,
            "problems": PROBLEMS,
            "samples": SAMPLES,
            "runs": results,
            "healthy_seeds": healthy_seeds(arguments.home),
        }
        (ROOT / "benchmarks" / "planted_faults.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    for run in results:
        print(
            f"{run['fault']:22} {run['named'] or '-'} at {run['named_at']} (onset {run['onset']}), "
            f"{[r['rung'] for r in run['remedies']]}, {run['ended']}, "
            f"{run['sft_pass_at_1']} -> {run.get('pass_at_1')} {run.get('gain_95', '')}, {run['seconds']} s"
        )


if __name__ == "__main__":
    main()
