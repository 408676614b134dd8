"""A training stage on several processes: starts one per rank, and ends them together. No torch here.

Every rank runs `stage_main` with the variables of torch's env:// rendezvous, so accelerate finds its world without a
launcher's configuration. Rank 0 alone writes the stage's files. What another rank fails with is kept in
`error-rank<n>.json` and becomes the stage's error.json unless rank 0 knows better.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.errors import BY_EXIT_CODE, Retryable
from tasks.process.context import ERROR_FILE
from tasks.process.jsonio import read_json, write_json

SEVERAL = frozenset({"sft", "grpo"})
"""Stages that run on `parallel.processes` processes."""

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
TICK_S = 0.1
FAILED_GRACE_S = 10.0
"""After one rank has failed the others hang in their next collective operation: so long they get to fail by themselves."""


def rank() -> int:
    """This process's rank; 0 outside of a group."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """Processes of this stage."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def environments(processes: int, env: Mapping[str, str], cores: int) -> list[dict[str, str]]:
    """The environment of every rank.

    Args:
        processes: number of ranks, all on this machine.
        env: what they share.
        cores: processor cores, shared out unless OMP_NUM_THREADS is set.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "OMP_NUM_THREADS": str(max(1, cores // processes)),
    }
    return [{**shared, **env, "RANK": str(at), "LOCAL_RANK": str(at), **_fixed(shared)} for at in range(processes)]


def _fixed(shared: Mapping[str, str]) -> dict[str, str]:
    """What an outer launcher's environment must not decide."""
    return {name: value for name, value in shared.items() if name != "OMP_NUM_THREADS"}


def run_ranks(argv: Sequence[str], processes: int, work_dir: Path) -> int:
    """Run a command once per rank until all have ended, and return the exit code of the stage.

    SIGTERM and SIGINT go to every rank, which then agree on the step at which they save; so does SIGUSR1, for their stacks. When a
    rank fails, the others get `FAILED_GRACE_S` and are then killed. Inheritable descriptors (held locks) stay open in every rank.
    """
    for path in work_dir.glob("error-rank*.json"):
        path.unlink()
    ranks = [
        subprocess.Popen(list(argv), env=env, close_fds=False)
        for env in environments(processes, os.environ, len(os.sched_getaffinity(0)))
    ]

    def forward(signum: int, _frame: object) -> None:
        for one in ranks:
            if one.poll() is None:
                one.send_signal(signum)

    for number in FORWARDED:
        signal.signal(number, forward)
    try:
        return settle(_codes(ranks), work_dir)
    finally:
        for one in ranks:
            if one.poll() is None:
                one.kill()
                one.wait()


def _codes(ranks: Sequence[subprocess.Popen[bytes]]) -> list[int]:
    """Exit codes (128 + signal for one that a signal ended), once all have ended."""
    failed_at = None
    killed: set[int] = set()
    while any(one.poll() is None for one in ranks):
        if failed_at is None and any(one.poll() not in (None, 0) for one in ranks):
            failed_at = time.monotonic()
        if failed_at is not None and time.monotonic() - failed_at > FAILED_GRACE_S:
            for at, one in enumerate(ranks):
                if one.poll() is None:
                    killed.add(at)
                    one.kill()
        time.sleep(TICK_S)
    # One that was killed for another's failure has none of its own.
    return [
        0 if at in killed else code if (code := one.returncode) >= 0 else 128 - code for at, one in enumerate(ranks)
    ]


def settle(codes: Sequence[int], work_dir: Path) -> int:
    """The stage's exit code; error.json is made from another rank's when that one says more than rank 0's.

    A rank whose neighbour has failed reports a broken connection, which says nothing: a plain or retryable error gives
    way to any other, and rank 0's goes first among equals.
    """
    failed = [at for at, code in enumerate(codes) if code]
    if not failed:
        return 0
    vague = (1, Retryable.exit_code)
    known = [at for at in failed if codes[at] in BY_EXIT_CODE and codes[at] not in vague]
    blamed = (known or [at for at in failed if codes[at] not in vague] or failed)[0]
    own: Any = read_json(work_dir / f"error-rank{blamed}.json") if blamed else None
    if isinstance(own, dict):
        write_json(work_dir / ERROR_FILE, {**own, "where": f"{own.get('where', '')} (rank {blamed})".strip()})
    elif blamed:
        # It was killed: what rank 0 says is only that the connection broke.
        (work_dir / ERROR_FILE).unlink(missing_ok=True)
    return codes[blamed]
