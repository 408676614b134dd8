"""Locks that the kernel frees when their holder dies, by whatever signal.

`flock` belongs to the *open file description*: a child process that inherits the descriptor holds the lock too, so
it stays held until the last of them is gone. That is wanted: a stage process that outlives its parent for a
second still owns its fingerprint. Lock files are never deleted (a waiter could be holding the old inode).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from artifacts.faults import translated
from tasks.errors import Retryable, StoreError

REPEAT_S = 60.0
"""`on_wait` is called again after this long, and at once when the holder changes."""

_INFO_BYTES = 4096


@contextmanager
def file_lock(
    path: Path,
    *,
    on_wait: Callable[[str], None] | None = None,
    timeout_s: float | None = None,
    poll_s: float = 0.2,
) -> Iterator[int]:
    """Hold an exclusive lock on `path`, which is created (with its folders) if need be.

    Yields the lock's file descriptor, which is inheritable: pass it on with `subprocess.Popen(pass_fds=[fd])` and
    the lock stays held until that process is gone as well. Each call is a holder of its own, so that two threads
    of one process exclude each other.

    Args:
        on_wait: called with a sentence that names the holder, when there is a wait.
        timeout_s: give up after this long; None waits for ever, 0 tries once.
        poll_s: pause between two attempts.

    Raises:
        Retryable: (cause `lock_timeout`) not obtained in time.
        StoreError: the file cannot be opened, or the file system has no locks.
    """
    fd = _acquire(path, on_wait, timeout_s, poll_s)
    try:
        _write_holder(fd)
        yield fd
    finally:
        # No LOCK_UN: it would also take the lock from children that inherited the descriptor.
        os.close(fd)


def lock_holder(path: Path) -> str | None:
    """Who holds the lock, in words; None if nobody does (or there is no such file).

    Looking takes a shared lock for an instant: a `file_lock(timeout_s=0)` in that instant sees it as held.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return None if _try_lock(fd, path, fcntl.LOCK_SH) else _describe(fd)
    finally:
        os.close(fd)


def _acquire(path: Path, on_wait: Callable[[str], None] | None, timeout_s: float | None, poll_s: float) -> int:
    start = time.monotonic()
    said, said_at = "", 0.0
    while True:
        fd = _open(path)
        try:
            while not _try_lock(fd, path):
                now = time.monotonic()
                holder = _describe(fd)
                if timeout_s is not None and now - start >= timeout_s:
                    raise Retryable(
                        f"the lock is held by {holder}; gave up after {now - start:.0f} s",
                        where=str(path),
                        fix="wait until it ends, or stop it",
                        cause="lock_timeout",
                    )
                if on_wait is not None and (holder != said or now - said_at >= REPEAT_S):
                    on_wait(f"waiting for {path.name}: held by {holder}")
                    said, said_at = holder, now
                left = poll_s if timeout_s is None else min(poll_s, max(0.0, start + timeout_s - now))
                time.sleep(left)
        except BaseException:
            os.close(fd)
            raise
        if _is_current(fd, path):
            os.set_inheritable(fd, True)
            return fd
        # Someone deleted or replaced the file while we waited: a lock on the old inode excludes nobody.
        os.close(fd)


def _open(path: Path) -> int:
    with translated(str(path), "open the lock file"):
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)


def _try_lock(fd: int, path: Path, kind: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise StoreError(
            f"this file system has no file locks: {error.strerror}",
            where=str(path),
            fix="put it on a local disk, or mount the network file system with locks (flock) on",
        ) from error
    return True


def _is_current(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def _write_holder(fd: int) -> None:
    started = datetime.now(UTC).isoformat(timespec="seconds")
    text = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "started": started})
    # The text only serves the message of those who wait; a full disk must not cost the lock.
    with contextlib.suppress(OSError):
        os.ftruncate(fd, 0)
        os.pwrite(fd, text.encode(), 0)


def _describe(fd: int) -> str:
    try:
        data = json.loads(os.pread(fd, _INFO_BYTES, 0))
        pid, host, started = int(data["pid"]), str(data["host"]), str(data["started"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return "another process (it left no readable name)"
    text = f"process {pid} on {host} since {started}"
    if host == socket.gethostname() and not os.path.exists(f"/proc/{pid}") and os.path.isdir("/proc/self"):
        text += " (gone, but a process it started still holds the lock)"
    return text
