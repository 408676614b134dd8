"""How often the comparison of two models errs, and which gains it sees: simulated pairs with correlated outcomes.

    python benchmarks/power.py            # about eight minutes on one core; writes benchmarks/power.json

The model of two models: problem i has a difficulty u_i that both share, and each model a part of its own,
    model A answers i rightly when  a + sqrt(r) u_i + sqrt(1 - r) e_Ai > 0,   u, e standard normal, independent,
so that A's accuracy is Phi(a) and r is the (tetrachoric) correlation of the two models' outcomes: 0 for two strangers, 0.5 to
0.9 for two checkpoints of one run. B is the same with its own e and, for a true gain, a larger a. For sampled completions
the part of its own is split: a share t is fixed per problem and model, the rest is drawn anew for each sample.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tasks.evaluate.scores import ALPHA, compare, rate, verdict  # noqa: E402
from tasks.grpo.choice import Candidate, decide  # noqa: E402
from tasks.statistics import (  # noqa: E402
    Z_95,
    detectable_gain,
    mcnemar_exact,
    mean_interval,
    paired_bootstrap,
    paired_loss_interval,
    sign_flip,
    wilson,
)

NORMAL = NormalDist()
GSM8K = 1319
Array = Any


def greedy_pairs(pairs: int, n: int, before: float, after: float, r: float, seed: int) -> tuple[Array, Array]:
    """Right or wrong of two models, two boolean arrays of shape (pairs, n)."""
    generator = np.random.default_rng(seed)
    shared = np.sqrt(r) * generator.standard_normal((pairs, n))

    def outcomes(accuracy: float) -> Array:
        return NORMAL.inv_cdf(accuracy) + shared + np.sqrt(1 - r) * generator.standard_normal((pairs, n)) > 0

    return outcomes(before), outcomes(after)


def sampled_pairs(
    pairs: int, n: int, k: int, before: float, after: float, r: float, t: float, seed: int
) -> tuple[Array, Array]:
    """Right samples of k, two integer arrays of shape (pairs, n); r and t as in the text above, r + t < 1."""
    generator = np.random.default_rng(seed)
    shared = np.sqrt(r) * generator.standard_normal((pairs, n))

    def hits(accuracy: float) -> Array:
        fixed = NORMAL.inv_cdf(accuracy) + shared + np.sqrt(t) * generator.standard_normal((pairs, n))
        own = generator.standard_normal((k, pairs, n), dtype=np.float32)
        return (fixed + np.sqrt(1 - r - t) * own > 0).sum(0)

    return hits(before), hits(after)


def called(verdicts: Sequence[str]) -> dict[str, Any]:
    """Counts of each verdict, and the rate of "different" with its Wilson interval."""
    counts = {name: verdicts.count(name) for name in ("better", "worse", "no_difference")}
    return {**counts, "different": rate(counts["better"] + counts["worse"], len(verdicts))}


def by_counts(first: Array, second: Array) -> list[str]:
    """The verdict of McNemar's exact test for every pair."""
    gained, lost = (~first & second).sum(1), (first & ~second).sum(1)
    known: dict[tuple[int, int], str] = {}
    return [
        known.setdefault((g, b), verdict(mcnemar_exact(g, b), g - b))
        for g, b in zip(gained.tolist(), lost.tolist(), strict=True)
    ]


def through_compare(first: Array, second: Array) -> list[str]:
    """The verdict that the report shows: `tasks.evaluate.scores.compare` on items."""

    def items(row: Array) -> list[dict[str, Any]]:
        return [{"id": i, "right": right, "lenient": right} for i, right in enumerate(row.tolist())]

    return [compare(items(a), items(b))["verdict"] for a, b in zip(first, second, strict=True)]


def acceptance(pairs: int) -> dict[str, Any]:
    """The headline: 1,000 pairs that do not differ, and 1,000 with a true gain of 5 points, at n = 1,319."""
    found: dict[str, Any] = {}
    for r in (0.0, 0.5, 0.8):
        same = greedy_pairs(pairs, GSM8K, 0.567, 0.567, r, seed=1)
        gain = greedy_pairs(pairs, GSM8K, 0.567, 0.617, r, seed=2)
        differing = float((gain[0] != gain[1]).mean())
        found[f"correlation {r}"] = {
            "no difference": called(through_compare(*same)),
            "gain of 5 points": called(through_compare(*gain)),
            "share of problems that differ": round(differing, 4),
            "detectable with 80 % power": round(detectable_gain(GSM8K, differing), 4),
        }
    return found


def error_rates(pairs: int) -> list[dict[str, Any]]:
    """McNemar's exact test where nothing differs, over sizes, accuracies and correlations."""
    rows = []
    for n in (48, 200, 400, GSM8K):
        for accuracy in (0.1, 0.567, 0.9):
            for r in (0.0, 0.5, 0.8, 0.95):
                verdicts = by_counts(*greedy_pairs(pairs, n, accuracy, accuracy, r, seed=3))
                rows.append({"n": n, "accuracy": accuracy, "correlation": r, **called(verdicts)["different"]})
    return rows


def power(pairs: int) -> list[dict[str, Any]]:
    """How often a true gain is found, over sizes, gains and correlations."""
    rows = []
    for n in (48, 200, 400, GSM8K):
        for gain in (0.02, 0.05, 0.1):
            for r in (0.0, 0.5, 0.8, 0.95):
                first, second = greedy_pairs(pairs, n, 0.5, 0.5 + gain, r, seed=4)
                found = by_counts(first, second).count("better")
                differing = float((first != second).mean())
                rows.append(
                    {"n": n, "gain": gain, "correlation": r, "differing": round(differing, 4), **rate(found, pairs)}
                )
    return rows


def detectable(pairs: int) -> list[dict[str, Any]]:
    """The formula behind "a gain of x would have been seen": power found at the gain for which it promises 80 %."""
    rows = []
    for n in (200, 400, GSM8K):
        for r in (0.0, 0.5, 0.8):
            gain = 0.05
            for _ in range(20):  # the share of differing problems depends on the gain
                first, second = greedy_pairs(200, n, 0.5, 0.5 + gain, r, seed=5)
                gain = detectable_gain(n, float((first != second).mean()))
            first, second = greedy_pairs(pairs, n, 0.5, 0.5 + gain, r, seed=6)
            found = by_counts(first, second).count("better")
            rows.append({"n": n, "correlation": r, "gain": round(gain, 4), "power": rate(found, pairs)})
    return rows


def sampled_tests(pairs: int) -> list[dict[str, Any]]:
    """The sign-flip test of pass@1 over k = 8 samples: error rate and power for 5 points."""
    rows = []
    for n in (30, 64, 200, 400):
        for gain in (0.0, 0.05):
            first, second = sampled_pairs(pairs, n, 8, 0.5, 0.5 + gain, 0.5, 0.2, seed=7)
            verdicts = []
            for difference in ((second - first) / 8).tolist():
                p, _ = sign_flip(difference, seed=0)
                verdicts.append(verdict(p, sum(difference)))
            rows.append({"n": n, "samples": 8, "gain": gain, **called(verdicts)})
    return rows


def coverage(pairs: int) -> list[dict[str, Any]]:
    """How often 95 % intervals hold the truth: of a rate, of pass@1 (against the plain normal interval), of a gain."""
    rows = []
    for n in (15, 30, 64, 200, 400):
        for accuracy in (0.05, 0.3, 0.9):
            first, second = greedy_pairs(pairs, n, accuracy, accuracy, 0.5, seed=8)
            hits, _ = sampled_pairs(pairs, n, 8, accuracy, accuracy, 0.5, 0.2, seed=9)
            rates = hits / 8
            half = Z_95 * rates.std(1, ddof=1) / np.sqrt(n)
            plain = float((np.abs(rates.mean(1) - accuracy) <= half).mean())
            gains = second.astype(int) - first.astype(int)
            rows.append(
                {
                    "n": n,
                    "accuracy": accuracy,
                    "wilson of a rate": _share(wilson(int(row.sum()), n) for row in first)(accuracy),
                    "pass@1": _share(mean_interval(row.tolist()) for row in rates)(accuracy),
                    "pass@1, mean +- 1.96 standard errors": round(plain, 4),
                    "gain, Tango": _share(
                        paired_loss_interval(int((row > 0).sum()), int((row < 0).sum()), n) for row in gains
                    )(0.0),
                    "gain, bootstrap": _share(paired_bootstrap(row.tolist(), 0, 2000) for row in gains)(0.0),
                }
            )
    return rows


def checkpoint_choice(pairs: int) -> list[dict[str, Any]]:
    """How often GRPO's choice replaces the last of three checkpoints by an earlier one, when the last is as good, better by 5
    points, or has lost 5, 10 or 20; and what taking the best measurement would do. 64 problems x 4 samples (the defaults).
    """
    rows = []
    for lost in (0.0, -0.05, 0.05, 0.1, 0.2):
        generator = np.random.default_rng(10)
        shared = np.sqrt(0.5) * generator.standard_normal((pairs, 64))
        hits = []
        for accuracy in (0.5, 0.5, 0.5 - lost):
            fixed = NORMAL.inv_cdf(accuracy) + shared + np.sqrt(0.2) * generator.standard_normal((pairs, 64))
            hits.append((fixed + np.sqrt(0.3) * generator.standard_normal((4, pairs, 64)) > 0).sum(0) / 4)
        replaced = naive = 0
        for run in range(pairs):
            found = [Candidate(step, tuple(h[run].tolist())) for step, h in zip((20, 40, 60), hits, strict=True)]
            replaced += not decide(found, 4, 0.05)["kept_last"]
            naive += max(found, key=lambda one: (sum(one.rates), one.step)).step != 60
        rows.append(
            {
                "points lost by the last": round(100 * lost),
                "replaced": rate(replaced, pairs),
                "by the best measurement": rate(naive, pairs),
            }
        )
    return rows


def _share(intervals: Any) -> Any:
    found = list(intervals)
    return lambda truth: round(sum(low <= truth <= high for low, high in found) / len(found), 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = (acceptance, error_rates, power, detectable, sampled_tests, coverage, checkpoint_choice)
    names = [part.__name__ for part in parts]
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--only", choices=names, nargs="+", default=names, help="measure these again, keep the rest")
    arguments = parser.parse_args()
    stored = ROOT / "benchmarks" / "power.json"
    kept = json.loads(stored.read_text()) if arguments.only != names else {}
    result: dict[str, Any] = {**kept, "alpha": ALPHA, "pairs": arguments.pairs}
    for part in (part for part in parts if part.__name__ in arguments.only):
        began = time.monotonic()
        result[part.__name__] = part(arguments.pairs)
        print(f"{part.__name__}: {time.monotonic() - began:.0f} s", flush=True)
        stored.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for name, found in result["acceptance"].items():
        for question in ("no difference", "gain of 5 points"):
            different = found[question]["different"]
            print(
                f"{name}, {question}: called different {different['rate']:.1%} [{different['low']:.1%}, {different['high']:.1%}]"
            )


if __name__ == "__main__":
    main()
