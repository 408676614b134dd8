"""The launcher's end of a supervisor: its pipes, the thread that reads its output, and the ways to end it."""

from __future__ import annotations

import contextlib
import contextvars
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import tasks
from tasks.process import proc
from tasks.process.fds import CHUNK, close_fds, drain, readable
from tasks.process.output import OutputSink

MARGIN_S = 3.0
"""What the supervisor may need beyond the grace, before the launcher kills everything itself."""

READER_JOIN_S = 5.0


def stage_environment(env: Mapping[str, str], stage_id: str) -> dict[str, str]:
    """The caller's environment, the stage's marker, and what the supervisor needs to be found and be heard."""
    full = {"PYTHONUNBUFFERED": "1", **env, proc.MARKER: stage_id}
    root = Path(tasks.__file__).resolve().parent.parent
    if "site-packages" not in root.parts:
        full["PYTHONPATH"] = os.pathsep.join(filter(None, (str(root), env.get("PYTHONPATH"))))
    return full


class Link:
    """One supervised process as its launcher sees it.

    Attributes:
        stage_pid: the stage's pid, once the supervisor has told it.
        outcome: ("exit", code) or ("signal", number); None when the supervisor was killed before it could tell.
        sink: where the output goes.
    """

    def __init__(self, log_path: Path, env: Mapping[str, str], on_line: Callable[[str], None]) -> None:
        self.stage_id = uuid.uuid4().hex
        self.stage_pid: int | None = None
        self.outcome: tuple[str, int] | None = None
        self.sink = OutputSink(log_path, env, on_line)
        self._log_path = log_path.absolute()
        self._env = stage_environment(env, self.stage_id)
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._all_dead = threading.Event()
        self._gone = False
        self._said = b""
        self._fds: list[int] = []
        self._status_r = self._output_r = self._parent_w = -1

    def start(
        self, argv: Sequence[str], cwd: Path, grace_s: float, orphan_grace_s: float, inherit_fds: Sequence[int]
    ) -> None:
        """Start the supervisor, which starts `argv`."""
        parent_r, self._parent_w = self._pipe()
        self._status_r, status_w = self._pipe()
        self._output_r, output_w = self._pipe()
        options = {
            "--grace": grace_s,
            "--orphan-grace": orphan_grace_s,
            "--parent-fd": parent_r,
            "--parent-pid": os.getpid(),
            "--status-fd": status_w,
            "--output-fd": self._output_r,
            "--log": self._log_path,
            "--keep-fds": ",".join(map(str, inherit_fds)),
        }
        command = [sys.executable, "-P", "-m", "tasks.process.supervisor"]
        for name, value in options.items():
            command += [name, str(value)]
        self._process = subprocess.Popen(
            [*command, "--", *argv],
            cwd=cwd,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=output_w,
            stderr=output_w,
            pass_fds=(parent_r, status_w, self._output_r, *inherit_fds),
            start_new_session=True,
        )
        self._close(parent_r, status_w, output_w)
        read = contextvars.copy_context().run
        self._reader = threading.Thread(target=read, args=(self._read,), name="stage-output", daemon=True)
        self._reader.start()

    def _pipe(self) -> tuple[int, int]:
        ends = os.pipe()
        self._fds.extend(ends)
        return ends

    def _close(self, *fds: int) -> None:
        for fd in fds:
            self._fds.remove(fd)
            close_fds(fd)

    def _read(self) -> None:
        while not self._all_dead.is_set():
            if readable([self._output_r], 0.25):
                data = os.read(self._output_r, CHUNK)
                if not data:
                    return
                self.sink.feed(data)
        drain(self._output_r, self.sink.feed)

    def wait(self, timeout_s: float) -> bool:
        """Wait for the supervisor's end, or for news from it, up to `timeout_s`. True once it has ended."""
        if not self._gone and readable([self._status_r], timeout_s):
            data = os.read(self._status_r, CHUNK)
            self._gone = not data
            *lines, self._said = (self._said + data).split(b"\n")
            for line in lines:
                self._hear(line.decode("utf-8", "replace"))
        return self._gone

    def _hear(self, line: str) -> None:
        kind, _, rest = line.partition(" ")
        if kind == "note":
            self.sink.note(rest)
        elif kind == "stage":
            self.stage_pid = int(rest)
        else:
            self.outcome = (kind, int(rest))

    def members(self) -> list[proc.Proc]:
        """What is alive of the supervisor, its guard and the stage."""
        return proc.members(self.stage_id, self._process.pid if self._process else -1)

    def signal_supervisor(self, signum: int) -> None:
        """Signal the supervisor; it has not been waited for before `finish`, so its pid cannot be another's."""
        if self._process is not None and not self._gone:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signum)

    def dump_stacks(self) -> None:
        """Have the stage print the stacks of its threads, if it can (`faulthandler` on SIGUSR1)."""
        if self.stage_pid is not None:
            self.signal_supervisor(signal.SIGUSR1)
            self.wait(0.5)

    def stop(self, reason: str, grace_s: float) -> None:
        """Ask the supervisor to end the stage, and wait until it has, or until the grace is well over."""
        self.signal_supervisor(signal.SIGTERM)
        deadline = time.monotonic() + grace_s + MARGIN_S
        self.sink.note(reason)
        while self._process is not None and time.monotonic() < deadline:
            if self.wait(min(1.0, max(0.0, deadline - time.monotonic()))):
                return

    def finish(self) -> None:
        """Kill what is left, take the last of the output, close everything. May be interrupted at any point."""
        try:
            left = proc.end_all(self.members, soft_s=0)
            if left:
                self.sink.note(f"could not end the processes {', '.join(str(p.pid) for p in left)}")
            if self._process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(timeout=1.0)
            self.wait(0)
        finally:
            # The end of this pipe makes a supervisor that is still there end its stage.
            if self._parent_w in self._fds:
                self._close(self._parent_w)
            self._all_dead.set()
            if self._reader is not None:
                self._reader.join(READER_JOIN_S)
            if self._reader is None or not self._reader.is_alive():
                self._close(*list(self._fds))
                self.sink.close()
