"""One stage at a time per GPU, and as many GPUs as the stage has processes: an OS lock per device, freed by the kernel on any death."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from artifacts.faults import translated
from artifacts.locks import REPEAT_S, file_lock, lock_holder
from tasks.errors import ConfigError, Retryable

POLL_S = 1.0
"""Pause between two looks for a free GPU."""


def visible_gpus() -> list[dict[str, str]]:
    """Index, uuid, used and total memory (MiB) and name of the GPUs that CUDA may use; empty without nvidia-smi."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    query = ["--query-gpu=index,uuid,memory.used,memory.total,name", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run([tool, *query], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    rows = [[part.strip() for part in line.split(",", 4)] for line in done.stdout.splitlines() if line.count(",") >= 3]
    gpus = [dict(zip(("index", "uuid", "used", "total", "name"), row, strict=False)) for row in rows]
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return gpus
    wanted = [part.strip() for part in chosen.split(",") if part.strip()]
    return [gpu for gpu in gpus if gpu["index"] in wanted or any(gpu["uuid"].startswith(w) for w in wanted)]


def gpu_processes(uuid: str) -> list[str]:
    """`pid name memory` of the processes that hold memory on a GPU."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    query = ["--query-compute-apps=gpu_uuid,pid,process_name,used_memory", "--format=csv,noheader"]
    try:
        done = subprocess.run([tool, *query], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.partition(",")[2].strip() for line in done.stdout.splitlines() if line.startswith(uuid)]


def lock_for_all_users(uuid: str) -> Path:
    """The lock file of a GPU, which every user of the machine may open whatever the umask of the first one.

    Its folder is not sticky: in a sticky one Linux forbids opening other users' files (`fs.protected_regular`).
    """
    path = Path(tempfile.gettempdir()) / "grpo-pipeline-gpu" / f"{uuid}.lock"
    with translated(str(path), "make the lock of a GPU"):
        path.parent.mkdir(exist_ok=True)
        path.touch()
        for place, mode in ((path.parent, 0o777), (path, 0o666)):
            with contextlib.suppress(PermissionError):  # another user's, who has opened it to all
                place.chmod(mode)
    return path


@dataclass(frozen=True)
class Held:
    """What a stage holds while it runs.

    Attributes:
        descriptors: locks for the stage process to inherit, so that they are held until it is gone.
        environment: what makes the stage process see these GPUs only.
        gpus: names of the GPUs.
    """

    descriptors: tuple[int, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    gpus: tuple[str, ...] = ()

    def hardware(self) -> dict[str, Any]:
        """What the stage computes on: the names of its GPUs and how many CPU cores it may use."""
        return {"gpus": list(self.gpus), "cpus": len(os.sched_getaffinity(0))}


def take_gpu(stack: ExitStack, log: Callable[[str], None], poll_s: float = POLL_S, count: int = 1) -> Held:
    """Hold `count` of the visible GPUs, if there are any, until `stack` closes; wait while too many are held.

    Those with the least memory in use are tried first. Locks lie in the machine's temporary folder, so that all users
    of a GPU meet. Memory that others hold without a lock is reported, not waited for. While there are fewer free GPUs than
    wanted none is kept, so that two stages cannot wait for each other's.

    Raises:
        ConfigError: more GPUs are wanted than are visible.
    """
    gpus = sorted(visible_gpus(), key=lambda gpu: (int(gpu["used"]) if gpu["used"].isdigit() else 0, gpu["uuid"]))
    if not gpus:
        return Held()
    if count > len(gpus):
        raise ConfigError(
            f"{count} GPUs are wanted and {len(gpus)} are visible",
            where="parallel.processes",
            fix=f"set parallel.processes={len(gpus)}, or show the run more GPUs (CUDA_VISIBLE_DEVICES)",
        )
    paths = {gpu["uuid"]: lock_for_all_users(gpu["uuid"]) for gpu in gpus}
    said, said_at = "", 0.0
    while True:
        with ExitStack() as mine:
            taken, descriptors = _free(gpus, paths, count, mine)
            if len(taken) == count:
                stack.enter_context(mine.pop_all())
                return _held(taken, descriptors, log)
        holders = [f"GPU {gpu['index']}: {lock_holder(paths[gpu['uuid']]) or 'just freed'}" for gpu in gpus]
        text = "; ".join(holders)
        if text != said or time.monotonic() - said_at >= REPEAT_S:
            log(f"waiting for {'a GPU' if count == 1 else f'{count} GPUs'} ({text})")
            said, said_at = text, time.monotonic()
        time.sleep(poll_s)


def _free(
    gpus: Sequence[Mapping[str, str]], paths: Mapping[str, Path], count: int, stack: ExitStack
) -> tuple[list[Mapping[str, str]], list[int]]:
    """At most `count` GPUs that nobody holds, locked by `stack`, with the descriptors of their locks."""
    taken: list[Mapping[str, str]] = []
    descriptors = []
    for gpu in gpus:
        if len(taken) == count:
            break
        try:
            descriptors.append(stack.enter_context(file_lock(paths[gpu["uuid"]], timeout_s=0)))
        except Retryable:  # held
            continue
        taken.append(gpu)
    return taken, descriptors


def _held(taken: Sequence[Mapping[str, str]], descriptors: Sequence[int], log: Callable[[str], None]) -> Held:
    for gpu in taken:
        others = gpu_processes(gpu["uuid"])
        if others:
            log(f"GPU {gpu['index']}: {gpu['used']} of {gpu['total']} MiB are used by {'; '.join(others)}")
    visible = ",".join(gpu["index"] for gpu in taken)
    environment = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": visible}
    return Held(tuple(descriptors), environment, tuple(gpu.get("name", "GPU") for gpu in taken))
