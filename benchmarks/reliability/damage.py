"""4. Damaged checkpoints, manifests, locks and cached results; a manifest of a newer version; a clock that jumps."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.reliability.area import Area
from benchmarks.reliability.lab import (
    Ended,
    Lab,
    actions,
    below,
    compare,
    end,
    error_line,
    latest,
    losses,
    record,
    rewrite,
    said,
    store,
    wait_for,
)
from benchmarks.reliability.prefect_server import with_server
from benchmarks.reliability.results import Trial

DAY_S = 86_400


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def flip(data: bytes) -> bytes:
    """One bit in the middle; size and, for safetensors, the header stay as they are."""
    middle = len(data) * 3 // 4
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def garbage(_: bytes) -> bytes:
    return b'{"schema_version": 1, "stage": \xff\x00'


def edited(**changed: Any) -> Callable[[bytes], bytes]:
    return lambda data: json.dumps({**json.loads(data), **changed}).encode()


CHECKPOINTS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "checkpoint: model.safetensors cut in half": ("model.safetensors", cut),
    "checkpoint: one bit of model.safetensors changed": ("model.safetensors", flip),
    "checkpoint: optimizer.pt all zeros": ("optimizer.pt", lambda data: bytes(len(data))),
    "checkpoint: trainer_state.json garbage": ("trainer_state.json", garbage),
    "checkpoint: complete.json garbage": ("complete.json", garbage),
}
STORED: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "manifest: cut in half": ("manifest.json", cut),
    "manifest: garbage": ("manifest.json", garbage),
    "manifest: one digest changed": ("manifest.json", edited(content_digest="0" * 64)),
    "manifest: of a newer schema": ("manifest.json", edited(schema_version=2)),
    "artifact: model.safetensors cut in half": ("files/model/model.safetensors", cut),
    "artifact: one bit of model.safetensors changed": ("files/model/model.safetensors", flip),
    "artifact: verified.json garbage": ("verified.json", garbage),
}
WORK = {
    "work directory: result.json garbage": ("result.json", "[1, 2"),
    "work directory: result.json of another shape": ("result.json", '{"metrics": 5, "unknown": 1}'),
    "work directory: finished.json of another shape": ("finished.json", '{"files": {}}'),
    "work directory: error.json of another shape": ("error.json", '{"exit_code": "eleven"}'),
    "work directory: progress.json of another shape": ("progress.json", '{"done": "many"}'),
    "work directory: attempts garbage": ("attempts", "many"),
    "work directory: metrics.jsonl torn": ("metrics.jsonl", '{"step": 1, "loss": 2.5}\n{"step": 2, "lo'),
}
FOLDER = "lock file: a folder in its place"
OTHER = (
    "lock file: garbage",
    FOLDER,
    "run record: garbage",
    "manifest: copied from another artifact",
    "all checkpoints: damaged",
)
CLOCKS = {"clock: a day forward during the stage": DAY_S, "clock: a day back during the stage": -DAY_S}


def trials(moments: int) -> list[Trial]:
    found = [Trial("4-damage", fault, stage) for fault in CHECKPOINTS for stage in ("sft", "grpo")]
    found += [Trial("4-damage", fault, "sft") for fault in (*STORED, *WORK, *OTHER)]
    return found + [Trial("4-damage", fault, stage) for fault in CLOCKS for stage in ("sft", "grpo")]


def run(lab: Lab, trial: Trial) -> dict[str, Any]:
    if trial.fault in CHECKPOINTS or trial.fault == "all checkpoints: damaged":
        return damaged_checkpoint(lab, trial)
    if trial.fault in CLOCKS:
        return jumping_clock(lab, trial)
    home = lab.home(trial.key)
    damage_stored(home, trial)
    ended = lab.run(home, "--stop-after", "format_gate")
    noticed_s, noticed = said(ended)
    if trial.fault == "manifest: of a newer schema":
        lost = [] if ended.code == 13 else [f"exit code {ended.code}"]
        went_on = "refused until the pipeline is updated or another store is chosen; nothing was deleted"
        return outcome(lost, noticed_s, error_line(ended), went_on)
    if trial.fault == FOLDER:
        lost = [] if ended.code == 13 else [f"exit code {ended.code}"]
        for lock in (home / "locks").glob("*.lock"):
            if lock.is_dir():
                lock.rmdir()
        again = lab.run(home, "--stop-after", "format_gate")
        went_on = f"refused until the folder is moved away; then {how(home, again, trial.stage)}"
        return outcome(lost + losses(home, "format_gate"), noticed_s, error_line(ended), went_on)
    return outcome(losses(home, "format_gate"), noticed_s, noticed, how(home, ended, trial.stage)) | {
        "same_result": compare(lab, home, "sft")
    }


def outcome(lost: list[str], noticed_s: float | None, noticed: str, went_on: str) -> dict[str, Any]:
    seconds = None if noticed_s is None else round(noticed_s, 1)
    return {"lost": lost, "noticed_s": seconds, "noticed": noticed, "went_on": went_on}


def how(home: Path, ended: Ended, stage: str) -> str:
    if ended.code:
        return error_line(ended)
    made = [name for name, action in actions(home).items() if action == "made"]
    manifest = latest(home, stage)
    resumed = f", resumed from step {manifest.resumed_from_step}" if manifest and manifest.resumed_from_step else ""
    return f"made again: {', '.join(made)}{resumed}; the rest reused" if made else "all reused"


def damage_stored(home: Path, trial: Trial) -> None:
    """Do to the home what the trial says; where a stage has to run for it to matter, its artifact is removed."""
    opened = store(home)
    manifest = opened.find(f"{trial.stage}:latest")
    place = Path(opened.uri(manifest)).parent
    work = home / "work" / f"{trial.stage}-{manifest.fingerprint[:16]}"
    if trial.fault in STORED:
        name, change = STORED[trial.fault]
        rewrite(place / name, change)
    elif trial.fault == "manifest: copied from another artifact":
        other = Path(opened.uri(opened.find("grpo:latest"))).read_bytes()
        rewrite(place / "manifest.json", lambda _: other)
    elif trial.fault == "run record: garbage":
        for path in (home / "store" / "runs").glob("*.json"):
            rewrite(path, garbage)
    else:
        opened.remove(manifest)
        if trial.fault in WORK:
            name, text = WORK[trial.fault]
            (work / "out").mkdir(parents=True)
            (work / name).write_text(text)
        lock = home / "locks" / f"{work.name}.lock"
        lock.parent.mkdir(parents=True, exist_ok=True)
        if trial.fault == "lock file: garbage":
            lock.write_bytes(b"\xff" * 5000)
        elif trial.fault == FOLDER:
            lock.mkdir()


def interrupted(lab: Lab, home: Path, stage: str, env: dict[str, str] | None = None) -> Path:
    """Start a trainer, kill the flow and all that is its own after three checkpoints, and return the work directory."""
    process = lab.start(lab.command(home, "--stop-after", stage), home / "first.log", env)

    def three() -> bool:
        marks = list((home / "work").glob(f"{stage}-*/checkpoints/*/complete.json"))
        return len(marks) >= 2 and max(int(mark.parent.name.rpartition("-")[2]) for mark in marks) >= 3

    if wait_for(three, 300, 0.02) is None:
        raise RuntimeError("no checkpoint was made")
    os.kill(process.pid, 9)
    process.wait()
    if wait_for(lambda: not below(home), 20) is None:
        raise RuntimeError("processes are left")
    end(process)
    (work,) = (home / "work").glob(f"{stage}-*")
    return work


def damaged_checkpoint(lab: Lab, trial: Trial) -> dict[str, Any]:
    home = lab.home(trial.key, trial.stage)
    work = interrupted(lab, home, trial.stage)
    step = lambda folder: int(folder.name.rpartition("-")[2])  # noqa: E731
    folders = sorted((work / "checkpoints").glob("checkpoint-*"), key=step)
    complete = [folder for folder in folders if (folder / "complete.json").exists()]
    if trial.fault == "all checkpoints: damaged":
        damaged, expected = complete, None
        for folder in complete:
            rewrite(folder / "optimizer.pt", flip)
    else:
        damaged, expected = complete[-1:], step(complete[-2])
        name, change = CHECKPOINTS[trial.fault]
        rewrite(complete[-1] / name, change)
    ended = lab.run(home, "--stop-after", trial.stage)
    made = latest(home, trial.stage)
    resumed = made.resumed_from_step if made else -1
    lost = losses(home, trial.stage)
    if resumed != expected:
        lost.append(f"resumed from step {resumed}, not {expected}")
    went_on = f"resumed from step {resumed} instead of {step(damaged[-1])}" if resumed else "started over"
    result = outcome(lost, *said(ended), went_on if ended.code == 0 else error_line(ended))
    return {**result, "same_result": compare(lab, home, trial.stage)}


def jumping_clock(lab: Lab, trial: Trial) -> dict[str, Any]:
    """`clock.c` shifts the wall clock of every process of the run by what a file says, which changes mid-stage."""
    library, shift = lab.folder / "clock.so", lab.folder / "clock.shift"
    if not library.exists():
        source = Path(__file__).with_name("clock.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"], check=True)
    home = lab.home(trial.key, trial.stage)
    shift.write_text("0")
    env = {"LD_PRELOAD": str(library), "CLOCK_SHIFT_FILE": str(shift)}
    command = lab.command(home, "--stop-after", trial.stage)
    process = lab.start(command, home / "first.log", env)
    try:
        wait_for(lambda: list((home / "work").glob(f"{trial.stage}-*/checkpoints/*/complete.json")), 300, 0.02)
        shift.write_text(str(CLOCKS[trial.fault]))
        code = process.wait(timeout=300)
    finally:
        end(process)
    text = (home / "first.log").read_text(errors="replace")
    again = lab.run(home, "--stop-after", trial.stage, env=env)
    shift.write_text("0")
    back = lab.run(home, "--stop-after", trial.stage)
    lost = losses(home, trial.stage)
    lost += [f"exit code {value}" for value in (code, again.code, back.code) if value]
    if set(actions(home).values()) != {"reused"}:
        lost.append(f"not reused afterwards: {actions(home)}")
    made = record(home)
    _, noticed = said(Ended(code, [(0.0, line) for line in text.splitlines()], 0.0))
    went_on = "the stage went on and was stored; later runs, with the clock right or wrong, reused it"
    result = outcome(lost, None, noticed, went_on)
    return {**result, "status": made.get("status"), "same_result": compare(lab, home, trial.stage)}


AREA = Area("Damaged files and a clock that jumps", trials, run, with_server)
