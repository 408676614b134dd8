"""Where trials run: a home in which the whole chain is stored, copies of it, and how to call the command line on them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from artifacts.manifest import Manifest
from artifacts.store import Store, open_store
from tasks.chain import NAMES

ROOT = Path(__file__).resolve().parents[2]

# The smallest chain whose stages last long enough to be interrupted at many different moments.
SETS = (
    "data.sft_rows=600",
    "data.train_rows=64",
    "data.eval_rows=24",
    "data.gate_rows=16",
    "sft.max_steps=24",
    "sft.save_steps=3",
    "sft.warmup_steps=2",
    "sft.per_device_train_batch_size=16",
    "gate.prompts=16",
    "gate.min_format_rate=0",
    "gate.max_truncation_rate=1",
    "gate.max_dead_groups=1",
    "pass_rates.enabled=on",
    "pass_rates.low=0",
    "pass_rates.high=1",
    "pass_rates.min_kept=16",
    "grpo.max_steps=6",
    "grpo.save_steps=1",
    "grpo.num_generations=4",
    "grpo.per_device_train_batch_size=16",
    "grpo.warmup_steps=1",
    "grpo.max_completion_length=32",
    "grpo.watchdog=off",
    "evaluation.problems=24",
    "evaluation.samples=2",
    "export.proof_problems=8",
    "export.parity_problems=4",
    "export.logprob_problems=2",
    "export.on_refused=warn",
    "run.threads=1",
    "run.retry_delay_s=0.5",
)
RESULT_FILES = (".safetensors", ".parquet", ".gguf", "items.jsonl", "samples.jsonl", "rollouts.jsonl")
"""Files of an artifact that hold results; others hold times and logs."""


@dataclass
class Ended:
    """A command that has ended."""

    code: int
    lines: list[tuple[float, str]]
    """Seconds since the start, and the line, which came then."""
    seconds: float

    @property
    def text(self) -> str:
        return "\n".join(line for _, line in self.lines)

    def tail(self, lines: int = 6) -> str:
        return "\n".join(self.text.strip().splitlines()[-lines:])


@dataclass
class Lab:
    """Everything below `folder`. `api` is set while a Prefect server of ours runs; `processes` are it and its worker."""

    folder: Path
    api: str = ""
    deployment: str = ""
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    extra_env: dict[str, str] = field(default_factory=dict)
    slowness: list[float] = field(default_factory=list)
    """How much longer stages of late took than in the base run, on a machine that others use too."""

    @property
    def base(self) -> Path:
        return self.folder / "base"

    def prepare(self) -> None:
        """Make the base home, unless it is there."""
        if (self.folder / "base.done").exists():
            return
        ended = self.run(self.base)
        if ended.code:
            raise RuntimeError(f"the base chain failed:\n{ended.tail(40)}")
        (self.folder / "base.done").touch()

    def home(self, name: str, without: str | Sequence[str] = ()) -> Path:
        """A copy of the base home, without what these stages made; of one stage's name, without it and those after it."""
        # No colon: it would cut the path in two in PYTHONPATH.
        home = self.folder / "trials" / re.sub(r"[^\w.-]", "_", name)
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        # Hard links: nothing of a store is ever written in place. Locks are, so they are left out.
        subprocess.run(["cp", "-al", str(self.base / "store"), str(home / "store")], check=True)
        shutil.rmtree(home / "store" / "locks", ignore_errors=True)
        if isinstance(without, str):
            without = NAMES[NAMES.index(without) :] if without else ()
        for stage in without:
            shutil.rmtree(home / "store" / "artifacts" / stage, ignore_errors=True)
        return home

    def env(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        left_out = ("PREFECT_", "PYTHONDONTWRITEBYTECODE")
        env = {key: value for key, value in os.environ.items() if not key.startswith(left_out)}
        env.update(NO_COLOR="1", COLUMNS="250", PYTHONPATH=str(ROOT), PREFECT_HOME=str(self.folder / "prefect"))
        if self.api:
            env["PREFECT_API_URL"] = self.api
        return {**env, **self.extra_env, **(more or {})}

    def command(self, home: Path, *arguments: str, sets: Sequence[str] = (), command: str = "run") -> list[str]:
        options = [text for item in (f"run.home={home}", *SETS, *sets) for text in ("--set", item)]
        return [sys.executable, "-m", "flows.cli", command, "--profile", "tiny", *options, *arguments]

    def run(
        self,
        home: Path,
        *arguments: str,
        sets: Sequence[str] = (),
        command: str = "run",
        timeout: float = 400,
        env: Mapping[str, str] | None = None,
    ) -> Ended:
        """Call the command line and wait for its end."""
        return self.call(self.command(home, *arguments, sets=sets, command=command), timeout=timeout, env=env)

    def call(self, command: Sequence[str], *, timeout: float = 400, env: Mapping[str, str] | None = None) -> Ended:
        began = time.monotonic()
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=self.env(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        alarm = threading.Timer(timeout, os.killpg, (process.pid, signal.SIGKILL))
        alarm.start()
        try:
            assert process.stdout is not None
            lines = [(time.monotonic() - began, line.rstrip("\n")) for line in process.stdout]
            return Ended(process.wait(), lines, time.monotonic() - began)
        finally:
            alarm.cancel()
            end(process)

    def start(self, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start a command in a session of its own, its output in `log`."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            return subprocess.Popen(
                command,
                cwd=ROOT,
                env=self.env(env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


def store(home: Path) -> Store:
    return open_store(str(home / "store"))


def latest(home: Path, stage: str) -> Manifest | None:
    return next(iter(reversed(list(store(home).list(stage)))), None)


def losses(home: Path, until: str) -> list[str]:
    """What the stages before `until` had stored and is now missing or damaged; and anything stored that is not whole."""
    opened = store(home)
    stored = {manifest.stage: manifest for manifest in opened.list()}
    found = [f"{stage} is gone" for stage in (NAMES[: NAMES.index(until)] if until else ()) if stage not in stored]
    for manifest in opened.list():
        found += [f"{manifest.stage}: {problem}" for problem in opened.verify(manifest, deep=True)]
    return found


def compare(lab: Lab, home: Path, stage: str) -> dict[str, Any]:
    """Result files of a stage against the uninterrupted run's: how many, and which differ."""
    mine, base = latest(home, stage), latest(lab.base, stage)
    if mine is None or base is None:
        return {"files": 0, "differ": ["nothing stored"]}
    theirs = {entry.path: entry.sha256 for entry in base.files}
    results = [entry for entry in mine.files if entry.path.endswith(RESULT_FILES)]
    differ = [entry.path for entry in results if theirs.get(entry.path) != entry.sha256]
    return {"files": len(results), "differ": differ, "resumed_from_step": mine.resumed_from_step}


def during(
    lab: Lab,
    home: Path,
    stage: str,
    act: Callable[[], object],
    sets: list[str],
    env: dict[str, str] | None,
    mark: str = "progress.json",
) -> Ended:
    """Run to the end of a stage, and `act` once `mark` is in its work directory (result.json: only storing is left)."""
    process_seen = threading.Event()

    def watch() -> None:
        if wait_for(lambda: list((home / "work").glob(f"{stage}-*/{mark}")), 350, 0.01) is not None:
            act()
            process_seen.set()

    thread = threading.Thread(target=watch)
    thread.start()
    ended = lab.run(home, "--stop-after", stage, sets=sets, env=env)
    thread.join()
    if not process_seen.is_set():
        raise RuntimeError(f"the stage was never seen: {ended.tail()}")
    return ended


def rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Change a file without touching the other hard links to it."""
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(change(data))


def below(home: Path) -> list[psutil.Process]:
    """Living processes whose command line or open work belongs to `home`."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() == psutil.STATUS_ZOMBIE or process.pid == os.getpid():
                continue
            text = " ".join(process.cmdline())
            if str(home) in text or str(home) in process.environ().get("UNSLOTH_COMPILE_LOCATION", ""):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def wait_for(condition: Callable[[], Any], seconds: float, every: float = 0.1) -> float | None:
    """Seconds until `condition()` is true, or None."""
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        if condition():
            return time.monotonic() - began
        time.sleep(every)
    return None


def end(process: subprocess.Popen[Any] | None) -> None:
    """End a process of ours with all in its session."""
    if process is None or process.poll() is not None:
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(timeout=8)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def record(home: Path) -> dict[str, Any]:
    """The newest run's record."""
    newest = max((home / "store" / "runs").glob("*.json"), default=None)
    return json.loads(newest.read_text(encoding="utf-8")) if newest else {}


def actions(home: Path) -> dict[str, str]:
    """What the newest run did, by stage."""
    return {item["stage"]: item["action"] for item in record(home).get("stages", [])}


def error_line(ended: Ended) -> str:
    """The message with which a command ended, in one line; empty when it ended well."""
    lines = ended.text.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("error [")]
    if not starts:
        return "" if ended.code == 0 else f"exit code {ended.code}: {ended.tail(2)}"[:400]
    return short(" ".join(line.strip() for line in lines[starts[-1] : starts[-1] + 2]))


def said(ended: Ended) -> tuple[float | None, str]:
    """When, in seconds since the start, and how the output first spoke of a fault."""
    words = ("damaged", "passed over", "is no longer valid", "cannot be", "error [", "retry", "was killed", "gave up")
    for at, line in ended.lines:
        if any(word in line for word in words):
            return round(at, 1), short(line.split(" - ")[-1].strip())
    return None, "nothing needed to be said"


def short(text: str) -> str:
    """A message without this machine's folders and without whole digests."""
    text = re.sub(r"/\S*?/site-packages/", "<site-packages>/", text)
    text = re.sub(r"/\S*?/trials/[^/\s]+", "<home>", text)
    return re.sub(r"\b([0-9a-f]{12})[0-9a-f]{20,}", r"\1…", text)[:400]
