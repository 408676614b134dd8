"""A local Prefect server for one run, when none is configured. It dies with the run, by whatever signal.

Prefect's own ephemeral server is left running when its parent is killed; this one runs under our supervisor.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import prefect
from prefect.logging.handlers import APILogHandler
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

from artifacts.locks import file_lock
from tasks.errors import Retryable, StoreError
from tasks.stage import ROOT

START_S = 180.0
START_LOCK = "grpo-pipeline-server.lock"
"""In Prefect's home folder."""


@contextmanager
def prefect_server(log_file: Path, log: Callable[[str], None]) -> Iterator[bool]:
    """Within this block `PREFECT_API_URL` names a server: the configured one, or one of our own on a free port.

    Yields whether it is our own: that one has no limits and no automations.

    Raises:
        Retryable: the server ended or did not answer in time.
        StoreError: Prefect's home folder, where the server keeps its database, cannot be made.
    """
    if PREFECT_API_URL.value():
        yield False
        return
    _make_home(PREFECT_HOME.value())
    log_file.parent.mkdir(parents=True, exist_ok=True)
    watched, held = os.pipe()
    try:
        # One at a time: servers that start together on a new or an older database would migrate it together, and fail.
        with file_lock(PREFECT_HOME.value() / START_LOCK, on_wait=log):
            log("starting a local Prefect server for this run (set PREFECT_API_URL to use your own)")
            port = _free_port()
            url = f"http://127.0.0.1:{port}/api"
            process = _start(port, log_file, watched)
            os.close(watched)
            _wait(url, process, log_file)
        with temporary_settings({PREFECT_API_URL: url}):
            try:
                yield True
            finally:
                # Lines sent later would meet a server that is gone, and Prefect would print that they could not be sent.
                APILogHandler().flush()
        process.terminate()
    finally:
        os.close(held)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _start(port: int, log_file: Path, watched: int) -> subprocess.Popen[bytes]:
    """The server under a supervisor that ends it once nobody holds the other end of the pipe `watched`."""
    supervisor = [sys.executable, "-m", "tasks.process.supervisor", "--grace", "3", "--parent-fd", str(watched)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])),
        "PREFECT_UI_ENABLED": "0",
        "PREFECT__SERVER_EPHEMERAL": "1",
        "PREFECT__SERVER_FINAL": "1",
    }
    # How long a connection waits for another server of this database; Prefect's own 10 s are too short for a busy machine.
    environment.setdefault("PREFECT_SERVER_DATABASE_TIMEOUT", "60")
    with log_file.open("wb") as output:
        return subprocess.Popen(
            [*supervisor, "--", *_uvicorn(port)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=[watched],
            start_new_session=True,
        )


def _make_home(home: Path) -> None:
    """Prefect makes this folder itself, but not its parents, and only warns when it could not."""
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"Prefect's home folder cannot be made: {error.strerror}",
            where=str(home),
            fix="set PREFECT_HOME to a folder that can be written",
        ) from error


def _uvicorn(port: int) -> list[str]:
    command = [sys.executable, "-m", "uvicorn", "--app-dir", str(Path(prefect.__file__).parent.parent)]
    command += ["--factory", "prefect.server.api.server:create_app", "--host", "127.0.0.1", "--port", str(port)]
    return [*command, "--log-level", "error", "--lifespan", "on"]


def _wait(url: str, process: subprocess.Popen[bytes], log_file: Path) -> None:
    deadline = time.monotonic() + START_S
    with httpx.Client(timeout=5.0) as client:
        while time.monotonic() < deadline and process.poll() is None:
            try:
                if client.get(f"{url}/health").status_code == 200:
                    return
            except httpx.HTTPError:
                pass  # not up yet
            time.sleep(0.2)
    ended = process.poll()
    what = f"did not start within {START_S:.0f} s" if ended is None else f"ended with exit code {ended} while starting"
    tail = log_file.read_text(encoding="utf-8", errors="replace")[-2000:]
    raise Retryable(
        f"the local Prefect server {what}:\n{tail}",
        where=str(log_file),
        fix="try again, or start one with `prefect server start` and set PREFECT_API_URL",
    )
