"""Symbolic comparison of LaTeX answers through math-verify, in one guarded process that is reused and killed when late.

Only golds that are no literal come here, after the exact check. math-verify is imported by the worker alone, so that
nothing it does (timers, hangs, memory) can touch the caller. Safe from any thread and after a fork.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import select
import subprocess
import sys
import threading
import time
import warnings
from functools import lru_cache
from pathlib import Path

from tasks.contract.layout import fold_unicode

TIMEOUT_S = 2.0
"""CPU seconds that one comparison may take."""
WALL_FACTOR = 5
"""A comparison is killed after this many times its CPU seconds by the clock, whatever it waits for."""
START_TIMEOUT_S = 60.0
"""Limit for starting the worker: it imports an algebra system on a machine that may be busy."""
MAX_LENGTH = 400
"""Characters of either side."""
_MAX_DEPTH = 10
_MAX_POWERS = 8
_MAX_DIGITS = 60

_DEEP_POWER = re.compile(r"(?:\^|\*\*)\s*(?:\{[^{}]*|\([^()]*|-?\w+\s*)(?:\^|\*\*)|\^\s*\{[^{}]*\{[^{}]*\^")
_BIG_POWER = re.compile(r"(?:\^|\*\*)\s*[{(]*\s*-?\s*\d{4,}")
_BIG_FACTORIAL = re.compile(r"\d{3,}\s*[)}\]]*\s*!|!\s*[)}\]]*\s*!|\^[^!]{0,40}!")
_BIG_BINOMIAL = re.compile(r"binom[^\\]{0,20}\d{4,}")
_LONG_RANGE = re.compile(r"\\(?:sum|prod|int|lim)(?![a-zA-Z])")
_LONG_DIGITS = re.compile(rf"\d{{{_MAX_DIGITS + 1},}}")
_CODE = re.compile(r"__|import|lambda|eval|exec|open\(|\$")


def may_compare(answer: str, gold: str) -> bool:
    """Cheap refusal of texts that could only cost time: long, deep, towers of powers, large factorials, sums, code."""
    return not any(_dangerous(text) for text in (answer, gold))


def _dangerous(text: str) -> bool:
    if not text.strip() or len(text) > MAX_LENGTH or text.count("^") > _MAX_POWERS:
        return True
    depth = deepest = 0
    for ch in text:
        depth += (ch in "({[") - (ch in ")}]")
        deepest = max(deepest, depth)
    if deepest > _MAX_DEPTH:
        return True
    patterns = (_DEEP_POWER, _BIG_POWER, _BIG_FACTORIAL, _BIG_BINOMIAL, _LONG_RANGE, _LONG_DIGITS, _CODE)
    return any(pattern.search(text) for pattern in patterns)


def same_latex(answer: str, gold: str, timeout_s: float = TIMEOUT_S) -> bool:
    """Whether two LaTeX texts (without `$`) are equal expressions, tuples, sets, intervals or relations.

    False when the worker cannot decide within `timeout_s` CPU seconds (it is killed then, and the next call starts another),
    when either text is refused by `may_compare`, and, with a warning, when the worker cannot start.
    """
    if not may_compare(answer, gold):
        return False
    try:
        return _decided(fold_unicode(answer), fold_unicode(gold), timeout_s)
    except _UndecidedError:
        return False


class _UndecidedError(Exception):
    """The worker gave no verdict in time; not remembered, because the machine may only have been busy."""


@lru_cache(maxsize=4096)
def _decided(answer: str, gold: str, timeout_s: float) -> bool:
    with _LOCK:
        verdict = _ask({"gold": gold, "answer": answer, "seconds": timeout_s}, timeout_s)
    if verdict is None:
        raise _UndecidedError
    return verdict


def close() -> None:
    """End the worker, if there is one; the next comparison starts another."""
    with _LOCK:
        _drop()


class _Worker:
    """A running worker process and the pipe to it."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        script = str(Path(__file__).with_name("latex_worker.py"))
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-X", "utf8", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        self.pending = b""

    def read_line(self, timeout_s: float) -> bytes | None:
        """The next line, or None when it does not come in time or the process has ended."""
        stream = self.process.stdout
        assert stream is not None
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self.pending:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([stream], [], [], left)[0]:
                return None
            piece = os.read(stream.fileno(), 65536)
            if not piece:
                return None
            self.pending += piece
        line, _, self.pending = self.pending.partition(b"\n")
        return line

    def kill(self) -> None:
        """Kill the process and close the pipes; in a forked child, only close this copy of them."""
        if self.owner == os.getpid():
            self.process.kill()
            self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


_LOCK = threading.Lock()
_worker: _Worker | None = None
_starts_failed = 0
_MAX_FAILED_STARTS = 3


def _ask(request: dict[str, object], timeout_s: float) -> bool | None:
    worker = _running()
    if worker is None:
        return None
    assert worker.process.stdin is not None
    try:
        worker.process.stdin.write(json.dumps(request).encode() + b"\n")
        line = worker.read_line(WALL_FACTOR * timeout_s)
    except OSError:
        line = None
    if line is None:
        _drop()
        return None
    return bool(json.loads(line).get("same", False))


def _running() -> _Worker | None:
    global _worker, _starts_failed
    if _worker is not None and (_worker.owner != os.getpid() or _worker.process.poll() is not None):
        _drop()
    if _worker is not None or _starts_failed >= _MAX_FAILED_STARTS:
        return _worker
    worker = _Worker()
    if worker.read_line(START_TIMEOUT_S) is None:
        worker.kill()
        _starts_failed += 1
        warnings.warn(
            "LaTeX golds cannot be compared: the math-verify worker did not start. Answers that are not textually equal "
            "to such a gold count as wrong. Is math-verify installed?",
            RuntimeWarning,
            stacklevel=4,
        )
        return None
    _starts_failed = 0
    _worker = worker
    return worker


def _drop() -> None:
    global _worker
    worker, _worker = _worker, None
    if worker is not None:
        worker.kill()


def _after_fork() -> None:
    """A child shares the parent's pipes but must not use them; its lock may be held by a thread it does not have."""
    global _LOCK, _worker
    _LOCK = threading.Lock()
    _worker = None


os.register_at_fork(after_in_child=_after_fork)
atexit.register(close)
