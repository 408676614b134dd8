"""The naive recipe against gate + pass-rate band + refill on one GPU: what GRPO gains over its own SFT model, for the same rollouts.

    python benchmarks/gpu_gain.py run --arm naive --seed 1 --home /tmp/gain     # two or three arms, three seeds; five to seven minutes each
    python benchmarks/gpu_gain.py collect --home /tmp/gain                      # writes benchmarks/gpu_gain.json

Model SmolLM2-135M, problems "What is a + b?" on six levels: two or three terms up to 99, 999 or 9,999. Arms:

- `naive`: three epochs of SFT on traces of all levels, then GRPO on the level of which SFT solves closest to half (three terms to 9,999: 65 % of
  99 in a first run, the others 84 % and more), every group kept, no gate.
- `selected`: the same SFT, then GRPO on prompts of all levels that SFT sometimes solves, with dead groups refilled.
- `ours`: as `selected`, after one epoch of SFT: as little as the gate lets pass (it asks for more where that is not enough).

Same model, pool of problems, reward, batch and learning rate. A rollout is a sampled completion; those of the gate, of the pass rates and of
refills count. `naive` has 120 x 256 = 30,720; the others 64 x 256 = 16,384, 6,144 for pass rates, 512 for each look of the gate and at most
16,384 for refills, so that they stay below it while fewer than 46 % of first draws are dead (27 % were in a first run, docs/gpu.md);
`collect` says what it was. Held out: 1,000 problems of all levels (mixed), 1,000 of naive's
level; greedy, strict. Runs may share a home, one after the other.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from artifacts.manifest import Manifest  # noqa: E402
from artifacts.store import Store, open_store  # noqa: E402
from pipeline_config.evaluation import HELD_OUT  # noqa: E402
from tasks.promote.compare import answers_of, compare  # noqa: E402

RESULT = ROOT / "benchmarks" / "gpu_gain.json"
SETS = {HELD_OUT: "mixed", "level": "level"}


def sums(*levels: tuple[int, int]) -> str:
    """Generators of sums with so many terms up to so much, as YAML."""
    one = "{{kind: generated, problem: sum, style: plain, trace: short, min_terms: {0}, max_terms: {0}, max_operand: {1}}}"
    return "[" + ", ".join(one.format(terms, operand) for terms, operand in levels) + "]"


LEVEL = (3, 9999)
LEVELS = tuple((terms, operand) for operand in (99, 999, 9999) for terms in (2, 3))
COMMON = (
    f"data.sft={sums(*LEVELS)}",
    f"data.eval={sums(*LEVELS)}",
    "data.sft_rows=2000",
    "data.train_rows=6000",
    "data.eval_rows=1000",
    "evaluation.problems=1000",
    f"evaluation.sets=[{{name: level, source: {sums(LEVEL)[1:-1]}, problems: 1000}}]",
    "evaluation.baseline=false",
    "grpo.per_device_train_batch_size=64",
    "grpo.gradient_accumulation_steps=4",
    "grpo.learning_rate=1e-5",
    "grpo.warmup_steps=10",
    "grpo.rewards.format_weight=0.1",
    "grpo.watchdog=warn",
    "grpo.checkpoint_choice.enabled=false",
)
CHOSEN = (
    f"data.train={sums(*LEVELS)}",
    "pass_rates.enabled=on",
    "pass_rates.max_prompts=1536",
    "grpo.max_refills=1",
    "grpo.max_steps=64",
)
ARMS = {
    "naive": (
        f"data.train={sums(LEVEL)}",
        "sft.num_train_epochs=3",
        "gate.enabled=false",
        "pass_rates.enabled=off",
        "grpo.max_refills=0",
        "grpo.max_steps=120",
    ),
    "selected": ("sft.num_train_epochs=3", *CHOSEN),
    "ours": ("sft.num_train_epochs=1", *CHOSEN),
}


def command(arm: str, seed: int, home: Path, more: list[str]) -> list[str]:
    """The command line of one run."""
    sets = [*COMMON, *ARMS[arm], f"seed={seed}", f"run.home={home}", *more]
    chain = [sys.executable, "-m", "flows.cli", "run", "-p", "smollm2-135m-gpu", "--stop-after", "evaluate_grpo"]
    return [*chain, *(part for text in sets for part in ("--set", text))]


def arm_of(config: dict[str, Any]) -> str:
    """Which arm a run's configuration is."""
    if not config["gate"]["enabled"]:
        return "naive"
    return "ours" if config["sft"]["num_train_epochs"] == 1 else "selected"


def measured(store: Store, record: dict[str, Any]) -> dict[str, Any]:
    """What one run says: accuracy of both models on both sets, paired, and every rollout that it cost."""
    made: dict[str, list[Manifest]] = {}
    for entry in record["stages"]:
        manifest = store.lookup(entry["stage"], entry["fingerprint"])
        if manifest is not None:
            made.setdefault(entry["stage"], []).append(manifest)
    stages = {name: of[-1] for name, of in made.items()}
    found: dict[str, Any] = {}
    for name, label in SETS.items():
        before, after = (answers_of(store, stages[stage], name) for stage in ("evaluate_sft", "evaluate_grpo"))
        if before is None or after is None:
            raise SystemExit(f"{record['run_id']}: the set {name} was not evaluated")
        found[label] = {"sft": before.accuracy, "grpo": after.accuracy, **asdict(compare(before, after, 0.05))}
    metrics: dict[str, list[dict[str, Any]]] = {name: [dict(one.metrics) for one in of] for name, of in made.items()}
    grpo, rates = metrics["grpo"][-1], metrics.get("pass_rates", [{}])[-1]
    groups = grpo["groups"]
    rollouts = {
        "training": grpo["completions"],
        "refills": groups["extra_rollouts"],
        # Every look: the gate may have asked for more SFT, and looked again.
        "gate": sum(gate["completions"] for gate in metrics.get("format_gate", [])),
        "pass_rates": rates["prompts"] * rates["samples"] if rates else 0,
    }
    return {
        **found,
        "rollouts": {**rollouts, "all": sum(rollouts.values())},
        "live_groups": groups["groups_live"] / groups["groups_used"],
        "sft_steps": sum(sft["steps"] for sft in metrics["sft"]),
        "grpo_steps": grpo["steps"],
        "resumed_from_step": stages["grpo"].resumed_from_step,
        "stage_seconds": {name: round(sum(manifest.duration_s for manifest in of), 1) for name, of in made.items()},
    }


def collect(homes: list[Path]) -> dict[str, Any]:
    """All completed runs, by arm and seed, with the mean gain of each arm; the newest of each."""
    runs: dict[str, dict[str, Any]] = {}
    for home in homes:
        store = open_store(str(home / "store"))
        for path in sorted(store.list_records("runs/")):
            record = store.read_record(path)
            if record and record["status"] == "completed":
                arm, seed = arm_of(record["config"]), str(record["config"]["seed"])
                runs.setdefault(arm, {})[seed] = measured(store, record)
    mean = {
        arm: {label: sum(run[label]["gain"] for run in of.values()) / len(of) for label in SETS.values()}
        for arm, of in runs.items()
    }
    rollouts = {arm: sum(run["rollouts"]["all"] for run in of.values()) / len(of) for arm, of in runs.items()}
    return {"settings": {"common": COMMON, **ARMS}, "mean_gain": mean, "mean_rollouts": rollouts, "runs": runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "collect"))
    parser.add_argument("--arm", choices=sorted(ARMS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--home", type=Path, nargs="+", required=True, help="several are for collect")
    parser.add_argument("--set", action="append", default=[], dest="more", help="a further setting, for trying it out")
    parser.add_argument("--result", type=Path, default=RESULT)
    arguments = parser.parse_args()
    if arguments.what == "run":
        sys.exit(subprocess.call(command(arguments.arm, arguments.seed, arguments.home[0], arguments.more), cwd=ROOT))
    found = collect(arguments.home)
    arguments.result.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({name: found[name] for name in ("mean_gain", "mean_rollouts")}, indent=1))


if __name__ == "__main__":
    main()
