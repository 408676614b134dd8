"""Dynamic sampling against none, at equal rollouts, on data of which half can teach nothing.

    python benchmarks/tiny_seeds.py --seeds 1 2 3 4 5 --home /tmp/tiny-seeds        # the SFT models
    python benchmarks/dynamic_sampling.py --home /tmp/tiny-seeds --work /tmp/dynamic

Every second training problem of the `tiny` profile is replaced by a sum of five numbers, which the SFT model never gets right. Both arms
start from the same SFT model with the same settings, but for `grpo.max_refills`, and stop at the first step after ROLLOUTS sampled
completions, refills included. Held-out accuracy is pass@1 at temperature 1 over the evaluation problems. Each (seed, arm) is
stored as it is done, so that the script can be stopped and started again. Writes benchmarks/dynamic_sampling.json.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from grpo_runs import ROOT, inputs_of, right_counts, rows_of, run_grpo
from transformers import TrainerControl, TrainerState, TrainingArguments

from tasks.grpo import entry
from tasks.grpo.ledger import read_groups
from tasks.training.callback import StageCallback

ROLLOUTS = 768
ARMS = {"without": 0, "with": 2}
PROBLEMS, SAMPLES = 100, 8
SETTINGS = [
    "grpo.per_device_train_batch_size=48",
    "grpo.max_steps=16",
    "grpo.save_steps=100",
    "grpo.learning_rate=1e-4",
    "grpo.watchdog=off",
    "grpo.checkpoint_choice.enabled=false",
    "evaluation.batch_size=400",
]
T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""Student's t, two-sided 95 %, by number of seeds."""


class UntilBudget(StageCallback):
    """Ends training once ROLLOUTS completions were sampled."""

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        super().on_step_end(args, state, control)
        if sum(len(row["rewards"]) for row in read_groups(self.ctx.work_dir / "groups.jsonl")) >= ROLLOUTS:
            control.should_training_stop = True
        return control


def half_dead(rows: list[dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    """Every second problem becomes a sum of five numbers from 11 to 99."""
    chance, out = random.Random(seed), []
    for at, row in enumerate(rows):
        if at % 2:
            terms = [chance.randint(11, 99) for _ in range(5)]
            row = {**row, "question": f"What is {' + '.join(map(str, terms))}?", "answer": str(sum(terms))}
        out.append(row)
    return out


def one(home: Path, work: Path, seed: int, arm: str) -> dict[str, Any]:
    """Train one arm on one seed and measure it."""
    inputs = inputs_of(home / f"seed-{seed}")
    evaluated = rows_of(inputs, "eval")[:PROBLEMS]
    if arm == "sft":
        return {"right": right_counts(inputs["sft"] / "model", evaluated, SETTINGS, SAMPLES)}
    entry.StageCallback = UntilBudget  # type: ignore[misc]
    began = time.monotonic()
    train = half_dead(rows_of(inputs, "train"), seed)
    done = run_grpo(inputs, work / f"{seed}-{arm}", [*SETTINGS, f"grpo.max_refills={ARMS[arm]}"], train, seed=seed)
    assert done["error"] is None, done["message"]
    groups = done["metrics"]["groups"]
    return {
        "right": right_counts(done["model"], evaluated, SETTINGS, SAMPLES),
        "steps": done["metrics"]["steps"],
        "rollouts": 8 * groups["groups_tried"],
        "extra_rollouts": groups["extra_rollouts"],
        "groups": groups,
        "live_groups_per_step": groups["groups_live"] / done["metrics"]["steps"],
        "seconds": round(time.monotonic() - began, 1),
    }


def summary(parts: dict[str, dict[str, Any]], seeds: list[int]) -> dict[str, Any]:
    """Accuracies by seed and arm, and the mean difference over seeds with its 95 % t interval."""
    rows = []
    for seed in seeds:
        found = {arm: parts[f"{seed}-{arm}"] for arm in ("sft", *ARMS)}
        rate = {arm: sum(part["right"]) / (SAMPLES * PROBLEMS) for arm, part in found.items()}
        gaps = [(b - a) / SAMPLES for a, b in zip(found["without"]["right"], found["with"]["right"], strict=True)]
        error = 1.96 * stdev(gaps) / math.sqrt(len(gaps))
        rows.append(
            {
                "seed": seed,
                **{f"{arm}_pass_at_1": round(value, 4) for arm, value in rate.items()},
                "difference": round(fmean(gaps), 4),
                "difference_95": [round(fmean(gaps) - error, 4), round(fmean(gaps) + error, 4)],
                **{
                    f"{arm}_{key}": found[arm][key]
                    for arm in ARMS
                    for key in ("steps", "rollouts", "extra_rollouts", "live_groups_per_step", "seconds")
                },
            }
        )
    differences = [row["difference"] for row in rows]
    mean = fmean(differences)
    half = T_95[len(seeds)] * stdev(differences) / math.sqrt(len(seeds)) if len(seeds) > 1 else math.nan
    return {
        "settings": {
            "overrides": SETTINGS,
            "rollouts": ROLLOUTS,
            "arms": ARMS,
            "problems": PROBLEMS,
            "samples": SAMPLES,
        },
        "seeds": rows,
        "gain_without": round(fmean(row["without_pass_at_1"] - row["sft_pass_at_1"] for row in rows), 4),
        "gain_with": round(fmean(row["with_pass_at_1"] - row["sft_pass_at_1"] for row in rows), 4),
        "mean_difference": round(mean, 4),
        "mean_difference_95": [round(mean - half, 4), round(mean + half, 4)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--only", help="one part, such as 1-with; then nothing is summed up")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    parts: dict[str, dict[str, Any]] = {}
    for seed in arguments.seeds:
        for arm in ("sft", *ARMS):
            name = f"{seed}-{arm}"
            path = arguments.work / f"{name}.json"
            if not path.exists() and arguments.only in (None, name):
                path.write_text(json.dumps(one(arguments.home, arguments.work, seed, arm)), encoding="utf-8")
            if path.exists():
                parts[name] = json.loads(path.read_text(encoding="utf-8"))
    if arguments.only is None:
        result = summary(parts, arguments.seeds)
        (ROOT / "benchmarks" / "dynamic_sampling.json").write_text(
            json.dumps(result, indent=1) + "\n", encoding="utf-8"
        )
        print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
