"""What the machine has, against what the run needs: findings on memory and disk. No torch."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tasks.findings import Finding
from tasks.preflight.memory import gigabytes
from tasks.process.gpu import visible_gpus

TIGHT = 0.8
"""Above this share of what is there a need is a warning."""

IMPOSSIBLE = 2.0
"""Part of the need is estimated: only a need of twice what is there is taken for impossible by itself."""


@dataclass(frozen=True)
class Machine:
    """Bytes that are there: free host memory, total memory per visible GPU, and free disk."""

    host: int
    gpus: tuple[int, ...]
    disk: int


def read_machine(folder: Path) -> Machine:
    """Measure this machine; `folder` is on the disk that the run writes to."""
    # nvidia-smi says `[N/A]` of a GPU that shares the host's memory.
    shared = int(psutil.virtual_memory().total)
    gpus = tuple(int(gpu["total"]) * 2**20 if gpu["total"].isdigit() else shared for gpu in visible_gpus())
    return Machine(free_host_memory(), gpus, shutil.disk_usage(folder).free)


def free_host_memory(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Memory that this process may still take: the machine's, or what a container's limit leaves of it."""
    available = int(psutil.virtual_memory().available)
    try:
        limit = int((cgroup / "memory.max").read_text())
        used = int((cgroup / "memory.current").read_text())
        cached = [
            line for line in (cgroup / "memory.stat").read_text().splitlines() if line.startswith("inactive_file ")
        ]
    except (OSError, ValueError):  # no container, or one without a limit ("max")
        return available
    # Cached file contents count as used, but are given up when memory is needed.
    return max(0, min(available, limit - used + sum(int(line.split()[1]) for line in cached)))


def check_memory(plan: Mapping[str, Any], machine: Machine) -> list[Finding]:
    """One finding for the device that computes, and one for the host beside a GPU."""
    arithmetic = "; ".join(plan["arithmetic"])
    if not machine.gpus:
        return [_compare("memory.host", plan["certain"], plan["peak"], machine.host, "free host memory", arithmetic)]
    smallest = min(machine.gpus)
    return [
        _compare("memory.gpu", plan["certain"], plan["peak"], smallest, "GPU memory", arithmetic),
        _compare("memory.host", 0, plan["host"], machine.host, "free host memory", "weights while read and saved"),
    ]


def check_disk(plan: Mapping[str, int], machine: Machine) -> Finding:
    """What the whole run writes against what is free; stages that are stored already need less."""
    parts = " + ".join(f"{name} {size / 1e9:.2f}" for name, size in plan.items() if name != "total" and size)
    evidence = f"{parts} = {gigabytes(plan['total'])} to write, {gigabytes(machine.disk)} free"
    fix = "free disk space (`grpo-pipeline artifacts gc`), name fewer export.formats, or choose another run.home"
    if plan["total"] > machine.disk:
        return Finding("disk", "fail", evidence, fix)
    if plan["total"] > TIGHT * machine.disk:
        return Finding("disk", "warn", evidence, fix)
    return Finding("disk", "ok", evidence)


def _compare(name: str, certain: int, peak: int, there: int, what: str, arithmetic: str) -> Finding:
    evidence = f"{gigabytes(there)} {what}; {gigabytes(peak)} at most needed ({arithmetic})"
    fix = (
        "lower grpo.per_device_train_batch_size and sft.per_device_train_batch_size (raise gradient_accumulation_steps "
        "instead), set gradient_checkpointing, method: lora or optim: adamw_8bit, or lower grpo.max_completion_length"
    )
    if certain > there or peak > IMPOSSIBLE * there:
        return Finding(name, "fail", f"{evidence}; of it {gigabytes(certain)} are certain", fix)
    if peak > TIGHT * there:
        return Finding(name, "warn", evidence, fix)
    return Finding(name, "ok", evidence)
