"""3. A full disk, a read-only store, an object store that fails, and a network that goes away for a minute."""

from __future__ import annotations

import logging
import os
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from artifacts.store import open_store
from benchmarks.reliability.area import Area
from benchmarks.reliability.lab import (
    RESULT_FILES,
    Ended,
    Lab,
    error_line,
    latest,
    losses,
    said,
    wait_for,
)
from benchmarks.reliability.prefect_server import HTTP, with_server
from benchmarks.reliability.proxy import Proxy
from benchmarks.reliability.results import Trial
from tasks.chain import NAMES

KIND = "3-storage"
KEYS = {"AWS_ACCESS_KEY_ID": "AKIARELIABILITY", "AWS_SECRET_ACCESS_KEY": "not-a-real-secret", "AWS_REGION": "us-east-1"}
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
    with small_disk(home / "store", "64m"):
        ended = during(lab, home, stage, lambda: remount(home / "store", "ro"), ["run.min_free_gb=0"], None)
        lost = [] if ended.code == 13 else [f"exit code {ended.code} instead of 13: {error_line(ended)}"]
        remount(home / "store", "rw")
        return outcome(home, stage, ended, *only_stored(lab, home, stage, lost))


def only_stored(lab: Lab, home: Path, stage: str, lost: list[str]) -> tuple[Ended, list[str], str]:
    """Run again: what was finished must only be stored, by no further process."""
    again = lab.run(home, "--stop-after", stage, sets=["run.min_free_gb=0"])
    made = latest(home, stage)
    if made is not None and made.attempt != 1:
        lost = [*lost, f"the stage ran {made.attempt} times"]
    return again, lost, "run again: what was finished was only stored, not made again"


def during(
    lab: Lab,
    home: Path,
    stage: str,
    act: Callable[[], None],
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


# Object store --------------------------------------------------------------------------------------------------------


def on_s3(mode: str, seconds: float, *, download: bool = False) -> Callable[[Lab, Path, str], dict[str, Any]]:
    """The store is a bucket behind a proxy, which misbehaves for `seconds` from the end of the stage's process (or, with
    `download`, the start of the run) on."""

    def carry_out(lab: Lab, home: Path, stage: str) -> dict[str, Any]:
        from moto.server import ThreadedMotoServer

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        proxy = Proxy(("127.0.0.1", server.get_host_and_port()[1]))
        try:
            return through(lab, home, stage, proxy, f"http://127.0.0.1:{server.get_host_and_port()[1]}")
        finally:
            proxy.close()
            server.stop()

    def through(lab: Lab, home: Path, stage: str, proxy: Proxy, direct: str) -> dict[str, Any]:
        url = bucket_with(lab, stage, direct)
        env = {**KEYS, "AWS_ENDPOINT_URL": proxy.url, "XDG_CACHE_HOME": str(home / "cache")}
        sets = [f"run.store={url}", "run.retry_delay_s=10"]
        began = [0.0]

        def break_it() -> None:
            began[0] = time.monotonic()
            proxy.set(mode)
            threading.Timer(seconds, proxy.set, ("pass",)).start()

        if download:
            # The inputs of the stage are fetched when it begins; everything before is only looked at.
            proxy.mode = mode
            threading.Timer(seconds, proxy.set, ("pass",)).start()
            first = lab.run(home, "--stop-after", stage, sets=sets, env=env, timeout=900)
        else:
            first = during(lab, home, stage, break_it, sets, env, "result.json")
        hits = proxy.hits
        if not hits:
            raise RuntimeError("the fault met no connection: nothing was tried")
        proxy.set("pass")
        again = lab.run(home, "--stop-after", stage, sets=sets, env=env) if first.code else None
        opened = open_store(
            url,
            storage_options={
                "endpoint_url": direct,
                "key": KEYS["AWS_ACCESS_KEY_ID"],
                "secret": KEYS["AWS_SECRET_ACCESS_KEY"],
            },
            cache=home / "check",
        )
        stored = {manifest.stage: manifest for manifest in opened.list()}
        lost = [f"{name} is gone" for name in NAMES[: NAMES.index(stage) + 1] if name not in stored]
        lost += [f"{name}: {text}" for name, one in stored.items() for text in opened.verify(one, deep=True)]
        ended = again or first
        lost += [f"exit code {ended.code}: {error_line(ended)}"] if ended.code else []
        base = latest(lab.base, stage)
        theirs = {entry.path: entry.sha256 for entry in base.files} if base else {}
        mine = stored[stage].files if stage in stored else ()
        differ = [e.path for e in mine if e.path.endswith(RESULT_FILES) and theirs.get(e.path) != e.sha256]
        at, words = said(first)
        how = (
            "the run rode it out"
            if first.code == 0
            else f"exit code {first.code}; run again: stored (attempt {stored[stage].attempt if stage in stored else '-'})"
        )
        return {
            "lost": lost,
            "noticed_s": at,
            "noticed": error_line(first) or words,
            "went_on": how,
            "faulty_connections": hits,
            "first_exit_code": first.code,
            "differ": differ,
            "seconds": round(first.seconds, 1),
        }

    return carry_out


def bucket_with(lab: Lab, stage: str, endpoint: str) -> str:
    """A new bucket with what the stages before `stage` made."""
    import s3fs

    fs = s3fs.S3FileSystem(
        key=KEYS["AWS_ACCESS_KEY_ID"],
        secret=KEYS["AWS_SECRET_ACCESS_KEY"],
        endpoint_url=endpoint,
        client_kwargs={"region_name": "us-east-1"},
        skip_instance_cache=True,
    )
    bucket = f"reliability-{uuid.uuid4().hex[:12]}"
    HTTP.put(f"{endpoint}/{bucket}").raise_for_status()
    for name in NAMES[: NAMES.index(stage)]:
        for path in (lab.base / "store" / "artifacts" / name).rglob("*"):
            if path.is_file() and path.name != "verified.json":
                fs.put_file(str(path), f"{bucket}/store/{path.relative_to(lab.base / 'store').as_posix()}")
    return f"s3://{bucket}/store"


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
