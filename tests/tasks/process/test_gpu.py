"""Which GPUs are there, who uses them, and one stage at a time on each: with a stand-in for nvidia-smi."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

import tasks.execution
from artifacts.locks import file_lock, lock_holder
from artifacts.store import open_store
from pipeline_config.loading import load_config
from tasks.errors import ConfigError
from tasks.execution import execute
from tasks.process.gpu import Held, gpu_processes, take_gpu, visible_gpus
from tasks.stage import Settings, Stage

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
        assert take_gpu(stack, print) == Held()


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
    with ExitStack() as stack:
        assert take_gpu(stack, print).hardware() == {"gpus": ["NVIDIA A100"], "cpus": cores}
        assert take_gpu(stack, print).hardware() == {"gpus": ["NVIDIA H100, 80GB"], "cpus": cores}
    assert Held().hardware() == {"gpus": [], "cpus": cores}


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


def test_a_stage_gets_the_gpu_with_the_most_room(machine: Callable[..., Path]) -> None:
    folder = machine()
    said: list[str] = []
    with ExitStack() as stack:
        held = take_gpu(stack, said.append)
        assert held.environment == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1"}
        (descriptor,) = held.descriptors
        assert os.readlink(f"/proc/self/fd/{descriptor}").endswith("/GPU-aaa.lock") and os.get_inheritable(descriptor)
        assert lock_holder(folder / "GPU-aaa.lock") is not None and lock_holder(folder / "GPU-bbb.lock") is None
        with ExitStack() as second:
            assert take_gpu(second, said.append).environment["CUDA_VISIBLE_DEVICES"] == "0"
    assert lock_holder(folder / "GPU-aaa.lock") is None
    assert said == ["GPU 0: 1024 of 81559 MiB are used by 4321, /usr/bin/python3, 1000 MiB"]


def test_a_stage_of_two_processes_gets_two_gpus_or_none(machine: Callable[..., Path]) -> None:
    folder = machine(users="")
    said: list[str] = []
    with ExitStack() as first:
        take_gpu(first, said.append)  # one is held
        with ExitStack() as second, pytest.raises(InterruptedError):
            take_gpu(second, lambda text: raise_after(said, text), count=2)
        assert lock_holder(folder / "GPU-bbb.lock") is None  # what it found free it did not keep
    assert said == [f"waiting for 2 GPUs (GPU 1: {said[0].partition('GPU 1: ')[2]}"]
    with ExitStack() as stack:
        held = take_gpu(stack, said.append, count=2)
        assert held.environment["CUDA_VISIBLE_DEVICES"] == "1,0" and len(held.descriptors) == len(held.gpus) == 2
    with ExitStack() as stack, pytest.raises(ConfigError, match="3 GPUs are wanted and 2 are visible"):
        take_gpu(stack, said.append, count=3)


def raise_after(said: list[str], text: str) -> None:
    said.append(text)
    raise InterruptedError


def test_memory_that_the_driver_does_not_tell(machine: Callable[..., Path]) -> None:
    machine(gpus="0, GPU-bbb, [N/A], [N/A]\n", users="")
    with ExitStack() as stack:
        assert take_gpu(stack, print).environment["CUDA_VISIBLE_DEVICES"] == "0"


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
            assert take_gpu(stack, say, poll_s=0.05).environment["CUDA_VISIBLE_DEVICES"] == "0"
    assert len(said) == 1 and said[0].startswith("waiting for a GPU (GPU 0: process ")
    with file_lock(folder / "GPU-aaa.lock", timeout_s=0):
        pass


WORK = """
import json, os, sys, time
from pathlib import Path

log, work = Path(sys.argv[1]), Path(sys.argv[2]).parent
device = os.environ["CUDA_VISIBLE_DEVICES"]
with log.open("a") as file:
    file.write(f"start {device}\\n")
time.sleep(0.7)
with log.open("a") as file:
    file.write(f"end {device}\\n")
(work / "out" / "value.txt").write_text(device)
(work / "result.json").write_text(json.dumps({"metrics": {}}))
"""


def test_two_gpus_run_two_stages_at_once_and_five_in_all(
    machine: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five flows under the real `execute`, on two stand-in devices: never two on one, and both are used at once."""
    machine(users="")
    (tmp_path / "work.py").write_text(WORK)
    argv = [sys.executable, "-S", str(tmp_path / "work.py"), str(tmp_path / "log")]
    monkeypatch.setattr(tasks.execution, "stage_argv", lambda spec: [*argv, str(spec)])
    stage = Stage("sft", "sft", 1, (), lambda config, parents: {"seed": config.seed})
    store = open_store(str(tmp_path / "store"))

    def flow(seed: int) -> str:
        overrides = [f"run.home={tmp_path / 'home'}", f"seed={seed}", "run.device=auto"]
        settings = Settings(load_config("tiny", overrides=overrides), store, f"run-{seed}", log=lambda text: None)
        folder = store.local_folder(execute(stage, settings, {}).manifest)
        return (folder / "value.txt").read_text()

    with ThreadPoolExecutor(5) as pool:
        devices = list(pool.map(flow, range(5)))
    assert set(devices) == {"0", "1"}
    busy: Counter[str] = Counter()
    most = 0
    for line in (tmp_path / "log").read_text().splitlines():
        what, device = line.split()
        busy[device] += 1 if what == "start" else -1
        assert busy[device] <= 1
        most = max(most, busy.total())
    assert most == 2 and busy.total() == 0
