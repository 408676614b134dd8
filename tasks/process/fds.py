"""Small helpers for pipes between the launcher, the supervisor and the stage."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Callable, Iterable

CHUNK = 65536


def close_fds(*fds: int | None) -> None:
    """Close descriptors; None and already closed ones are passed over."""
    for fd in fds:
        if fd is not None:
            with contextlib.suppress(OSError):
                os.close(fd)


def readable(fds: Iterable[int], timeout_s: float) -> set[int]:
    """Those of `fds` that have data or have reached their end, waiting up to `timeout_s` (poll: any fd number)."""
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    return {fd for fd, _ in poller.poll(max(0.0, timeout_s) * 1000)}


def at_end(fd: int) -> bool:
    """Whether a pipe that nothing is written to has lost its last writer. Never waits."""
    return bool(readable([fd], 0)) and not os.read(fd, CHUNK)


def drain(fd: int, take: Callable[[bytes], None], most: int = 256) -> bool:
    """Pass on what a pipe holds now, at most `most` pieces. Never waits. False once the pipe has ended."""
    for _ in range(most):
        if not readable([fd], 0):
            return True
        data = os.read(fd, CHUNK)
        if not data:
            return False
        take(data)
    return True
