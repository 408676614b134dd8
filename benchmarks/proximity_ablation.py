"""Does paying wrong answers for being near help? GRPO with and without `rewards.proximity`, from the same SFT models.

    python benchmarks/proximity_ablation.py --home /tmp/tiny-seeds --seeds 1 2 3

Uses the homes that benchmarks/tiny_seeds.py made (SFT and everything before it is reused). Writes
benchmarks/proximity_ablation.json and prints a table.
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
from tasks.evaluate.scores import compare  # noqa: E402
from tasks.report.run_files import read_jsonl  # noqa: E402

PROXIMITY = 0.3


def grpo_with(seed: int, home: Path, proximity: float) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Scores and items of the GRPO model of one seed at one proximity."""
    folder = home / f"seed-{seed}"
    command = [sys.executable, "-m", "flows.cli", "run", "--profile", "tiny", "--stop-after", "evaluate_grpo"]
    for text in (f"run.home={folder}", f"seed={seed}", f"data.seed={seed}", f"grpo.rewards.proximity={proximity}"):
        command += ["--set", text]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    store = open_store(str(folder / "store"))
    record = max((store.read_record(name) or {} for name in store.list_records("runs")), key=lambda r: r["started_at"])
    (fingerprint,) = [item["fingerprint"] for item in record["stages"] if item["stage"] == "evaluate_grpo"]
    manifest = store.lookup("evaluate_grpo", fingerprint)
    assert manifest is not None
    return dict(manifest.metrics), read_jsonl(store.local_folder(manifest) / "items.jsonl")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    arguments = parser.parse_args()
    rows = []
    for seed in arguments.seeds:
        without, items_without = grpo_with(seed, arguments.home, 0.0)
        with_it, items_with = grpo_with(seed, arguments.home, PROXIMITY)
        paired = compare(items_without, items_with)
        rows.append(
            {"seed": seed, "proximity": PROXIMITY, "without": without, "with": with_it, "greedy_paired": paired}
        )
        (ROOT / "benchmarks" / "proximity_ablation.json").write_text(
            json.dumps(rows, indent=1) + "\n", encoding="utf-8"
        )
        a, b = without["pass_at_1"], with_it["pass_at_1"]
        print(
            f"seed {seed}: pass@1 without {a['rate']:.3f} [{a['low']:.3f}, {a['high']:.3f}], with {PROXIMITY} {b['rate']:.3f} "
            f"[{b['low']:.3f}, {b['high']:.3f}], n = {a['n']} x {a['samples']}; greedy {without['strict']['rate']:.3f} / "
            f"{with_it['strict']['rate']:.3f}, McNemar p = {paired['p']:.2g}",
            flush=True,
        )


if __name__ == "__main__":
    main()
