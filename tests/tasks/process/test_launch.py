"""run_supervised in the test's own process: results, limits, output, interruptions."""

from __future__ import annotations

import contextvars
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tasks.process.launch import ProcessResult, run_supervised
from tasks.process.output import LOG_CAP_BYTES, LOG_END_BYTES


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., tuple[ProcessResult, list[str]]]:
    def run_code(code: str, **options: Any) -> tuple[ProcessResult, list[str]]:
        lines: list[str] = []
        settings: dict[str, Any] = {
            "cwd": tmp_path,
            "env": dict(os.environ),
            "log_path": tmp_path / "stage.log",
            "on_line": lines.append,
            "poll_s": 0.1,
            "grace_s": 1.0,
            **options,
        }
        return run_supervised([sys.executable, "-S", "-c", code], **settings), lines

    return run_code


def said(log: Path) -> list[str]:
    """What the stage itself wrote; the launcher's notes come by another pipe, so anywhere between, also before the end of a line."""
    return [line for line in log.read_text().splitlines() if line and not line.startswith("[process]")]


@pytest.mark.parametrize(
    ("code", "exit_code", "signum", "ended_by"),
    [
        ("print('done')", 0, None, "itself"),
        ("raise SystemExit(20)", 20, None, "itself"),
        ("import os; os.kill(os.getpid(), 9)", 137, 9, "itself"),
        ("import os; os.kill(os.getpid(), 11)", 139, 11, "itself"),
        ("raise SystemExit(143)", 143, None, "interrupt"),
    ],
)
def test_how_it_ended(run, code: str, exit_code: int, signum: int | None, ended_by: str) -> None:
    result, _ = run(code)
    assert (result.exit_code, result.signal, result.ended_by) == (exit_code, signum, ended_by)


def test_a_command_that_cannot_be_started(tmp_path: Path) -> None:
    result = run_supervised(
        [str(tmp_path / "missing")],
        cwd=tmp_path,
        env=dict(os.environ),
        log_path=tmp_path / "log",
        on_line=lambda _: None,
    )
    assert result.exit_code == 127
    assert "could not be started" in result.tail[-1]


def test_output_reaches_log_tail_and_callback_in_the_callers_context(run, tmp_path: Path) -> None:
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="lost")
    name.set("task run 1")
    seen: list[tuple[str, str]] = []
    code = "import sys; print('one'); print('two', file=sys.stderr); sys.stdout.buffer.write(b'\\xff\\xfe')"
    result, _ = run(code, on_line=lambda line: seen.append((name.get(), line)))
    assert seen == [("task run 1", line) for line in ("one", "two", "��")]
    assert result.tail == ("one", "two", "��")
    assert (tmp_path / "stage.log").read_text() == "one\ntwo\n��\n"


def test_a_callback_that_fails_does_not_stop_the_stage(run, tmp_path: Path) -> None:
    def fail(line: str) -> None:
        raise RuntimeError("the log server is down")

    result, _ = run("for i in range(20000): print('line', i)", on_line=fail)
    assert result.exit_code == 0 and result.tail[-1] == "line 19999"
    assert "the log server is down" in (tmp_path / "stage.log").read_text()


def test_secrets_are_masked_everywhere(run, tmp_path: Path) -> None:
    result, lines = run(
        "import os; print('token is', os.environ['HF_TOKEN'])", env={**os.environ, "HF_TOKEN": "hf_abcdefgh"}
    )
    assert lines == ["token is ***"] == list(result.tail)
    assert (tmp_path / "stage.log").read_text() == "token is ***\n"


def test_the_environment_is_the_callers_and_no_more(run) -> None:
    _, lines = run("import os; print(sorted(os.environ))", env={"PATH": os.environ["PATH"], "A": "1"})
    names = set(eval(lines[0])) - {"LC_CTYPE", "PYTHONPATH"}
    assert names == {"A", "PATH", "GRPO_STAGE_ID", "GRPO_STAGE_WATCH", "PYTHONUNBUFFERED"}


def test_time_limit(run) -> None:
    result, lines = run("import time; time.sleep(60)", timeout_s=0.5)
    assert result.ended_by == "timeout" and 0.5 < result.duration_s < 10
    assert any("limit is 0.5 s" in line for line in lines)


def test_stall_without_output(run) -> None:
    code = "import time\nfor _ in range(8): print('.'); time.sleep(0.1)\ntime.sleep(60)"
    result, _ = run(code, stall_s=0.6)
    assert result.ended_by == "stall" and 1.2 < result.duration_s < 10


def test_stall_shows_where_the_stage_hangs(run) -> None:
    code = """
import faulthandler, signal, time
faulthandler.register(signal.SIGUSR1)
def stuck_here(): time.sleep(60)
stuck_here()
"""
    result, _ = run(code, stall_s=0.5)
    assert result.ended_by == "stall"
    assert any("stuck_here" in line for line in result.tail)


def test_activity_counts_instead_of_output(run, tmp_path: Path) -> None:
    beat = tmp_path / "beat"
    beat.touch()
    code = f"""
import os, time
for i in range(8):
    os.utime({str(beat)!r}, (i, i)); time.sleep(0.1)
while True: print('noise'); time.sleep(0.1)
"""
    result, _ = run(code, stall_s=0.6, activity=lambda: beat.stat().st_mtime)
    assert result.ended_by == "stall" and 1.2 < result.duration_s < 10


def test_poll_is_called_and_what_it_raises_ends_the_stage(run, tmp_path: Path) -> None:
    calls: list[float] = []

    def poll() -> None:
        calls.append(time.monotonic())
        if len(calls) >= 8 and (tmp_path / "up").exists():
            raise LookupError("stop now")

    code = f"""
import signal, sys, time
signal.signal(15, lambda *_: sys.exit('saved'))
open({str(tmp_path / "up")!r}, 'w')
time.sleep(60)
"""
    with pytest.raises(LookupError, match="stop now"):
        run(code, on_poll=poll)
    assert calls[-1] - calls[0] >= 0.3
    assert said(tmp_path / "stage.log") == ["saved"]


def test_keyboard_interrupt_ends_the_stage_and_is_raised(run, tmp_path: Path) -> None:
    def poll() -> None:
        if (tmp_path / "up").exists():
            raise KeyboardInterrupt

    code = f"import time; open({str(tmp_path / 'up')!r}, 'w'); time.sleep(60)"
    with pytest.raises(KeyboardInterrupt):
        run(code, on_poll=poll)
    assert "interrupted by KeyboardInterrupt" in (tmp_path / "stage.log").read_text()


def test_a_second_request_to_end_does_not_cost_the_time_to_save(run, tmp_path: Path) -> None:
    """A cancelled run and its worker may both send SIGTERM; the second one comes while the stage saves."""
    code = (
        "import signal, sys, time\n"
        "def save(*_):\n"
        "    print('saving')\n"
        "    time.sleep(0.3)\n"
        "    print('saved')\n"
        "    sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        f"open({str(tmp_path / 'up')!r}, 'w')\n"
        "time.sleep(60)"
    )

    def poll() -> None:
        if (tmp_path / "up").exists():
            os.kill(os.getpid(), signal.SIGTERM)

    def again(line: str) -> None:
        if line == "saving":
            os.kill(os.getpid(), signal.SIGTERM)

    class Terminated(BaseException):
        pass

    def terminate(*_: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        with pytest.raises(Terminated):
            run(code, on_poll=poll, on_line=again, grace_s=10.0)
        assert signal.getsignal(signal.SIGTERM) is terminate
    finally:
        signal.signal(signal.SIGTERM, before)
    assert said(tmp_path / "stage.log") == ["saving", "saved"]


def test_fifty_megabytes_of_lines(run, tmp_path: Path) -> None:
    code = "import sys\nblock = ('x' * 79 + chr(10)) * 6250\nfor _ in range(100): sys.stdout.write(block)\nprint('end')"
    result, lines = run(code)
    assert (tmp_path / "stage.log").stat().st_size == 50_000_000 + 4
    assert result.tail[-1] == "end" and len(result.tail) == 200
    assert len(lines) < 5000, "the run's log gets a sample, not everything"
    assert any("left out here" in line for line in lines)


def test_more_output_than_the_log_holds(run, tmp_path: Path) -> None:
    code = "import sys\nblock = 'y' * 1000000\nfor _ in range(90): sys.stdout.write(block)\nprint('the end')"
    result, _ = run(code)
    size = (tmp_path / "stage.log").stat().st_size
    assert LOG_CAP_BYTES < size < LOG_CAP_BYTES + 2 * LOG_END_BYTES
    assert (tmp_path / "stage.log").read_bytes().endswith(b"the end\n")
    assert result.tail[-1].endswith("the end")


def test_no_descriptor_or_thread_is_left_open(run) -> None:
    import threading

    run("pass")
    before, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    run("pass")
    assert len(os.listdir("/proc/self/fd")) == before
    assert threading.active_count() == threads
