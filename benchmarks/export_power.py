"""How often the export's accuracy test releases, warns and refuses, by the file's true loss and the number of problems.

    python benchmarks/export_power.py            writes benchmarks/export_power.json

Simulated pairs: a problem is lost with probability `loss + noise` and gained with probability `noise`; noise is what near
ties cost either way (2 % of problems here). Default settings: alpha 0.05, margin 0.05. 4,000 files per cell.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from functools import cache
from pathlib import Path

from pipeline_config.export import ExportConfig
from tasks.export.proof import check_accuracy

FILES, NOISE = 4000, 0.02
PROBLEMS = (64, 100, 200, 400, 1319)
LOSSES = (0.0, 0.02, 0.05, 0.10, 0.20)
OUTCOME = {"ok": "released", "warn": "warned", "fail": "refused"}


@cache
def outcome(n: int, lost: int, gained: int, alpha: float, margin: float) -> str:
    """The test's own verdict on such counts."""
    rest = n - lost - gained
    model = [True] * (rest + lost) + [False] * gained
    file = [True] * rest + [False] * lost + [True] * gained
    return OUTCOME[check_accuracy(model, file, alpha, margin).status]


def main() -> None:
    """Simulate every cell."""
    settings, rng, rows = ExportConfig(), random.Random(0), []
    for n in PROBLEMS:
        for loss in LOSSES:
            counts: Counter[str] = Counter()
            for _ in range(FILES):
                draws = [rng.random() for _ in range(n)]
                lost = sum(draw < loss + NOISE for draw in draws)
                gained = sum(loss + NOISE <= draw < loss + 2 * NOISE for draw in draws)
                counts[outcome(n, lost, gained, settings.alpha, settings.margin)] += 1
            shares = {name: counts[name] / FILES for name in OUTCOME.values()}
            rows.append({"n": n, "true_loss": loss, **shares})
            print(f"n={n:5d} loss={loss:.0%}  " + "  ".join(f"{name} {share:.1%}" for name, share in shares.items()))
    data = {"alpha": settings.alpha, "margin": settings.margin, "noise": NOISE, "files_per_cell": FILES, "rows": rows}
    Path(__file__).with_suffix(".json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
