"""Every kind of bad reward: what can be scored is scored, what hangs is killed, and nothing is raised."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.errors import ConfigError
from tasks.rewards import client
from tasks.rewards.client import Worker
from tasks.rewards.guard import Guard, InProcess

MakeGuard = Callable[..., Guard]
FOUR = ["one", "two", "bad three", "four"]


@pytest.fixture
def guard(user_module: str, tmp_path: Path) -> Iterator[MakeGuard]:
    made: list[Guard] = []

    def make(name: str, timeout_s: float = 10.0, **options: Any) -> Guard:
        worker = Worker(f"{user_module}:{name}", log=tmp_path / "output.log", **options)
        made.append(Guard(name, worker, timeout_s))
        return made[-1]

    yield make
    for one in made:
        one.caller.close()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def gone_within(pids: list[int], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(alive, pids)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_good_functions_sync_and_async(guard: MakeGuard, batch: Any) -> None:
    arguments = batch(FOUR).arguments
    assert guard("length").score(arguments).values == [3.0, 3.0, 9.0, 4.0]
    assert guard("waits").score(arguments).values == [2.0] * 4
    assert guard("instance").score(arguments).values == [4.0] * 4
    assert guard("array").score(arguments).values == [0.0, 1.0, 2.0, 3.0]
    assert guard("few_arguments").score(batch(["8", "9"]).arguments).values == [1.0, 0.0]


def test_the_process_is_kept_between_calls(guard: MakeGuard, batch: Any) -> None:
    one = guard("length")
    one.score(batch(FOUR).arguments)
    process = one.caller._process  # type: ignore[attr-defined]
    one.score(batch(FOUR).arguments)
    assert one.caller._process is process  # type: ignore[attr-defined]


def test_logging_hooks_and_trainer_state_reach_the_function(guard: MakeGuard, batch: Any) -> None:
    scores = guard("logs").score(batch(FOUR, step=7).arguments)
    assert scores.metrics == [("mine/step", 7.0)]
    assert scores.extras == {"length": [3, 3, 9, 4]}


def test_an_exception_on_every_row(guard: MakeGuard, batch: Any) -> None:
    scores = guard("raises").score(batch(FOUR).arguments)
    assert scores.values == [None] * 4
    assert all("raised ValueError: the parser gave up (user_" in message for message in scores.errors.values())


def test_an_exception_on_one_row_costs_that_row_only(guard: MakeGuard, batch: Any) -> None:
    one = guard("raises_on_bad")
    scores = one.score(batch(FOUR).arguments)
    assert scores.values == [1.0, 1.0, None, 1.0]
    assert list(scores.errors) == [2] and "ZeroDivisionError" in scores.errors[2]
    assert scores.metrics == [("mine/rows", 3.0)]  # of the call that counted


def test_the_other_rows_are_scored_together_again(guard: MakeGuard, batch: Any) -> None:
    assert guard("ranks").score(batch(FOUR).arguments).values == [1.0, 2.0, None, 0.0]


def test_names_logged_before_are_logged_as_nan_when_the_function_fails(guard: MakeGuard, batch: Any) -> None:
    one = guard("raises_on_bad")
    one.score(batch(["fine"]).arguments)
    scores = one.score(batch(["bad"]).arguments)
    assert [name for name, _ in scores.metrics] == ["mine/rows"] and scores.metrics[0][1] != scores.metrics[0][1]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("returns_none", "returned None instead of a list of 4 numbers"),
        ("a_number", "returned 1.0 instead of a list"),
        ("one_element", "returned 1 value for 4 completions"),
        ("too_many", "returned 5 values for 4 completions"),
    ],
)
def test_wrong_type_or_length_is_an_error_of_the_whole_batch(
    guard: MakeGuard, batch: Any, name: str, message: str
) -> None:
    scores = guard(name).score(batch(FOUR).arguments)
    assert scores.values == [None] * 4
    assert list(scores.errors) == [0, 1, 2, 3] and message in scores.errors[0]


def test_none_nan_infinity_and_text_are_errors_of_their_rows(guard: MakeGuard, batch: Any) -> None:
    scores = guard("holes").score(batch([*FOUR, "five"]).arguments)
    assert scores.values == [None, None, None, None, 1.0] and list(scores.errors) == [0, 1, 2, 3]


def test_allowed_none_is_no_error(guard: MakeGuard, batch: Any) -> None:
    scores = guard("not_for_these", allow_none=True).score(batch(FOUR).arguments)
    assert scores.values == [None] * 4 and not scores.errors


def test_an_infinite_loop_is_killed_and_costs_its_row_only(guard: MakeGuard, batch: Any) -> None:
    one = guard("hangs_on_bad", timeout_s=1.5)
    one.score(batch(["warm", "up"]).arguments)
    began = time.monotonic()
    scores = one.score(batch(FOUR).arguments)
    assert scores.values == [1.0, 1.0, None, 1.0]
    assert "did not return within" in scores.errors[2] and "killed" in scores.errors[2]
    assert time.monotonic() - began < 10
    assert one.score(batch(["fine"]).arguments).values == [1.0]


def test_a_hang_in_c_code_that_holds_the_interpreter_is_killed(guard: MakeGuard, batch: Any) -> None:
    scores = guard("hangs_holding_the_lock", timeout_s=0.5).score(batch(["a"]).arguments)
    assert scores.values == [None] and "did not return within 0.5 s" in scores.errors[0]


def test_looking_for_the_hanging_rows_takes_no_longer_than_the_limit_again(guard: MakeGuard, batch: Any) -> None:
    one = guard("hangs_on_bad", timeout_s=0.6)
    one.score(batch(["warm"]).arguments)
    scores = one.score(batch(["bad"] * 8).arguments)
    assert scores.values == [None] * 8 and "not scored: the batch did not return" in scores.errors[7]


def test_1_gb_of_output_is_dropped(guard: MakeGuard, batch: Any, tmp_path: Path) -> None:
    assert guard("prints_1_gb", timeout_s=60).score(batch(["a", "b"]).arguments).values == [1.0, 1.0]
    assert 0 < (tmp_path / "output.log").stat().st_size <= client.MAX_OUTPUT


def test_1_gb_returned_and_logged_never_reaches_the_trainer(guard: MakeGuard, batch: Any) -> None:
    scores = guard("returns_1_gb", timeout_s=60).score(batch(["a"]).arguments)
    assert scores.values == [None] and len(scores.errors[0]) < 200 and len(scores.extras["huge"][0]) == 2000


def test_a_process_that_ends_itself_is_started_again(guard: MakeGuard, batch: Any) -> None:
    one = guard("dies")
    for _ in range(2):
        scores = one.score(batch(["a"]).arguments)
        assert scores.values == [None] and scores.errors[0] == "ended its process (exit code 3)"
    assert "raised SystemExit: no" in guard("exits").score(batch(["a"]).arguments).errors[0]


def test_an_idle_process_that_was_killed_is_started_again(guard: MakeGuard, batch: Any) -> None:
    one = guard("length")
    one.score(batch(["a"]).arguments)
    os.kill(one.caller._process.pid, signal.SIGKILL)  # type: ignore[attr-defined]
    time.sleep(0.1)
    assert one.score(batch(["abc"]).arguments).values == [3.0]


def test_what_the_function_started_is_killed_with_it(
    guard: MakeGuard, batch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PID_FILE", str(tmp_path / "pids"))
    guard("starts_a_child_and_hangs", timeout_s=3.0).score(batch(["a"]).arguments)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2 and gone_within(pids, 5)


def test_the_process_ends_with_a_killed_parent(user_module: str, tmp_path: Path) -> None:
    code = f"""
import sys; sys.path.insert(0, {str(tmp_path)!r})
from tasks.rewards.client import Worker
Worker("{user_module}:starts_a_child_and_hangs").score({{"completions": ["a"]}}, 60)
"""
    pid_file = tmp_path / "pids"
    parent = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PID_FILE": str(pid_file)})
    deadline = time.monotonic() + 20
    while not (pid_file.exists() and len(pid_file.read_text().split()) == 2) and time.monotonic() < deadline:
        time.sleep(0.05)
    pids = [int(pid) for pid in pid_file.read_text().split()]
    parent.kill()
    parent.wait()
    assert gone_within(pids, 5)


def test_a_missing_column_stops_at_once(guard: MakeGuard, batch: Any) -> None:
    with pytest.raises(ConfigError, match="needs 'solution'"):
        guard("needs_a_column").score(batch(FOUR).arguments)


def test_a_module_that_takes_its_process_down_is_a_config_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "takes_it_down.py").write_text("import os; print('no licence'); os._exit(9)")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=r"ended its process \(exit code 9\)"):
        Worker("takes_it_down:f", log=tmp_path / "output.log").start()


def test_a_module_that_never_imports_is_a_config_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "never_there.py").write_text("import time; time.sleep(60)")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(client, "START_LIMIT_S", 0.5)
    with pytest.raises(ConfigError, match=r"did not return within 0\.5 s"):
        Worker("never_there:f").start()


def test_in_process_functions_are_guarded_too(batch: Any) -> None:
    def bad(completions: Any, log_metric: Any, **_: Any) -> list[float]:
        log_metric("n", 1)
        return [1.0 / ("bad" not in c[0]["content"]) for c in completions]

    scores = Guard("bad", InProcess(bad)).score(batch(FOUR).arguments)
    assert scores.values == [1.0, 1.0, None, 1.0] and scores.metrics == [("n", 1.0)]
