"""Does GRPO learn on the `tiny` profile? The whole chain on several seeds, SFT against GRPO on held-out problems.

    python benchmarks/tiny_seeds.py --seeds 1 2 3 4 5 --home /tmp/tiny-seeds

Writes benchmarks/tiny_seeds.json and prints a table. Each seed changes initialisation, data, order and sampling.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from artifacts.store import open_store  # noqa: E402


def run_seed(seed: int, home: Path) -> dict[str, Any]:
    """Run the chain for one seed in a home of its own and read its scores."""
    folder = home / f"seed-{seed}"
    command = [sys.executable, "-m", "flows.cli", "run", "--profile", "tiny", "--set", f"run.home={folder}"]
    command += ["--set", f"seed={seed}", "--set", f"data.seed={seed}"]
    began = time.monotonic()
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    seconds = time.monotonic() - began
    store = open_store(str(folder / "store"))
    scores = {name: store.find(f"evaluate_{name}:latest").metrics for name in ("sft", "grpo")}
    gate = store.find("format_gate:latest").metrics
    return {
        "seed": seed,
        "seconds": round(seconds, 1),
        "stage_seconds": {m.stage: round(m.duration_s, 1) for m in store.list()},
        "gate": {key: gate[key] for key in ("format_rate", "format_rate_low", "pass_at_1", "dead_groups")},
        **{f"{name}_{key}": scores[name][key] for name in scores for key in ("strict", "pass_at_1")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--home", type=Path, required=True)
    arguments = parser.parse_args()
    rows = []
    for seed in arguments.seeds:
        rows.append(run_seed(seed, arguments.home))
        (ROOT / "benchmarks" / "tiny_seeds.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        before, after = rows[-1]["sft_pass_at_1"], rows[-1]["grpo_pass_at_1"]
        greedy, greedy_after = rows[-1]["sft_strict"], rows[-1]["grpo_strict"]
        print(
            f"seed {seed}: pass@1 {before['rate']:.3f} [{before['low']:.3f}, {before['high']:.3f}] -> {after['rate']:.3f} "
            f"[{after['low']:.3f}, {after['high']:.3f}], greedy {greedy['rate']:.3f} [{greedy['low']:.3f}, {greedy['high']:.3f}]"
            f" -> {greedy_after['rate']:.3f}, n = {before['n']} x {before['samples']}, {rows[-1]['seconds']:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
