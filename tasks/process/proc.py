"""Finding and ending the processes of a stage through /proc (Linux).

A process belongs to a stage if it carries the stage's marker in its environment, is in the supervisor's session or
process group, or descends from one that does. Three tests, because each can be lost: a daemon makes its own session,
vLLM's workers overwrite their environment with a process title, an orphan loses its ancestors.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

MARKER = "GRPO_STAGE_ID"
"""Environment variable that every process of a stage inherits."""

SOFT_S = 1.0
"""How long leftovers may take to end after SIGTERM before they are killed."""

HARD_S = 5.0
"""How long to go on killing; what is left then is stuck inside the kernel."""


@dataclass(frozen=True)
class Proc:
    """One live process; `start` (clock ticks since boot) tells it from a later one with the same pid.

    Two are equal when they are the same process: its parent changes when the old one dies, its group and session when it asks for it.
    """

    pid: int
    ppid: int = field(compare=False)
    group: int = field(compare=False)
    session: int = field(compare=False)
    start: int


def read_proc(pid: int) -> Proc | None:
    """The process `pid`, or None when it is gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The name (field 2) may hold spaces and brackets: count from the last closing bracket.
    fields = stat[stat.rindex(")") + 2 :].split()
    if fields[0] in "ZXx":
        return None
    return Proc(pid, ppid=int(fields[1]), group=int(fields[2]), session=int(fields[3]), start=int(fields[19]))


def snapshot() -> dict[int, Proc]:
    """All live processes by pid."""
    found = (read_proc(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {proc.pid: proc for proc in found if proc is not None}


def with_descendants(roots: Iterable[int], table: dict[int, Proc]) -> set[int]:
    """The pids in `roots` and of everything below them."""
    children: dict[int, list[int]] = {}
    for proc in table.values():
        children.setdefault(proc.ppid, []).append(proc.pid)
    seen: set[int] = set()
    todo = list(roots)
    while todo:
        pid = todo.pop()
        if pid not in seen:
            seen.add(pid)
            todo.extend(children.get(pid, ()))
    return seen


def _carries(pid: int, marker: bytes) -> bool:
    try:
        return marker in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def catches(pid: int, signum: int) -> bool:
    """Whether a process has a handler of its own for a signal."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (signum - 1) & 1)


def members(stage_id: str, session: int, *, below: int | None = None, exclude: Iterable[int] = ()) -> list[Proc]:
    """Every live process of the stage, oldest first, but for `exclude` and this process itself.

    Args:
        stage_id: the value of `MARKER`.
        session: the supervisor's session, whose id is also that of its process group.
        below: include all descendants of this process.
        exclude: pids to leave alone.
    """
    table = snapshot()
    marker = f"{MARKER}={stage_id}".encode()
    left_out = {os.getpid(), *exclude}
    roots = {
        proc.pid
        for proc in table.values()
        if proc.session == session or proc.group == session or _carries(proc.pid, marker)
    }
    pids = with_descendants(roots - left_out, table)
    if below is not None:
        pids |= with_descendants([below], table)
    pids -= left_out
    return sorted((table[pid] for pid in pids if pid in table), key=lambda proc: (proc.start, proc.pid))


def alive(proc: Proc) -> bool:
    """Whether this very process (not a later one with its pid) still runs."""
    now = read_proc(proc.pid)
    return now is not None and now.start == proc.start


def send(proc: Proc, signum: int) -> None:
    """Send a signal to this very process; nothing happens when it is gone or not ours."""
    if alive(proc):
        try:
            os.kill(proc.pid, signum)
        except (ProcessLookupError, PermissionError):
            return


def end_all(
    find: Callable[[], list[Proc]],
    tick: Callable[[float], None] = time.sleep,
    soft_s: float = SOFT_S,
) -> list[Proc]:
    """SIGTERM what `find` finds, wait up to `soft_s`, then SIGKILL until nothing is found or `HARD_S` has passed.

    Args:
        find: lists what has still to end; asked again every time, so that newly forked processes are seen.
        tick: waits for the given seconds; the supervisor reaps and drains in it.

    Returns:
        What could not be ended.
    """
    left = find()
    for proc in left:
        send(proc, signal.SIGTERM)
    deadline = time.monotonic() + soft_s
    while left and time.monotonic() < deadline:
        tick(0.05)
        left = find()
    deadline = time.monotonic() + HARD_S
    while left and time.monotonic() < deadline:
        for proc in left:
            send(proc, signal.SIGKILL)
        tick(0.05)
        left = find()
    return left


def wind_down(
    stage_pid: int | None,
    find: Callable[[], list[Proc]],
    grace_s: float,
    tick: Callable[[float], None] = time.sleep,
) -> list[Proc]:
    """End a stage whose supervisor is dead: ask the stage alone to stop, give it `grace_s` to save, then end all.

    The stage's helpers are left alone during the grace, for it may need them to finish its step.
    """
    stage = read_proc(stage_pid) if stage_pid is not None else None
    if stage is not None and stage in find():
        send(stage, signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while alive(stage) and time.monotonic() < deadline:
            tick(0.1)
    return end_all(find, tick)
