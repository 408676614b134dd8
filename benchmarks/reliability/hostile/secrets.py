"""Secrets in every place that they could leak to."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.reliability.hostile.common import refused, result
from benchmarks.reliability.lab import Lab, short

CANARIES = {
    "HF_TOKEN": "hf_CANARYhuggingface",
    "AWS_SECRET_ACCESS_KEY": "CANARYaws/secret+key",
    "SWANLAB_API_KEY": "CANARYswanlab",
    "GITHUB_PAT": "ghp_CANARYgithub",
    "SMTP_PASS": "CANARYmail",
    "DATABASE_URL": "postgresql://grpo:CANARYdatabase@db/grpo",
    "PREFECT_SERVER_API_AUTH_STRING": "admin:CANARYprefect",
    "SLACK_WEBHOOK_URL": "https://hooks.invalid/services/CANARYslack",
}
LEAKY = """
import os

def pay(prompts, completions, **kwargs):
    print("all of it:", {name: value for name, value in os.environ.items() if "CANARY" in value})
    if kwargs.get("trainer_state") is not None:
        raise RuntimeError("cannot log in with " + " ".join(v for v in os.environ.values() if "CANARY" in v))
    return [float(text.count("7")) for text in map(str, completions)]
"""


def secrets_everywhere(lab: Lab, home: Path) -> dict[str, Any]:
    """A reward that prints every secret and then raises with all of them; afterwards everything written is searched."""
    folder = home / "code"
    folder.mkdir()
    (folder / "leaky.py").write_text(LEAKY)
    env = {**CANARIES, "PYTHONPATH": os.pathsep.join((lab.env()["PYTHONPATH"], str(folder)))}
    env.pop("PREFECT_SERVER_API_AUTH_STRING")
    sets = ['grpo.rewards.functions=[{"path": "leaky:pay"}]', "run.tracking=offline"]
    seen: set[str] = set()
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.2):
            for process in psutil.process_iter():
                try:
                    line = " ".join(process.cmdline())
                except psutil.Error:
                    continue
                if "CANARY" in line:
                    seen.add(short(line)[:200])

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        ended = lab.run(home, "--start-from", "preflight", sets=sets, env=env, timeout=500)
    finally:
        stop.set()
        thread.join()
    time.sleep(3)
    if "No module" in ended.text or "no module named" in ended.text:
        raise RuntimeError("the reward was never called: nothing was tried")
    lost = [f"on a command line: {line}" for line in sorted(seen)]
    lost += ["on the terminal"] if "CANARY" in ended.text else []
    places = [home, lab.folder / "prefect", lab.folder / "server.log", Path(str(lab.folder / "worker.log"))]
    lost += [f"in {short(str(path))}" for place in places for path in files_with_canary(place) if path.suffix != ".py"]
    return result(
        lost,
        ended,
        "masked wherever a stage's output is kept or shown",
        exit_code=ended.code,
        searched=[str(p.name) for p in places],
    )


def files_with_canary(place: Path) -> list[Path]:
    if not place.exists():
        return []
    found = subprocess.run(["grep", "-rlaE", "CANARY[a-z]", str(place)], capture_output=True, text=True, check=False)
    return [Path(line) for line in found.stdout.splitlines()]


def secret_in_a_setting(lab: Lab, home: Path) -> dict[str, Any]:
    source = json.dumps(
        [{"kind": "file", "url": "https://me:CANARYpassword@host.invalid/rows.jsonl?token=CANARYtoken"}]
    )
    ended = lab.run(home, sets=[f"data.train={source}"])
    lost = refused(ended, 10) + (["on the terminal"] if "CANARY" in ended.text else [])
    return result(lost + [short(str(path)) for path in files_with_canary(home)], ended)
