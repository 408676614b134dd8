"""Which GPUs are there, who uses them, and one stage at a time on each: with a stand-in for nvidia-smi."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from artifacts.locks import file_lock, lock_holder
from tasks.process.gpu import gpu_processes, hardware, take_gpu, visible_gpus

TWO = "0, GPU-bbb, 1024, 81559\n1, GPU-aaa, 3, 81559\n"
USERS = "GPU-bbb, 4321, /usr/bin/python3, 1000 MiB\n"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """A machine whose nvidia-smi prints this; locks go to a folder of the test's."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def make(gpus: str = TWO, users: str = USERS, code: int = 0) -> Path:
        tools = tmp_path / "bin"
        tools.mkdir(exist_ok=True)
        (tools / "gpus").write_text(gpus)
        (tools / "users").write_text(users)
        script = tools / "nvidia-smi"
        script.write_text(
            f'#!/bin/sh\ncase "$1" in *memory.total*) cat {tools}/gpus;; *compute-apps*) cat {tools}/users;; esac\n'
            f"exit {code}\n"
        )
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
        return tmp_path / "grpo-pipeline-gpu"

    return make


def test_no_nvidia_smi_no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert visible_gpus() == [] and gpu_processes("GPU-aaa") == []
    with ExitStack() as stack:
        assert take_gpu(stack, print) == []


def test_what_the_driver_lists(machine: Callable[..., Path]) -> None:
    machine()
    assert visible_gpus() == [
        {"index": "0", "uuid": "GPU-bbb", "used": "1024", "total": "81559"},
        {"index": "1", "uuid": "GPU-aaa", "used": "3", "total": "81559"},
    ]
    assert gpu_processes("GPU-bbb") == ["4321, /usr/bin/python3, 1000 MiB"]
    assert gpu_processes("GPU-aaa") == []


def test_what_a_stage_computes_on(machine: Callable[..., Path]) -> None:
    machine(gpus="0, GPU-bbb, 1024, 81559, NVIDIA H100, 80GB\n1, GPU-aaa, 3, 81559, NVIDIA A100\n")
    cores = len(os.sched_getaffinity(0))
    assert hardware(True) == {"gpus": ["NVIDIA H100, 80GB", "NVIDIA A100"], "cpus": cores}
    assert hardware(False) == {"gpus": [], "cpus": cores}


def test_a_driver_that_fails(machine: Callable[..., Path]) -> None:
    machine(gpus="No devices were found\n", code=6)
    assert visible_gpus() == []


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("", []),
        ("-1", []),
        ("0", ["0"]),
        ("1,0", ["0", "1"]),
        (" 1 ", ["1"]),
        ("GPU-aaa", ["1"]),
        ("GPU-b", ["0"]),
        ("7", []),
    ],
)
def test_cuda_visible_devices(
    machine: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, visible: str, expected: list[str]
) -> None:
    machine()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu["index"] for gpu in visible_gpus()] == expected


def test_locks_are_taken_in_one_order_and_freed(machine: Callable[..., Path]) -> None:
    folder = machine()
    said: list[str] = []
    with ExitStack() as stack:
        descriptors = take_gpu(stack, said.append)
        assert [os.readlink(f"/proc/self/fd/{fd}").rsplit("/")[-1] for fd in descriptors] == [
            "GPU-aaa.lock",
            "GPU-bbb.lock",
        ]
        assert all(os.get_inheritable(fd) for fd in descriptors)
        assert lock_holder(folder / "GPU-aaa.lock") is not None
    assert lock_holder(folder / "GPU-aaa.lock") is None
    assert said == ["GPU 0: 1024 of 81559 MiB are used by 4321, /usr/bin/python3, 1000 MiB"]


def test_other_users_may_lock_too_whatever_the_umask(machine: Callable[..., Path]) -> None:
    folder = machine()
    before = os.umask(0o077)
    try:
        with ExitStack() as stack:
            take_gpu(stack, print)
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o777
    assert stat.S_IMODE((folder / "GPU-aaa.lock").stat().st_mode) == 0o666


def test_a_second_stage_waits_until_the_first_is_dead(machine: Callable[..., Path]) -> None:
    """By kill -9, too: the kernel frees the lock."""
    folder = machine(gpus="0, GPU-aaa, 3, 81559\n", users="")
    code = (
        "import sys, time; from pathlib import Path; from artifacts.locks import file_lock\n"
        "with file_lock(Path(sys.argv[1])):\n    print('held', flush=True); time.sleep(60)"
    )
    argv = [sys.executable, "-c", code, str(folder / "GPU-aaa.lock")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        said: list[str] = []

        def say(text: str) -> None:
            said.append(text)
            holder.kill()

        with ExitStack() as stack:
            assert len(take_gpu(stack, say)) == 1
    assert len(said) == 1 and said[0].startswith("waiting for the GPU (waiting for GPU-aaa.lock: held by process ")
    with file_lock(folder / "GPU-aaa.lock", timeout_s=0):
        pass
