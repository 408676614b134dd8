"""One GPU stage at a time per GPU, whoever starts it: an OS lock per device, freed by the kernel on any death."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from artifacts.faults import translated
from artifacts.locks import file_lock


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


def hardware(with_gpus: bool) -> dict[str, Any]:
    """What a stage computes on: the names of its GPUs and how many CPU cores it may use."""
    gpus = [gpu.get("name", "GPU") for gpu in visible_gpus()] if with_gpus else []
    return {"gpus": gpus, "cpus": len(os.sched_getaffinity(0))}


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


def _lock_for_all_users(uuid: str) -> Path:
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


def take_gpu(stack: ExitStack, log: Callable[[str], None]) -> list[int]:
    """Hold every visible GPU's lock until `stack` closes; returns the descriptors for the stage to inherit.

    Locks lie in the machine's temporary folder, so that all users of a GPU meet. They are taken in the order of the
    uuids: two stages that want the same GPUs cannot block one another half way. Memory that others hold is reported.
    """
    descriptors = []
    for gpu in sorted(visible_gpus(), key=lambda gpu: gpu["uuid"]):
        path = _lock_for_all_users(gpu["uuid"])
        descriptors.append(
            stack.enter_context(file_lock(path, on_wait=lambda text: log(f"waiting for the GPU ({text})")))
        )
        others = gpu_processes(gpu["uuid"])
        if others:
            log(f"GPU {gpu['index']}: {gpu['used']} of {gpu['total']} MiB are used by {'; '.join(others)}")
    return descriptors
