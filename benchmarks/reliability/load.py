"""5. Many at once, many in a row, and a store with many artifacts."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil

from artifacts.fingerprint import fingerprint
from artifacts.manifest import FileEntry, Manifest, content_digest
from artifacts.store import open_store
from benchmarks.reliability.area import Area
from benchmarks.reliability.lab import SETS, Ended, Lab, below, end, latest, store
from benchmarks.reliability.prefect_server import with_server
from benchmarks.reliability.results import Trial

KIND = "5-load"
FLOWS, DISTINCT = 20, 10
RUNS = 100
ARTIFACTS = 10_000
NVIDIA_SMI = """#!/bin/sh
case "$*" in
  *query-gpu*) echo "0, GPU-reliability-{tag}, 10, 80000" ;;
esac
"""
IN_A_ROW = """
import json, os, sys, time
from pathlib import Path
import psutil
from flows.carry_out import Choice, carry_out
from pipeline_config.loading import load_config
from tasks.execution import execute

config = load_config("tiny", overrides=sys.argv[2:])
me = psutil.Process()
home = Path(config.run.home)
quiet = lambda text: None
for run in range(int(sys.argv[1])):
    began = time.perf_counter()
    carry_out(config, Choice(), execute, quiet, quiet)
    seconds = time.perf_counter() - began
    files = [path for path in home.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    print(json.dumps([seconds, me.memory_info().rss, me.num_fds(), len(files), size]), flush=True)
"""


def flows_at_once(lab: Lab, home: Path) -> dict[str, Any]:
    """20 runs at the same instant, of 10 different trainings, on a machine that says it has one GPU."""
    tools = home / "bin"
    tools.mkdir()
    (tools / "nvidia-smi").write_text(NVIDIA_SMI.format(tag=os.getpid()))
    (tools / "nvidia-smi").chmod(0o755)
    env = {"PATH": f"{tools}:{os.environ['PATH']}"}
    processes = []
    began = time.monotonic()
    for number in range(FLOWS):
        sets = [f"sft.learning_rate={(number % DISTINCT + 1) * 1e-4}", "sft.max_steps=2", "run.device=auto"]
        command = lab.command(home, "--start-from", "sft", "--stop-after", "sft", sets=sets)
        processes.append(lab.start(command, home / f"flow-{number}.log", env))
    most, stages = 0, set[int]()
    while any(process.poll() is None for process in processes) and time.monotonic() - began < 1500:
        working = [p.pid for p in below(home) if _is_stage(p)]
        stages |= set(working)
        most = max(most, len(working))
        time.sleep(0.3)
    seconds = time.monotonic() - began
    codes = [process.poll() for process in processes]
    for process in processes:
        end(process)
    learnt = [manifest for manifest in store(home).list("sft") if manifest.terms["sft"]["max_steps"] == 2]  # type: ignore[index,call-overload]
    lost = [f"exit codes {codes}"] if any(codes) else []
    lost += [f"{most} stages at once on one GPU"] if most > 1 else []
    lost += [f"{len(learnt)} artifacts instead of {DISTINCT}"] if len(learnt) != DISTINCT else []
    lost += [f"{len(stages)} trainings instead of {DISTINCT}"] if len(stages) != DISTINCT else []
    shutil.rmtree(Path("/tmp/grpo-pipeline-gpu") / f"GPU-reliability-{os.getpid()}.lock", ignore_errors=True)
    return {
        "lost": lost,
        "noticed_s": None,
        "noticed": "those that wait say for whom",
        "went_on": f"{len(stages)} trainings, one after the other; the other {FLOWS - DISTINCT} runs reused theirs",
        "seconds": round(seconds, 1),
        "most_stages_at_once": most,
    }


def _is_stage(process: psutil.Process) -> bool:
    try:
        line = process.cmdline()
    except psutil.Error:
        return False
    return "tasks.process.stage_main" in line and "tasks.process.supervisor" not in line


def runs_in_a_row(lab: Lab, home: Path) -> dict[str, Any]:
    """The cached chain in one process that lives on: what a leak would show in."""
    script = [sys.executable, "-c", IN_A_ROW, str(RUNS), f"run.home={home}", *SETS]
    ended: Ended = lab.call(script, timeout=1800)
    rows = [json.loads(line) for _, line in ended.lines if line.startswith("[")]
    if ended.code or len(rows) != RUNS:
        return {"lost": [ended.tail()], "noticed_s": None, "noticed": "", "went_on": ""}
    first, last = rows[5:15], rows[-10:]
    middle = lambda part, column: statistics.median(row[column] for row in part)  # noqa: E731
    before = {name: middle(first, column) for column, name in enumerate(("seconds", "rss", "fds", "files", "bytes"))}
    after = {name: middle(last, column) for column, name in enumerate(("seconds", "rss", "fds", "files", "bytes"))}
    per_run = (rows[-1][4] - rows[0][4]) / (RUNS - 1)
    lost = ["memory grows"] if after["rss"] - before["rss"] > 20e6 else []
    lost += ["open files grow"] if after["fds"] > before["fds"] else []
    lost += ["runs get slower"] if after["seconds"] > 1.5 * before["seconds"] + 0.05 else []
    lost += [f"{per_run:.0f} bytes a run"] if per_run > 500_000 else []
    return {
        "lost": lost,
        "noticed_s": None,
        "noticed": "",
        "went_on": f"a run leaves its record and its report, {per_run / 1000:.0f} kB; nothing else grows",
        "runs_6_to_15": before,
        "runs_91_to_100": after,
        "bytes_per_run": round(per_run),
    }


def many_artifacts(lab: Lab, home: Path) -> dict[str, Any]:
    """A store with 10,000 more artifacts, with manifests of the usual size: how long common questions take."""
    made = fill(home, ARTIFACTS)
    opened = open_store(str(home / "store"))
    times: dict[str, float] = {}

    def timed(name: str, question: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        answer = question()
        times[name] = round(time.perf_counter() - began, 3)
        return answer

    one = made[len(made) // 2]
    timed("look up one artifact", lambda: opened.lookup(*one))
    timed("find by 12 digits", lambda: opened.find(one[1][:12]))
    timed("find sft:latest", lambda: opened.find("sft:latest"))
    listed = timed("list all", lambda: list(opened.list()))
    timed("gc: say what would go", lambda: opened.gc(keep_last=3, dry_run=True))
    ended = lab.run(home, command="plan")
    times["command `plan`, all stored"] = round(ended.seconds, 3)
    ended = lab.run(home, command="plan", sets=["sft.learning_rate=0.0123"])
    times["command `plan`, a changed setting"] = round(ended.seconds, 3)
    listing = lab.call([*lab.command(home)[:3], "artifacts", "ls", "sft", "--store", str(home / "store")])
    times["command `artifacts ls sft`"] = round(listing.seconds, 3)
    removed = timed("gc: delete all but 3 of a stage", lambda: opened.gc(keep_last=3, grace=timedelta(0)))
    lost = [] if len(listed) >= ARTIFACTS else [f"{len(listed)} listed"]
    # Deleting is bound by the disk: 30 ms for each artifact with its two folders and two files.
    slow = {name: 0.03 * ARTIFACTS if "delete" in name else 60 for name in times}
    lost += [f"{name}: {seconds:.1f} s" for name, seconds in times.items() if seconds > slow[name]]
    lost += [] if len(removed) > ARTIFACTS * 0.9 else [f"only {len(removed)} deleted"]
    return {
        "lost": lost,
        "noticed_s": None,
        "noticed": "",
        "went_on": "",
        "seconds_for": times,
        "artifacts": len(listed),
    }


def fill(home: Path, count: int) -> list[tuple[str, str]]:
    """Copies of the base's manifests under other fingerprints, each with one small file, a minute apart."""
    opened = store(home)
    templates = [manifest for manifest in opened.list() if (latest(home, manifest.stage) == manifest)]
    made = []
    for number in range(count):
        template = templates[number % len(templates)]
        key = fingerprint({"copy": number})
        place = home / "store" / "artifacts" / template.stage / key
        (place / "files").mkdir(parents=True)
        text = f"content {number}"
        (place / "files" / "value.txt").write_text(text)
        entry = FileEntry(path="value.txt", size=len(text), sha256=_sha256(text))
        at = template.finished_at - timedelta(minutes=count - number)
        changed = {"fingerprint": key, "files": (entry,), "content_digest": content_digest([entry]), "finished_at": at}
        # Distinct terms, as of 10,000 different settings.
        terms = {**template.terms, "copy": number}
        copy: Manifest = template.model_copy(update={**changed, "terms": terms, "parents": {}, "files_at": "files"})
        (place / "manifest.json").write_bytes(copy.to_bytes())
        made.append((template.stage, key))
    return made


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


LOADS: dict[str, Callable[[Lab, Path], dict[str, Any]]] = {
    "20 flows at once on one GPU": flows_at_once,
    "100 runs in a row of the cached chain": runs_in_a_row,
    "a store with 10,000 artifacts": many_artifacts,
}


def trials(moments: int) -> list[Trial]:
    return [Trial(KIND, name) for name in LOADS]


def run(lab: Lab, trial: Trial) -> dict[str, Any]:
    home = lab.home(trial.key)
    try:
        return LOADS[trial.fault](lab, home)
    finally:
        subprocess.run(["rm", "-rf", str(home / "store" / "artifacts")], check=False)


AREA = Area("Load", trials, run, with_server)
