"""7. What orchestration costs: the chain through the deployment, through the command line, and by direct calls."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from benchmarks.reliability.area import Area
from benchmarks.reliability.lab import SETS, Lab, record
from benchmarks.reliability.prefect_server import HTTP, ensure, start_run, state_of, with_worker
from benchmarks.reliability.results import Trial
from benchmarks.reliability.running import FINAL

KIND = "7-overhead"
WAYS = (
    "cached chain: deployment",
    "cached chain: command line",
    "cached chain: direct calls",
    "one stage: deployment",
    "one stage: direct calls",
)
STAGE = "evaluate_grpo"
DIRECT = """
import json, sys, time
from flows.carry_out import Choice, carry_out
from pipeline_config.loading import load_config
from tasks.execution import execute
config = load_config("tiny", overrides=sys.argv[2:])
quiet = lambda text: None
began = time.perf_counter()
carry_out(config, Choice(stop_after=sys.argv[1] or None), execute, quiet, quiet)
print(json.dumps(time.perf_counter() - began))
"""


def trials(moments: int) -> list[Trial]:
    return [Trial(KIND, way, STAGE if way.startswith("one") else "", n) for n in range(moments) for way in WAYS]


def run(lab: Lab, trial: Trial) -> dict[str, Any]:
    ensure(lab)
    way = trial.fault.partition(": ")[2]
    home = lab.home(trial.key, trial.stage)
    began = time.monotonic()
    more: dict[str, Any] = {}
    if way == "direct calls":
        ended = lab.call([sys.executable, "-c", DIRECT, trial.stage, f"run.home={home}", *SETS])
        more["inside_s"] = round(float(json.loads(ended.lines[-1][1])), 3)
        lost = [ended.tail()] if ended.code else []
    elif way == "command line":
        ended = lab.run(home)
        lost = [ended.tail()] if ended.code else []
    else:
        run_id = start_run(lab, lab.deployment, home, trial.stage)
        while (state := state_of(lab, run_id)).get("type") not in FINAL and time.monotonic() - began < 300:
            time.sleep(0.1)
        lost = [] if state.get("type") == "COMPLETED" else [f"{state}"]
        found = HTTP.get(f"{lab.api}/flow_runs/{run_id}").json()
        more["inside_s"] = round(float(found["total_run_time"]), 3)
        tasks = HTTP.post(f"{lab.api}/task_runs/filter", json={"flow_runs": {"id": {"any_": [run_id]}}}).json()
        more["tasks_s"] = {task["name"]: round(float(task["total_run_time"]), 3) for task in tasks}
    seconds = round(time.monotonic() - began, 2)
    stages = {item["stage"]: item.get("seconds") for item in record(home).get("stages", [])}
    return {
        "lost": lost,
        "noticed_s": None,
        "noticed": "",
        "went_on": "",
        "seconds": seconds,
        "stages_s": stages,
        **more,
    }


AREA = Area("What orchestration costs", trials, run, with_worker)
