"""What becomes of a stage's output: a bounded log file, the last lines for errors, and lines for the run's log."""

from __future__ import annotations

import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from tasks.process.secrets import hide, secret_values

LOG_CAP_BYTES = 64 * 2**20
LOG_END_BYTES = 256 * 2**10
TAIL_LINES = 200
LINE_BYTES = 64 * 2**10
PROGRESS_EVERY_S = 5.0
# Lines for the run's log: this many at once, then this many a second. The log file gets every line.
BURST_LINES, LINES_PER_S = 1000.0, 50.0

_BREAK = re.compile(r"(\r\n|\n|\r)")
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")


class CappedLog:
    """A log file opened for appending that keeps the first `cap` bytes and, past that, the end of the output.

    A file that an earlier attempt left more than half full is renamed to `<name>.1` first. A full disk stops the
    log, not the stage.
    """

    def __init__(self, path: Path, cap: int = LOG_CAP_BYTES) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > cap // 2:
            os.replace(path, path.with_name(path.name + ".1"))
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - closed by `close`
        self._room = cap - self._file.tell()
        self._end: deque[bytes] = deque()
        self._end_size = 0
        self._left_out = 0

    def write(self, data: bytes) -> None:
        """Write what there is room for and remember the end of the rest."""
        head, rest = data[: self._room], data[self._room :]
        if head:
            try:
                self._file.write(head)
            except OSError:
                self._room, rest = 0, data
            else:
                self._room -= len(head)
        if rest:
            self._end.append(rest[-LOG_END_BYTES:])
            self._end_size += len(self._end[-1])
            self._left_out += len(rest)
            while self._end_size - len(self._end[0]) >= LOG_END_BYTES:
                self._end_size -= len(self._end.popleft())

    def close(self) -> None:
        """Append the end of what was left out, with a note of how much is missing, and close the file."""
        if self._left_out:
            end = b"".join(self._end)
            note = f"\n[the log is full: {self._left_out - len(end)} bytes are left out here]\n".encode()
            try:
                self._file.write(note + end)
            except OSError:
                self._left_out = 0
        self._file.close()


class OutputSink:
    """Takes raw output in pieces of any size; safe to feed from two threads.

    Lines end in ``\\n``, ``\\r\\n`` or ``\\r``. A line next to a bare ``\\r`` is a progress bar: at most one every
    `PROGRESS_EVERY_S` is passed on. Bytes that are not UTF-8 become replacement characters. Secrets are masked
    before anything is written or passed on.

    Args:
        log_path: the log file.
        environ: the stage's environment, for its secrets.
        on_line: called with every line that is passed on. If it raises, it is not called again and the log says so.
        log_cap: size limit of the log file in bytes.
    """

    def __init__(
        self,
        log_path: Path,
        environ: Mapping[str, str],
        on_line: Callable[[str], None] | None = None,
        log_cap: int = LOG_CAP_BYTES,
    ) -> None:
        self._log = CappedLog(log_path, log_cap)
        self._secrets = secret_values(environ)
        self._on_line = on_line
        self._pending = b""
        self._after_return = False
        self._tail: deque[tuple[str, bool]] = deque(maxlen=TAIL_LINES)
        self._lock = threading.RLock()
        self._next_progress = 0.0
        self._credit, self._credit_at = BURST_LINES, time.monotonic()
        self._held_back = 0
        self.last_output = time.monotonic()

    @property
    def tail(self) -> tuple[str, ...]:
        """The last lines, at most `TAIL_LINES`; of consecutive progress lines only the latest."""
        with self._lock:
            return tuple(line for line, _ in self._tail)

    def feed(self, data: bytes) -> None:
        """Take the next bytes of output."""
        with self._lock:
            self.last_output = time.monotonic()
            data = self._pending + data
            cut = max(data.rfind(b"\n"), data.rfind(b"\r"))
            # A final \r may be the first half of \r\n: keep it for the next piece.
            if cut == len(data) - 1 and data.endswith(b"\r"):
                cut = max(data.rfind(b"\n", 0, cut), data.rfind(b"\r", 0, cut))
            if cut < 0 and len(data) > LINE_BYTES:
                data, cut = data + b"\n", len(data)
            self._pending = data[cut + 1 :]
            if cut >= 0:
                self._take(data[: cut + 1])

    def note(self, text: str) -> None:
        """Take a line of the launcher's or the supervisor's own."""
        with self._lock:
            if self._pending:
                self.feed(b"\n")
            self.feed(f"[process] {text}\n".encode())

    def close(self) -> None:
        """Take what is pending as a last line and close the log."""
        with self._lock:
            if self._pending:
                self._take(self._pending if self._pending.endswith(b"\r") else self._pending + b"\n")
                self._pending = b""
            self._tell_held_back()
            self._log.close()

    def _take(self, block: bytes) -> None:
        text = hide(block.decode("utf-8", "replace"), self._secrets)
        self._log.write(text.encode())
        parts = _BREAK.split(text)
        for line, end in zip(parts[0::2], parts[1::2], strict=False):
            progress = end == "\r" or self._after_return
            self._after_return = end == "\r"
            line = _ESCAPES.sub("", line).rstrip()
            if line:
                self._keep(line, progress)
                self._pass_on(line, progress)

    def _keep(self, line: str, progress: bool) -> None:
        if progress and self._tail and self._tail[-1][1]:
            self._tail.pop()
        self._tail.append((line, progress))

    def _pass_on(self, line: str, progress: bool) -> None:
        if self._on_line is None:
            return
        now = time.monotonic()
        if progress:
            if now < self._next_progress:
                return
            self._next_progress = now + PROGRESS_EVERY_S
        self._credit = min(BURST_LINES, self._credit + (now - self._credit_at) * LINES_PER_S)
        self._credit_at = now
        if self._credit < 1:
            self._held_back += 1
            return
        self._tell_held_back()
        self._credit -= 1
        self._call(line)

    def _tell_held_back(self) -> None:
        if self._held_back:
            count, self._held_back = self._held_back, 0
            self._call(f"[process] {count} lines are left out here; the stage's log file has them")

    def _call(self, line: str) -> None:
        if self._on_line is None:
            return
        try:
            self._on_line(line)
        except Exception as error:  # noqa: BLE001 - the run's log being down must not block a stage on a full pipe
            self._on_line = None
            self._log.write(f"[process] lines are no longer passed on: {error!r}\n".encode())
