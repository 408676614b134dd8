from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from artifacts.locks import file_lock, lock_holder
from tasks.errors import Retryable, StoreError

HOLD = """
import subprocess, sys, time
from pathlib import Path
from artifacts.locks import file_lock
with file_lock(Path(sys.argv[1])) as fd:
    if len(sys.argv) > 2:
        child = subprocess.Popen(["sleep", "60"], pass_fds=[fd])
        print(child.pid, flush=True)
    print("held", flush=True)
    time.sleep(60)
"""


@contextlib.contextmanager
def holder(path: Path, *args: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A process that holds the lock, and the lines that it wrote before."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path), *args],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    try:
        assert process.stdout is not None
        lines = []
        while (line := process.stdout.readline().strip()) != "held":
            assert line, "the holder died"
            lines.append(line)
        yield process, lines
    finally:
        process.kill()
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]


def test_a_free_lock_is_taken_at_once_and_names_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.lock"
    with file_lock(path) as fd:
        assert os.get_inheritable(fd)
        assert json.loads(path.read_text())["pid"] == os.getpid()
        assert f"process {os.getpid()}" in (lock_holder(path) or "")
    assert lock_holder(path) is None
    assert path.exists()
    assert lock_holder(tmp_path / "none.lock") is None


def test_kill_9_of_the_holder_frees_it(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    said: list[str] = []
    with holder(path) as (process, _):
        with pytest.raises(Retryable) as caught, file_lock(path, timeout_s=0.05, poll_s=0.01):
            pass
        assert caught.value.cause == "lock_timeout" and f"process {process.pid}" in str(caught.value)
        threading.Timer(0.3, process.send_signal, [signal.SIGKILL]).start()
        start = time.monotonic()
        with file_lock(path, on_wait=said.append, poll_s=0.02):
            assert 0.2 < time.monotonic() - start < 5
        assert len(said) == 1
        assert "a.lock" in said[0] and f"process {process.pid}" in said[0]


def test_a_child_that_inherited_it_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    with holder(path, "with-child") as (process, (child,)):
        process.kill()
        process.wait()
        try:
            assert "a process it started still holds the lock" in (lock_holder(path) or "")
            with pytest.raises(Retryable), file_lock(path, timeout_s=0.1, poll_s=0.02):
                pass
        finally:
            os.kill(int(child), signal.SIGKILL)
        with file_lock(path, timeout_s=5, poll_s=0.02):
            pass


def test_leaving_the_block_does_not_take_it_from_a_child(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    with file_lock(path) as fd:
        child = subprocess.Popen(["sleep", "60"], pass_fds=[fd])
    try:
        assert lock_holder(path) is not None
    finally:
        child.kill()
        child.wait()
    assert lock_holder(path) is None


def test_threads_exclude_each_other(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    inside, most = 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(20):
            with file_lock(path, poll_s=0.001):
                inside += 1
                most = max(most, inside)
                time.sleep(0.0005)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_an_exception_frees_it(tmp_path: Path) -> None:
    with pytest.raises(KeyError), file_lock(tmp_path / "a.lock"):
        raise KeyError
    with file_lock(tmp_path / "a.lock", timeout_s=0):
        pass


@pytest.mark.parametrize("garbage", [b"", b"\xff\x00garbage", b"[]", b'{"pid": "x"}', b"[" * 4096, b"{}" * 10000])
def test_garbage_in_the_file_is_harmless(tmp_path: Path, garbage: bytes) -> None:
    path = tmp_path / "a.lock"
    path.write_bytes(garbage)
    with file_lock(path, timeout_s=0):
        assert json.loads(path.read_text())["pid"] == os.getpid()
        path.write_bytes(garbage)
        assert "another process" in (lock_holder(path) or "")


def test_a_deleted_lock_file_is_noticed(tmp_path: Path) -> None:
    """Whoever waited on the deleted file must not believe to hold the lock that others take on the new one."""
    path = tmp_path / "a.lock"
    taken = threading.Event()
    release = threading.Event()

    def wait() -> None:
        with file_lock(path, poll_s=0.01):
            taken.set()
            release.wait(5)

    with file_lock(path):
        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.05)
        path.unlink()
    assert taken.wait(5)
    assert lock_holder(path) is not None
    release.set()
    thread.join()


def test_a_place_that_cannot_hold_a_lock(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="lock file"), file_lock(tmp_path / "file" / "a.lock"):
        pass
