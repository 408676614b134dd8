"""What is there against what is needed: memory, GPU memory, disk."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tasks.preflight import machine
from tasks.preflight.machine import Machine, check_disk, check_memory, free_host_memory, read_machine

GB = 10**9


def plan(peak: float, certain: float, host: float | None = None) -> dict[str, Any]:
    return {
        "peak": int(peak * GB),
        "certain": int(certain * GB),
        "host": int((peak if host is None else host) * GB),
        "arithmetic": ["sft: 1 + 1", "grpo: 2 + 2"],
    }


@pytest.mark.parametrize(
    ("peak", "certain", "status"),
    [
        (7.9, 2, "ok"),
        (8.1, 2, "warn"),  # above 80 % of 10 GB
        (15, 9, "warn"),  # the estimated part is an upper end
        (15, 10.1, "fail"),
        (20.1, 2, "fail"),  # more than twice what is there
    ],
)
def test_host_memory(peak: float, certain: float, status: str) -> None:
    (finding,) = check_memory(plan(peak, certain), Machine(10 * GB, (), 0))
    assert (finding.name, finding.status) == ("memory.host", status)
    assert "10.00 GB free host memory" in finding.evidence and "grpo: 2 + 2" in finding.evidence
    assert ("per_device_train_batch_size" in finding.fix) == (status != "ok")


def test_the_smallest_gpu_counts_and_the_host_is_looked_at_too() -> None:
    gpu, host = check_memory(plan(30, 25, host=9), Machine(10 * GB, (80 * GB, 24 * GB), 0))
    assert (gpu.name, gpu.status) == ("memory.gpu", "fail")
    assert "24.00 GB GPU memory" in gpu.evidence and "25.00 GB are certain" in gpu.evidence
    assert (host.name, host.status) == ("memory.host", "warn")


@pytest.mark.parametrize(("free", "status"), [(1000, "fail"), (1100, "warn"), (2000, "ok")])
def test_disk(free: int, status: str) -> None:
    finding = check_disk({"models": 700, "adapters": 0, "export": 301, "total": 1001}, Machine(0, (), free))
    assert (finding.name, finding.status) == ("disk", status)
    assert "models" in finding.evidence and "adapters" not in finding.evidence


def test_memory_in_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=50 * GB))
    assert free_host_memory(tmp_path / "none") == 50 * GB
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000\n")
    (tmp_path / "memory.stat").write_text("anon 600\ninactive_file 300\nactive_file 100\n")
    assert free_host_memory(tmp_path) == 50 * GB
    (tmp_path / "memory.max").write_text("4000\n")
    assert free_host_memory(tmp_path) == 4000 - 1000 + 300


def test_reading_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "visible_gpus", lambda: [{"total": "1000"}])
    found = read_machine(tmp_path)
    assert found.gpus == (1000 * 2**20,) and found.host > 0 and found.disk > 0


def test_a_gpu_that_shares_the_hosts_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "visible_gpus", lambda: [{"total": "[N/A]", "used": "[N/A]"}])
    assert read_machine(tmp_path).gpus == (psutil.virtual_memory().total,)
