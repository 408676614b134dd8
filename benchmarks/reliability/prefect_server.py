"""A Prefect server and a process worker of our own, and how to start, watch and cancel flow runs through them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from benchmarks.reliability.lab import SETS, Lab, end, wait_for

PORT = int(os.environ.get("RELIABILITY_PORT", "4410"))
POOL = "gpu"
"""The pool that prefect.yaml deploys to."""
HTTP = httpx.Client(timeout=10, trust_env=False)
"""One client for all calls: making one costs more than a call."""


def prefect(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "prefect", *arguments]


def start_server(lab: Lab) -> subprocess.Popen[bytes]:
    """Start the server and wait until it answers."""
    environment = {
        "PREFECT_API_URL": "",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_UI_ENABLED": "0",
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
    }
    process = lab.start(
        prefect("server", "start", "--host", "127.0.0.1", "--port", str(PORT)), lab.folder / "server.log", environment
    )
    lab.api = f"http://127.0.0.1:{PORT}/api"
    if wait_for(lambda: healthy(lab.api) or process.poll() is not None, 240, 0.5) is None or process.poll() is not None:
        end(process)
        raise RuntimeError(f"the server did not start: {(lab.folder / 'server.log').read_text()[-2000:]}")
    return process


def healthy(api: str) -> bool:
    try:
        return HTTP.get(f"{api}/health", timeout=2).status_code == 200
    except httpx.HTTPError:
        return False


def start_worker(lab: Lab) -> subprocess.Popen[bytes]:
    """Start a process worker that asks for work every second (Prefect's default is 10)."""
    return lab.start(
        prefect("worker", "start", "--pool", POOL, "--type", "process", "--limit", "1", "--name", "worker"),
        lab.folder / "worker.log",
        {"PREFECT_WORKER_QUERY_SECONDS": "1"},
    )


def deploy(lab: Lab) -> str:
    """`ops setup`, then the deployment `full` of the project's own prefect.yaml; returns its id."""
    for command in (
        # More slots than runs: one whose worker and flow were killed holds its slot until the automation ends it.
        [sys.executable, "-m", "flows.cli", "ops", "setup", "--slots", "50"],
        prefect("--no-prompt", "deploy", "--name", "full"),
    ):
        done = lab.call(command)
        if done.code:
            raise RuntimeError(done.tail(20))
    found = HTTP.get(f"{lab.api}/deployments/name/grpo-pipeline/full").raise_for_status().json()
    return str(found["id"])


def start_run(lab: Lab, deployment: str, home: Path, stop_after: str, sets: Sequence[str] = ()) -> str:
    """Create a flow run of the deployment and return its id."""
    parameters: dict[str, Any] = {"profile": "tiny", "overrides": [f"run.home={home}", *SETS, *sets]}
    if stop_after:
        parameters["stop_after"] = stop_after
    for _ in range(5):
        answer = HTTP.post(
            f"{lab.api}/deployments/{deployment}/create_flow_run",
            json={"parameters": parameters, "state": {"type": "SCHEDULED"}},
            timeout=30,
        )
        if answer.status_code != 503:  # SQLite was busy; Prefect's own clients ask again too
            break
        time.sleep(1)
    return str(answer.raise_for_status().json()["id"])


def newest_run(lab: Lab, home: Path) -> str:
    """Id of the flow run that the command line has started for this home."""
    found = HTTP.post(f"{lab.api}/flow_runs/filter", json={"sort": "START_TIME_DESC", "limit": 10}).raise_for_status()
    runs = [run for run in found.json() if run["parameters"].get("config", {}).get("run", {}).get("home") == str(home)]
    return str(runs[0]["id"])


def state_of(lab: Lab, run_id: str) -> dict[str, Any]:
    """Type, name and message of a flow run's state; empty while the server does not answer."""
    try:
        answer = HTTP.get(f"{lab.api}/flow_runs/{run_id}", timeout=5)
        state = answer.json().get("state") or {} if answer.status_code == 200 else {}
    except (httpx.HTTPError, ValueError):
        return {}
    return {key: state.get(key) for key in ("type", "name", "message")}


@contextmanager
def with_server(lab: Lab) -> Iterator[None]:
    """A server for runs from the command line, which then need not start one each; the one on our port if it answers."""
    lab.api = f"http://127.0.0.1:{PORT}/api"
    server = None if healthy(lab.api) else start_server(lab)
    try:
        yield
    finally:
        end(server)
        lab.api = ""


@contextmanager
def with_worker(lab: Lab) -> Iterator[None]:
    """A server and a worker of our own, which trials may kill and start again."""
    lab.processes["server"] = start_server(lab)
    try:
        lab.deployment = deploy(lab)
        lab.processes["worker"] = start_worker(lab)
        yield
    finally:
        for process in lab.processes.values():
            end(process)
        lab.processes.clear()
        lab.api = ""


def ensure(lab: Lab) -> None:
    """Start again what an earlier trial has killed."""
    if lab.processes["server"].poll() is not None:
        lab.processes["server"] = start_server(lab)
    if lab.processes["worker"].poll() is not None:
        lab.processes["worker"] = start_worker(lab)
