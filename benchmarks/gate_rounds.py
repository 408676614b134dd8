"""Too little SFT on the `tiny` profile: what the gate says after each round, and what measuring pass rates costs and foresees.

    python benchmarks/gate_rounds.py --home /tmp/gate-rounds

Runs the chain up to the selection with SFT cut to a few steps, so that the gate has to ask for more. Writes benchmarks/gate_rounds.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from artifacts.store import open_store  # noqa: E402

SHOWN = (
    "prompts",
    "completions",
    "format_rate",
    "format_rate_low",
    "truncation_rate",
    "pass_at_1",
    "pass_at_1_low",
    "pass_at_1_high",
    "dead_groups",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--sft-steps", type=int, default=40)
    parser.add_argument("--round-steps", type=int, default=150)
    parser.add_argument("--prompts", type=int, default=512, help="training prompts whose pass rate is measured")
    arguments = parser.parse_args()
    sets = [
        f"run.home={arguments.home}",
        f"sft.max_steps={arguments.sft_steps}",
        f"gate.sft_round_steps={arguments.round_steps}",
        "pass_rates.enabled=on",
        f"pass_rates.max_prompts={arguments.prompts}",
    ]
    command = [sys.executable, "-m", "flows.cli", "run", "--profile", "tiny", "--stop-after", "selection"]
    subprocess.run([*command, *(text for item in sets for text in ("--set", item))], cwd=ROOT, check=True)
    store = open_store(str(arguments.home / "store"))
    record: dict[str, Any] = store.read_record(sorted(store.list_records("runs"))[-1]) or {}
    looks = []
    for look in record["gate"]:
        manifest = store.lookup("format_gate", look["fingerprint"])
        assert manifest is not None
        looks.append({**look, **{key: manifest.metrics[key] for key in SHOWN}, "kinds": manifest.metrics["kinds"]})
    rates, selection = (store.find(f"{stage}:latest") for stage in ("pass_rates", "selection"))
    result = {
        "command": f"python benchmarks/gate_rounds.py --sft-steps {arguments.sft_steps} --round-steps {arguments.round_steps} "
        f"--prompts {arguments.prompts}",
        "looks": looks,
        "seconds": [[item["stage"], item["made_in_s"]] for item in record["stages"]],
        "pass_rates": {**rates.metrics, "seconds": round(rates.duration_s, 1)},
        "selection": selection.metrics,
    }
    (ROOT / "benchmarks" / "gate_rounds.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for look in looks:
        print(f"after {look['sft_rounds']} rounds: {look['verdict']}: {look['evidence']}")


if __name__ == "__main__":
    main()
