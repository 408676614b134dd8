"""The supervisor's guard: a forked process that sweeps the stage when the supervisor itself was killed."""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from tasks.process import proc
from tasks.process.fds import CHUNK, at_end, close_fds, drain
from tasks.process.output import OutputSink


class LateReader:
    """Reads a stage's output into its log once the launcher, whose work that is, is dead."""

    def __init__(self, fd: int | None, log: Path | None) -> None:
        self.fd, self._log = fd, log
        self._sink: OutputSink | None = None

    def _open(self) -> OutputSink | None:
        if self._sink is None and self._log is not None:
            self._sink = OutputSink(self._log, os.environ)
        return self._sink

    def drain(self) -> None:
        """Take what the pipe holds now."""
        sink = self._open()
        if self.fd is not None and not drain(self.fd, sink.feed if sink else lambda _: None):
            self.fd = None

    def note(self, text: str) -> None:
        """Write a line of the supervisor's own to the log."""
        sink = self._open()
        if sink is not None:
            sink.note(text)

    def close(self) -> None:
        """Close the log."""
        if self._sink is not None:
            self._sink.close()
            self._sink = None


def fork_guard(options: argparse.Namespace, alive_r: int, stage_id: str, private: Iterable[int | None]) -> int:
    """Fork the guard and return its pid.

    Args:
        options: the supervisor's.
        alive_r: reading end of a pipe whose only writer is the supervisor; the stage's pid comes through it.
        stage_id: the stage's marker.
        private: descriptors that only the supervisor may hold.
    """
    session = os.getsid(0)
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.set_wakeup_fd(-1)
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(signum, signal.SIG_IGN)
        os.setsid()  # so that a kill of the supervisor's group does not reach it
        close_fds(*private)
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        stand_by(options, alive_r, stage_id, session)
    finally:
        os._exit(0)


def stand_by(options: argparse.Namespace, alive_r: int, stage_id: str, session: int) -> None:
    """Wait for the supervisor's death, then wind the stage down."""
    said = b""
    while data := os.read(alive_r, CHUNK):
        said += data
    reader = LateReader(options.output_fd, options.log)

    def tick(seconds: float) -> None:
        time.sleep(seconds)
        if at_end(options.parent_fd):
            reader.drain()

    # Wait a moment: a supervisor that ended in order kills its guard.
    tick(0.2)
    if at_end(options.parent_fd):
        reader.note(f"launcher and supervisor are gone: the stage has {options.orphan_grace:g} s to save")
    pid = int(said) if said.strip().isdigit() else None
    proc.wind_down(pid, lambda: proc.members(stage_id, session), options.orphan_grace, tick)
    tick(0)
    reader.close()
