"""Starting a supervised stage from the flow process, following it, and leaving nothing behind.

`run_supervised` is called directly in the main thread of a task, where an exception (Prefect's TerminationSignal, a
timeout's alarm, KeyboardInterrupt) may be raised between any two lines. Whatever happens, the stage is ended before it
returns or raises; when this process is killed, the supervisor ends the stage.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tasks.process import proc
from tasks.process.link import Link

EndedBy = Literal["itself", "timeout", "stall", "interrupt", "supervisor_lost"]

ORPHAN_GRACE_S = 6.0
"""Grace when launcher or supervisor were killed: with the sweep, all is gone within 10 s of the death."""


@dataclass(frozen=True)
class ProcessResult:
    """How a stage process ended.

    Attributes:
        exit_code: 0 to 255; 128 + signal when a signal ended it.
        signal: the signal that ended it, or None when it exited by itself.
        tail: its last lines of output, at most 200, secrets masked.
        duration_s: wall-clock seconds.
        ended_by: `itself`; `timeout` or `stall`: ended by the launcher's limits; `interrupt`: it was asked to stop by
            somebody else; `supervisor_lost`: the supervisor was killed.
    """

    exit_code: int
    signal: int | None
    tail: tuple[str, ...]
    duration_s: float
    ended_by: EndedBy


def stage_argv(spec_path: Path) -> list[str]:
    """The command line of a stage process for a spec file."""
    return [sys.executable, "-P", "-m", "tasks.process.stage_main", "--spec", str(spec_path)]


def run_supervised(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    log_path: Path,
    on_line: Callable[[str], None],
    on_poll: Callable[[], None] | None = None,
    poll_s: float = 1.0,
    timeout_s: float | None = None,
    stall_s: float | None = None,
    activity: Callable[[], float] | None = None,
    grace_s: float = 25.0,
    orphan_grace_s: float = ORPHAN_GRACE_S,
    inherit_fds: Sequence[int] = (),
) -> ProcessResult:
    """Run a command under the supervisor until it has ended and nothing of it is left.

    Args:
        argv: the command line.
        cwd: its working directory.
        env: its whole environment, already filtered by the caller; the values of its secrets are masked in the output.
        log_path: gets the whole output (bounded, see `output.CappedLog`), appended.
        on_line: called with each line of output, in a thread with this thread's context; progress bars at most every
            5 s, other lines rate-limited.
        on_poll: called about every `poll_s` in this thread; what it raises ends the stage and is raised.
        poll_s: seconds between polls.
        timeout_s: limit on the whole run.
        stall_s: limit on the time without a sign of life.
        activity: a number that changes with every sign of life (the mtime of progress.json, say); only changes
            count, not the clock. Without it every output counts.
        grace_s: how long the stage may take to save when it is asked to stop. Prefect kills 30 s after its
            signal, so at most 25.
        orphan_grace_s: the same when the launcher or the supervisor has been killed; never more than `grace_s`.
        inherit_fds: descriptors (held locks) that stay open until the last process has ended.

    Raises:
        BaseException: whatever interrupts this thread, after the stage has been ended.
    """
    started = time.monotonic()
    grace_s = max(0.0, grace_s)
    link = Link(log_path, env, on_line)
    try:
        link.start(argv, cwd, grace_s, min(grace_s, orphan_grace_s), inherit_fds)
        ended_by = _follow(link, started, on_poll, poll_s, timeout_s, stall_s, activity, grace_s)
        if link.outcome is None:
            link.sink.note("the supervisor was killed; its stage is being ended")
            proc.wind_down(link.stage_pid, link.members, min(grace_s, orphan_grace_s))
            ended_by = "supervisor_lost"
    except BaseException as error:
        # Asked to end twice (a run and its worker both see that it is cancelled), it still gets its time to save.
        with nullcontext() if isinstance(error, Exception) else ignored(signal.SIGTERM):
            link.stop(f"interrupted by {type(error).__name__}", grace_s)
        raise
    finally:
        link.finish()
    kind, number = link.outcome or ("signal", int(signal.SIGKILL))
    by_signal = kind == "signal"
    code = 128 + number if by_signal else number
    if ended_by == "itself" and code in (128 + signal.SIGTERM, 128 + signal.SIGINT):
        ended_by = "interrupt"
    return ProcessResult(code, number if by_signal else None, link.sink.tail, time.monotonic() - started, ended_by)


@contextmanager
def ignored(signum: int) -> Iterator[None]:
    """Within this block the signal does nothing; in another thread than the main one, where it would not arrive, no change."""
    before = signal.getsignal(signum)
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield
        return
    signal.signal(signum, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signum, before)


def _follow(
    link: Link,
    started: float,
    on_poll: Callable[[], None] | None,
    poll_s: float,
    timeout_s: float | None,
    stall_s: float | None,
    activity: Callable[[], float] | None,
    grace_s: float,
) -> EndedBy:
    """Wait until the supervisor has ended; enforce the limits on the way."""
    last_sign = activity() if activity else 0.0
    last_sign_at = time.monotonic()
    while not link.wait(poll_s):
        if on_poll is not None:
            on_poll()
        now = time.monotonic()
        if activity is None:
            last_sign_at = max(last_sign_at, link.sink.last_output)
        elif (sign := activity()) != last_sign:
            last_sign, last_sign_at = sign, now
        if timeout_s is not None and now - started > timeout_s:
            link.stop(f"the stage has run for {now - started:.0f} s; its limit is {timeout_s:g} s", grace_s)
            return "timeout"
        if stall_s is not None and now - last_sign_at > stall_s:
            link.dump_stacks()
            link.stop(f"no sign of life for {now - last_sign_at:.0f} s; the limit is {stall_s:g} s", grace_s)
            return "stall"
    return "itself"
