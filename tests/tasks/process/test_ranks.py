"""Several ranks end together, and the stage fails with the error of the one that knows why."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tasks.process import ranks

SCRIPT = """
import json, os, signal, sys, time
sys.path.insert(0, {root!r})
rank, work = int(os.environ["RANK"]), {work!r}
def end(code, message=""):
    if message:
        name = f"error-rank{{rank}}.json" if rank else "error.json"
        json.dump({{"exit_code": code, "cause": "x", "message": message, "where": "step 3", "fix": ""}}, open(f"{{work}}/{{name}}", "w"))
    sys.exit(code)
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], int]]:
    """`run("end(3) if rank else end(0)")`: exit code of two ranks with this code."""
    root = str(Path(__file__).resolve().parents[3])
    monkeypatch.setattr(ranks, "FAILED_GRACE_S", 1.0)
    kept = [signal.getsignal(number) for number in ranks.FORWARDED]

    def start(code: str) -> int:
        path = tmp_path / "rank.py"
        path.write_text(SCRIPT.format(root=root, work=str(tmp_path)) + code)
        return ranks.run_ranks([sys.executable, str(path)], 2, tmp_path)

    yield start
    for number, handler in zip(ranks.FORWARDED, kept, strict=True):
        signal.signal(number, handler)


def error(folder: Path) -> dict[str, object]:
    data: dict[str, object] = json.loads((folder / "error.json").read_text())
    return data


def test_every_rank_gets_the_variables_of_the_rendezvous() -> None:
    one, two = ranks.environments(2, {"PATH": "/bin", "RANK": "9", "WORLD_SIZE": "4"}, cores=6)
    assert (one["RANK"], two["RANK"], two["LOCAL_RANK"]) == ("0", "1", "1")
    assert one["WORLD_SIZE"] == two["WORLD_SIZE"] == "2" and one["MASTER_PORT"] == two["MASTER_PORT"]
    assert one["OMP_NUM_THREADS"] == "3" and one["PATH"] == "/bin"
    assert ranks.environments(2, {"OMP_NUM_THREADS": "1"}, cores=6)[0]["OMP_NUM_THREADS"] == "1"


def test_all_is_well(run: Callable[[str], int], tmp_path: Path) -> None:
    assert run("end(0)") == 0
    assert not (tmp_path / "error.json").exists()


def test_the_error_of_another_rank_becomes_the_stages(run: Callable[[str], int], tmp_path: Path) -> None:
    # Rank 0 sees only that the connection broke, and would otherwise be retried.
    code = "end(21, 'the reward fails') if rank else (time.sleep(0.3), end(75, 'connection closed by peer'))"
    assert run(code) == 21
    assert error(tmp_path)["message"] == "the reward fails" and error(tmp_path)["where"] == "step 3 (rank 1)"


def test_rank_0_goes_first_among_equals(run: Callable[[str], int], tmp_path: Path) -> None:
    assert run("end(40 if rank else 21, f'of rank {rank}')") == 21
    assert error(tmp_path)["message"] == "of rank 0"


def test_a_rank_that_hangs_after_anothers_failure_is_killed(run: Callable[[str], int], tmp_path: Path) -> None:
    began = time.monotonic()
    assert run("end(30, 'out of memory') if rank else time.sleep(60)") == 30
    assert time.monotonic() - began < 30
    assert error(tmp_path)["message"] == "out of memory"


def test_a_rank_killed_by_a_signal(run: Callable[[str], int], tmp_path: Path) -> None:
    assert run("os.kill(os.getpid(), signal.SIGKILL) if rank else time.sleep(60)") == 137
    # Rank 0 only saw the connection break; the exit code tells more.
    code = "os.kill(os.getpid(), signal.SIGKILL) if rank else (time.sleep(0.3), end(1, 'connection closed by peer'))"
    assert run(code) == 137 and not (tmp_path / "error.json").exists()


def test_every_rank_holds_the_locks_of_the_stage(run: Callable[[str], int], tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    os.set_inheritable(descriptor, True)
    try:
        assert run(f"end(0 if os.readlink('/proc/self/fd/{descriptor}').endswith('/lock') else 12)") == 0
    finally:
        os.close(descriptor)


def test_a_request_to_stop_reaches_every_rank(tmp_path: Path) -> None:
    root = str(Path(__file__).resolve().parents[3])
    code = SCRIPT.format(root=root, work=str(tmp_path)) + (
        "signal.signal(signal.SIGTERM, lambda *_: end(143, 'stopped'))\n"
        "open(f'{work}/ready{rank}', 'w').close()\ntime.sleep(60)"
    )
    (tmp_path / "rank.py").write_text(code)
    launcher = (
        f"import sys; from pathlib import Path; sys.path.insert(0, {root!r}); from tasks.process.ranks import run_ranks; "
        f"sys.exit(run_ranks([sys.executable, {str(tmp_path / 'rank.py')!r}], 2, Path({str(tmp_path)!r})))"
    )
    process = subprocess.Popen([sys.executable, "-c", launcher])
    deadline = time.monotonic() + 30
    while not all((tmp_path / f"ready{rank}").exists() for rank in (0, 1)) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 143
    assert error(tmp_path)["message"] == "stopped"
