"""Runs one stage as a child and leaves nothing behind, whatever dies.

    python -m tasks.process.supervisor --grace 25 --parent-fd 5 [...] -- <argv of the stage>

The launcher (`tasks.process.launch`) starts it in a session of its own. It adopts orphans below it
(PR_SET_CHILD_SUBREAPER), so that at the end it finds and kills every descendant, also one in a session of its own.

- SIGTERM, or the end of `--parent-fd` (whose only writer is the launcher): the stage gets SIGTERM, a grace to save,
  then SIGKILL.
- Its own death: a small guard process, forked before the stage starts, does the same in its place (`guard`). For
  the case that the guard is dead too, the stage watches a second pipe (`watchdog`).
- Once the launcher is dead, the stage's output is read here and appended to the log: a last save is not broken by a
  broken pipe, and can be read about afterwards.
- SIGUSR1 is handed on to a stage that handles it (a dump of all stacks).

Exit code: the stage's own, 128 + signal when a signal ended it, 127 when it could not be started.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tasks.process import proc
from tasks.process.fds import CHUNK, at_end, close_fds, readable
from tasks.process.guard import LateReader, fork_guard
from tasks.process.watchdog import WATCH

PR_SET_CHILD_SUBREAPER = 36
POLL_S = 1.0
NOT_STARTED = 127


def parse_args(args: Sequence[str]) -> argparse.Namespace:
    """The supervisor's options; `launch` is their only user."""
    parser = argparse.ArgumentParser(prog="tasks.process.supervisor")
    parser.add_argument("--grace", type=float, default=25.0, help="seconds the stage may take to save")
    parser.add_argument("--orphan-grace", type=float, help="the same once the launcher is dead; default: --grace")
    parser.add_argument("--parent-fd", type=int, required=True, help="pipe whose only writer is the launcher")
    parser.add_argument("--parent-pid", type=int, help="the launcher")
    parser.add_argument("--status-fd", type=int, help="pipe to the launcher for what happens, one line each")
    parser.add_argument("--output-fd", type=int, help="reading end of the stage's output")
    parser.add_argument("--log", type=Path, help="log file, for output after the launcher's death")
    parser.add_argument("--keep-fds", default="", help="descriptors that the stage inherits, comma-separated")
    parser.add_argument("argv", nargs="+", help="the stage's command line")
    options = parser.parse_args(args)
    if options.orphan_grace is None:
        options.orphan_grace = options.grace
    if options.parent_pid is None:
        options.parent_pid = os.getppid()
    options.keep_fds = [int(fd) for fd in options.keep_fds.split(",") if fd]
    return options


def become_subreaper() -> None:
    """Have orphaned descendants re-parented to this process (Linux); without it they are found by their marker."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Supervisor:
    """The supervisor's state; `run` is its whole life."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.stage_id = os.environ.get(proc.MARKER, "")
        self.stage_pid = self.guard_pid = 0
        self.stage_status: int | None = None
        self.asked_to_stop = False
        self.orphaned = False
        self.reader = LateReader(options.output_fd, options.log)
        self.wake_r, self.wake_w = os.pipe()

    def run(self) -> int:
        """Start the stage, see it to its end, sweep, and return the exit code."""
        become_subreaper()
        self._install_handlers()
        alive_r, alive_w = os.pipe()
        watch_r, _ = os.pipe()  # its writing end stays open here and in the guard
        private = (self.options.status_fd, alive_w, watch_r, self.wake_r, self.wake_w)
        self.guard_pid = fork_guard(self.options, alive_r, self.stage_id, private)
        close_fds(alive_r)
        if not self._start_stage(watch_r):
            return self._finish(NOT_STARTED)
        close_fds(watch_r)
        self._tell(alive_w, f"{self.stage_pid}")
        self._status(f"stage {self.stage_pid}")
        self._watch_stage()
        left = proc.end_all(self._find, self._tick)
        if left:
            self._note(f"could not end the processes {', '.join(str(p.pid) for p in left)}: stuck in the kernel")
        self._reap()
        return self._finish(self._report())

    def _install_handlers(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.set_blocking(self.wake_w, False)
        signal.set_wakeup_fd(self.wake_w, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._on_stop)
        signal.signal(signal.SIGINT, self._on_stop)
        signal.signal(signal.SIGUSR1, self._on_dump)

    def _on_stop(self, *_: object) -> None:
        self.asked_to_stop = True

    def _on_dump(self, *_: object) -> None:
        if self.stage_pid and proc.catches(self.stage_pid, signal.SIGUSR1):
            os.kill(self.stage_pid, signal.SIGUSR1)

    def _start_stage(self, watch_r: int) -> bool:
        watch = f"{watch_r}:{os.getsid(0)}:{self.options.orphan_grace}"
        try:
            child = subprocess.Popen(
                self.options.argv,
                stdin=subprocess.DEVNULL,
                env={**os.environ, WATCH: watch},
                pass_fds=(*self.options.keep_fds, watch_r),
            )
        except OSError as error:
            self._note(f"the stage could not be started: {error}")
            return False
        self.stage_pid = child.pid
        child.returncode = 0  # reaped by `_reap`, never by Popen
        return True

    def _watch_stage(self) -> None:
        deadline: float | None = None
        while self.stage_status is None:
            self._tick(POLL_S if deadline is None else min(POLL_S, max(0.0, deadline - time.monotonic())))
            if self.stage_status is not None:
                return
            if deadline is None and (self.asked_to_stop or self.orphaned):
                grace = self.options.orphan_grace if self.orphaned else self.options.grace
                why = "the launcher is gone" if self.orphaned else "asked to stop"
                self._note(f"{why}: the stage has {grace:g} s to save")
                os.kill(self.stage_pid, signal.SIGTERM)
                deadline = time.monotonic() + grace
            elif deadline is not None and self.orphaned:
                deadline = min(deadline, time.monotonic() + self.options.orphan_grace)
            if deadline is not None and time.monotonic() >= deadline:
                self._note("the stage did not stop in time and is killed")
                os.kill(self.stage_pid, signal.SIGKILL)
                deadline = time.monotonic() + POLL_S

    def _tick(self, seconds: float) -> None:
        """Wait for an event or `seconds`, then reap, look after the launcher, and read output if it is dead."""
        fds = [self.wake_r]
        if not self.orphaned:
            fds.append(self.options.parent_fd)
        elif self.reader.fd is not None:
            fds.append(self.reader.fd)
        if self.wake_r in readable(fds, seconds):
            os.read(self.wake_r, CHUNK)
        self._reap()
        if not self.orphaned:
            self.orphaned = at_end(self.options.parent_fd) or os.getppid() != self.options.parent_pid
        if self.orphaned:
            self.reader.drain()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.stage_pid:
                self.stage_status = status
            elif pid == self.guard_pid:
                self.guard_pid = 0

    def _find(self) -> list[proc.Proc]:
        return proc.members(self.stage_id, os.getsid(0), below=os.getpid(), exclude=(self.guard_pid,))

    def _report(self) -> int:
        status = self.stage_status or 0
        if os.WIFSIGNALED(status):
            self._status(f"signal {os.WTERMSIG(status)}")
            return 128 + os.WTERMSIG(status)
        self._status(f"exit {os.WEXITSTATUS(status)}")
        return os.WEXITSTATUS(status)

    def _finish(self, code: int) -> int:
        if code == NOT_STARTED and self.stage_pid == 0:
            self._status(f"exit {NOT_STARTED}")
        if self.orphaned:
            self.reader.drain()
            self.reader.close()
        if self.guard_pid:
            os.kill(self.guard_pid, signal.SIGKILL)
            os.waitpid(self.guard_pid, 0)
        return code

    def _note(self, text: str) -> None:
        if self.orphaned:
            self.reader.note(text)
        else:
            self._status(f"note {text}")

    def _status(self, line: str) -> None:
        if self.options.status_fd is not None:
            self._tell(self.options.status_fd, line)

    @staticmethod
    def _tell(fd: int, line: str) -> None:
        # A reader that died this moment is noticed elsewhere.
        with contextlib.suppress(OSError):
            os.write(fd, f"{line}\n".encode())


def main(args: Sequence[str]) -> int:
    """Entry of `python -m tasks.process.supervisor`."""
    return Supervisor(parse_args(args)).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
