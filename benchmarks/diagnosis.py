"""How often the diagnosis is right, how soon, and how often it cries wolf; side by side with other diagnosers.

    python benchmarks/diagnosis.py --json benchmarks/diagnosis.json
    python benchmarks/diagnosis.py --peer rldoctor=/path/to/venv/bin/python --peer rlprobe=... --peer rlwatch=...

Traces: the generator of tests/tasks/diagnosis (seeded), and, when they are there, the logs in ../shared/corpora/traces. "Live" is the watchdog's way:
after every row the rows so far are diagnosed, and three equal verdicts in a row count. A peer is a Python
interpreter with that package; it gets the same rows, and its findings are mapped to our names as PEER_NAMES says.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import platform
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tasks.diagnosis.doctor import diagnose_rows  # noqa: E402
from tasks.diagnosis.readers import read_log  # noqa: E402
from tasks.diagnosis.run_info import RunInfo, from_mapping  # noqa: E402

CORPUS = ROOT.parent / "shared" / "corpora" / "traces"
PERSISTENCE = 3

PEER_NAMES = {
    # What a peer's finding says, by words in its id and text -> our name for that cause. First match counts.
    "rldoctor": (
        ("advantage_collapse too easy", "all_correct"),
        ("advantage_collapse too hard", "all_wrong"),
        ("entropy_collapse", "entropy_collapse"),
        ("reward_hacking", "reward_hacking"),
        ("length_pathology truncat", "truncation_spiral"),
        ("length_pathology shr", "length_collapse"),
        ("kl_drift", "kl_explosion"),
        ("gradient_pathology non-finite", "late_nan"),
    ),
    "rlprobe": (
        ("KL_BLOWUP", "kl_explosion"),
        ("ENTROPY_COLLAPSE", "entropy_collapse"),
        ("REWARD_HACK", "reward_hacking"),
        ("TRUNCATION_STARVE", "truncation_spiral"),
        ("GRAD_PATHOLOGY nan", "late_nan"),
    ),
    "rlwatch": (
        ("entropy", "entropy_collapse"),
        ("kl", "kl_explosion"),
        ("reward_hacking", "reward_hacking"),
        ("loss_nan", "late_nan"),
    ),
}

ADAPTERS = {
    "rldoctor": """
import importlib.metadata as md, json, sys
from rl_doctor import diagnose, run_from_records
out = []
for rows in json.load(sys.stdin):
    found = diagnose(run_from_records(rows)).findings
    order = sorted(found, key=lambda f: -int(f.severity))
    out.append([[f.severity.name, f.detector + " " + f.summary + " " + " ".join(f.evidence)] for f in order if f.severity.name in ("WARNING", "CRITICAL")])
json.dump({"version": md.version("rldoctor"), "found": out}, sys.stdout)
""",
    "rlprobe": """
import importlib.metadata as md, json, math, sys, tempfile
from rlprobe.doctor.engine import diagnose
from rlprobe.recorder import Recorder
names = {"reward": "reward_mean", "reward_std": "reward_std", "frac_reward_zero_std": "zero_variance_group_frac", "kl": "kl_mean",
         "entropy": "entropy_mean", "clip_ratio/region_mean": "clip_fraction", "loss": "loss", "learning_rate": "lr", "grad_norm": "grad_norm",
         "completions/mean_length": "completion_len_mean", "completions/max_length": "completion_len_max",
         "completions/clipped_ratio": "truncation_rate", "step_time": "step_time_s"}
out = []
for rows in json.load(sys.stdin):
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(folder + "/run", algorithm="grpo", capture_env=False, install_handlers=False)
        for row in rows:
            if "reward" in row:
                ok = {k: v for k, v in row.items() if v is not None and not math.isnan(v)}
                parts = {k[8:-5]: v for k, v in ok.items() if k.startswith("rewards/") and k.endswith("/mean")}
                recorder.log_step(int(row["step"]), reward_components=parts, **{names[k]: v for k, v in ok.items() if k in names})
        recorder.close()
        found = diagnose(recorder.run_dir)
    out.append([[str(getattr(f.severity, "value", f.severity)), f.signature_id + " " + f.explanation] for f in found])
json.dump({"version": md.version("rlprobe"), "found": out}, sys.stdout)
""",
    "rlwatch": """
import importlib.metadata as md, json, sys
from rlwatch.config import RLWatchConfig
from rlwatch.detectors import DetectorSuite
out = []
for rows in json.load(sys.stdin):
    suite, found = DetectorSuite(RLWatchConfig()), {}
    for row in rows:
        if "reward" in row:
            for a in suite.check_step(int(row["step"]), entropy=row.get("entropy"), kl_divergence=row.get("kl"), reward_mean=row["reward"],
                                      reward_std=row.get("reward_std"), loss=row.get("loss"), grad_norm=row.get("grad_norm")):
                found.setdefault(a.detector, [a.severity, a.detector])
    out.append(sorted(found.values(), key=lambda f: f[0] != "critical"))
json.dump({"version": md.version("rlwatch"), "found": out}, sys.stdout)
""",
}


def generator() -> Any:
    """The tests' trace generator, loaded by its path."""
    path = ROOT / "tests" / "tasks" / "diagnosis" / "trace_generator.py"
    spec = importlib.util.spec_from_file_location("trace_generator", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["trace_generator"] = module
    spec.loader.exec_module(module)
    return module


def live(rows: list[dict[str, Any]], info: RunInfo | None) -> list[tuple[str, int]]:
    """Verdicts that count on the way, with the index of the training row at which they do."""
    found: list[tuple[str, int]] = []
    streak, last, train = 0, "", 0
    for end, row in enumerate(rows, 1):
        if "reward" not in row:
            continue
        train += 1
        verdict = diagnose_rows(rows[:end], info).verdict
        streak = streak + 1 if verdict == last else 1
        last = verdict
        needed = 1 if verdict == "late_nan" else PERSISTENCE
        if verdict != "healthy" and streak == needed and verdict not in [name for name, _ in found]:
            found.append((verdict, train - 1))
    return found


def cases(faulty: int, healthy: int, seed: int) -> list[dict[str, Any]]:
    """Generated traces and, where present, the corpus."""
    traces = generator()
    kinds = [traces.FAULTS[i % len(traces.FAULTS)] for i in range(faulty)] + ["healthy"] * healthy
    out = []
    for i, kind in enumerate(kinds):
        t = traces.make_trace(seed + i, kind)
        info = from_mapping(t.info) if t.info else None
        out.append(
            {
                "set": "generated",
                "name": t.name,
                "verdict": kind,
                "accept": t.accept,
                "rows": t.rows,
                "info": info,
                "onset": t.onset_row,
            }
        )
    index = json.loads((CORPUS / "index.json").read_text()) if CORPUS.is_dir() else []
    for entry in index:
        rows = read_log(CORPUS / entry["file"])
        onset = None if entry["onset_step"] is None else (entry["onset_step"] - 1) // entry["logging_steps"]
        case = {
            "set": "corpus",
            "name": entry["file"],
            "verdict": entry["verdict"],
            "accept": tuple(entry["accept"]),
            "rows": rows,
            "onset": onset,
        }
        out.append({**case, "info": from_mapping(entry)})
        out.append({**case, "set": "corpus, nothing declared", "info": None})
    return out


def ours(case: dict[str, Any]) -> dict[str, Any]:
    """Post-hoc verdict and what the watchdog would have said."""
    begun = time.perf_counter()
    verdict = diagnose_rows(case["rows"], case["info"]).verdict
    seconds = time.perf_counter() - begun
    alarms = live(case["rows"], case["info"])
    right = (case["verdict"], *case["accept"])
    first = alarms[0] if alarms else None
    delay = first[1] - case["onset"] if first and case["onset"] is not None and first[0] in right else None
    return {
        "verdict": verdict,
        "right": verdict in right,
        "first": first,
        "first_right": bool(first and first[0] in right),
        "delay": delay,
        "s": seconds,
    }


def peer(name: str, python: str, chosen: list[dict[str, Any]]) -> dict[str, Any]:
    """Run a peer over the cases; `named`: its first finding is the cause, `listed`: any is, `silent`: nothing found."""
    plain = [[{k: v for k, v in row.items() if not k.startswith("_")} for row in case["rows"]] for case in chosen]
    done = subprocess.run(
        [python, "-c", ADAPTERS[name]], input=json.dumps(plain), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        return {"error": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit {done.returncode}"}
    answer = json.loads(done.stdout[done.stdout.index('{"version"') :])
    table: dict[str, Counter[str]] = {}
    for case, found in zip(chosen, answer["found"], strict=True):
        names = [_mapped(name, text) for _, text in found]
        right = (case["verdict"], *case["accept"])
        outcome = "alarm" if found else "silent"
        if case["verdict"] != "healthy" and found:
            outcome = "named" if names[0] in right else "listed" if set(names) & set(right) else "other"
        table.setdefault(case["verdict"], Counter())[outcome] += 1
    return {"version": answer["version"], "table": {verdict: dict(counts) for verdict, counts in table.items()}}


def _mapped(peer_name: str, text: str) -> str:
    low = text.lower()
    for words, ours_ in PEER_NAMES[peer_name]:
        if all(word.lower() in low for word in (words.split(" ", 1) if " " in words else [words])):
            return ours_
    return ""


def summary(results: list[tuple[dict[str, Any], dict[str, Any]]]) -> dict[str, Any]:
    """Counts per set and verdict."""
    out: dict[str, Any] = {}
    for case, result in results:
        cell = out.setdefault(case["set"], {}).setdefault(
            case["verdict"], {"traces": 0, "right": 0, "live_right": 0, "live_wrong_first": 0, "delays": []}
        )
        cell["traces"] += 1
        cell["right"] += result["right"]
        healthy = case["verdict"] == "healthy"
        cell["live_right"] += result["first"] is None if healthy else result["first_right"]
        cell["live_wrong_first"] += result["first"] is not None and not result["first_right"]
        if result["delay"] is not None:
            cell["delays"].append(result["delay"])
    for verdicts in out.values():
        for cell in verdicts.values():
            delays = sorted(cell.pop("delays"))
            cell["median_rows_after_onset"] = median(delays) if delays else None
            cell["p90_rows_after_onset"] = (
                delays[min(len(delays) - 1, math.ceil(0.9 * len(delays)) - 1)] if delays else None
            )
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faulty", type=int, default=200)
    parser.add_argument("--healthy", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    everything = cases(args.faulty, args.healthy, args.seed)
    results = [(case, ours(case)) for case in everything]
    report: dict[str, Any] = {
        "python": platform.python_version(),
        "seed": args.seed,
        "sets": summary(results),
        "wrong": [],
    }
    report["ms_per_diagnosis"] = round(1000 * median(result["s"] for _, result in results), 2)
    report["wrong"] = [
        {"name": c["name"], "set": c["set"], "wanted": c["verdict"], "got": r["verdict"]}
        for c, r in results
        if not r["right"]
    ]
    if not CORPUS.is_dir():
        print(f"skipped: the corpus, {CORPUS} is not there")
    print(
        f"{'set':26} {'verdict':18} {'traces':>6} {'right':>6} {'live':>6} {'wrong first':>11} {'rows after onset (median, p90)':>31}"
    )
    for name, verdicts in report["sets"].items():
        for verdict, cell in verdicts.items():
            delay = f"{cell['median_rows_after_onset']} {cell['p90_rows_after_onset']}"
            print(
                f"{name:26} {verdict:18} {cell['traces']:6} {cell['right']:6} {cell['live_right']:6} {cell['live_wrong_first']:11} {delay:>31}"
            )
    chosen = [case for case in everything if case["set"] != "corpus, nothing declared"]
    report["peers"] = {}
    for spec in args.peer:
        name, _, python = spec.partition("=")
        report["peers"][name] = {
            part: peer(name, python, [c for c in chosen if c["set"] == part])
            for part in sorted({c["set"] for c in chosen})
        }
        print(name, json.dumps(report["peers"][name], indent=1))
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
