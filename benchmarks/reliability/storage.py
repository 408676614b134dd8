"""3. A full disk, a read-only store, an object store that fails, and a network that goes away for a minute."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.reliability.area import Area
from benchmarks.reliability.lab import Ended, Lab, during, error_line, latest, losses, said
from benchmarks.reliability.object_store import on_s3
from benchmarks.reliability.prefect_server import with_server
from benchmarks.reliability.results import Trial

KIND = "3-storage"
OUTAGE_S = 60.0


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    """A tmpfs of this size at `folder`, keeping what is in it."""
    if os.geteuid():
        raise PermissionError("mounting a tmpfs needs root")
    aside = folder.with_name(folder.name + "-content")
    folder.mkdir(parents=True, exist_ok=True)
    folder.rename(aside)
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    try:
        subprocess.run(["cp", "-a", f"{aside}/.", str(folder)], check=True)
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def remount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)


@contextmanager
def read_only(store: Path) -> Iterator[None]:
    """Every folder of the store but the locks, which a run holds open and which would keep the mount busy."""
    folders = [path for path in store.iterdir() if path.is_dir() and path.name != "locks"]
    for folder in folders:
        subprocess.run(["mount", "--bind", str(folder), str(folder)], check=True)
        remount(folder, "bind,ro")
    try:
        yield
    finally:
        for folder in folders:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def free_mb(folder: Path) -> float:
    usage = os.statvfs(folder)
    return usage.f_bavail * usage.f_frsize / 1e6


def leave(folder: Path, megabytes: float) -> Path:
    """Fill the disk up to this much."""
    ballast = folder / "ballast"
    with ballast.open("wb") as file:
        file.write(bytes(max(0, int((free_mb(folder) - megabytes) * 1e6))))
    return ballast


def outcome(home: Path, stage: str, first: Ended, again: Ended | None, lost: list[str], went_on: str) -> dict[str, Any]:
    at, words = said(first)
    ended = again or first
    if ended.code:
        lost = [*lost, f"exit code {ended.code}: {error_line(ended)}"]
    return {
        "lost": lost + losses(home, stage),
        "noticed_s": at,
        "noticed": error_line(first) or words,
        "first_exit_code": first.code,
        "went_on": went_on,
    }


def work_disk_full(lab: Lab, home: Path, stage: str) -> dict[str, Any]:
    """Room for about one and a half checkpoints; then more room, and the same run again."""
    with small_disk(home / "work", "34m"):
        first = lab.run(home, "--stop-after", stage, sets=["run.min_free_gb=0"])
        lost = [] if first.code == 13 else [f"exit code {first.code} instead of 13: {error_line(first)}"]
        remount(home / "work", "size=500m")
        again = lab.run(home, "--stop-after", stage, sets=["run.min_free_gb=0"])
        made = latest(home, stage)
        step = made.resumed_from_step if made else None
        how = f"resumed from step {step}" if step else "made from the start (no checkpoint had fitted)"
        return outcome(home, stage, first, again, lost, f"with more room: {how}")


def too_little_room_at_start(lab: Lab, home: Path, stage: str) -> dict[str, Any]:
    with small_disk(home / "work", "34m"):
        first = lab.run(home / "work" / "home", "--stop-after", stage)
    lost = [] if first.code == 13 and first.seconds < 30 else [f"exit code {first.code} after {first.seconds:.0f} s"]
    return outcome(home, stage, first, None, lost, "refused before anything ran") | {"lost": lost}


def store_full(lab: Lab, home: Path, stage: str) -> dict[str, Any]:
    with small_disk(home / "store", "64m"):
        ballast = leave(home / "store", 1.0)
        first = lab.run(home, "--stop-after", stage, sets=["run.min_free_gb=0"])
        lost = [] if first.code == 13 else [f"exit code {first.code} instead of 13: {error_line(first)}"]
        lost += [] if latest(home, stage) is None else ["a half-written artifact was accepted"]
        ballast.unlink()
        return outcome(home, stage, first, *only_stored(lab, home, stage, lost))


def read_only_from_the_start(lab: Lab, home: Path, stage: str) -> dict[str, Any]:
    with small_disk(home / "store", "64m"):
        remount(home / "store", "ro")
        first = lab.run(home, "--stop-after", stage, sets=["run.min_free_gb=0"])
        lost = (
            [] if first.code == 13 and first.seconds < 30 else [f"exit code {first.code} after {first.seconds:.0f} s"]
        )
        remount(home / "store", "rw")
        again = lab.run(home, "--stop-after", stage, sets=["run.min_free_gb=0"])
        return outcome(home, stage, first, again, lost, "refused before anything ran; writable again: it ran")


def read_only_meanwhile(lab: Lab, home: Path, stage: str) -> dict[str, Any]:
    with ExitStack() as stack:
        ended = during(
            lab, home, stage, lambda: stack.enter_context(read_only(home / "store")), ["run.min_free_gb=0"], None
        )
    lost = [] if ended.code == 13 else [f"exit code {ended.code} instead of 13: {error_line(ended)}"]
    return outcome(home, stage, ended, *only_stored(lab, home, stage, lost))


def only_stored(lab: Lab, home: Path, stage: str, lost: list[str]) -> tuple[Ended, list[str], str]:
    """Run again: what was finished must only be stored, by no further process."""
    again = lab.run(home, "--stop-after", stage, sets=["run.min_free_gb=0"])
    made = latest(home, stage)
    if made is not None and made.attempt != 1:
        lost = [*lost, f"the stage ran {made.attempt} times"]
    return again, lost, "run again: what was finished was only stored, not made again"


FAULTS: dict[str, Callable[[Lab, Path, str], dict[str, Any]]] = {
    "disk full: work directory": work_disk_full,
    "disk full: work directory, seen at the start": too_little_room_at_start,
    "disk full: store": store_full,
    "read-only store: from the start": read_only_from_the_start,
    "read-only store: from the middle of the stage": read_only_meanwhile,
    "S3: answers 500 for 20 s": on_s3("500", 20),
    "S3: answers 500 for ten minutes": on_s3("500", 600),
    "S3: accepts and says nothing for 45 s": on_s3("hang", 45),
    "S3: connection cut in the middle of an upload, for 30 s": on_s3("cut-upload", 30),
    "S3: connection cut in the middle of a download, for 30 s": on_s3("cut-download", 30, download=True),
    "network: gone for a minute": on_s3("down", OUTAGE_S),
}


def trials(moments: int) -> list[Trial]:
    return [
        Trial(KIND, fault, stage)
        for fault in FAULTS
        for stage in (("sft", "grpo") if fault == "disk full: work directory" else ("sft",))
    ]


def run(lab: Lab, trial: Trial) -> dict[str, Any]:
    return FAULTS[trial.fault](lab, lab.home(trial.key, trial.stage), trial.stage)


AREA = Area("Disks, object stores and the network", trials, run, with_server)
