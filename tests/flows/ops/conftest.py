"""A Prefect server as an operator starts it, with authentication, and a receiver of webhooks."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, PREFECT_HOME, temporary_settings

AUTH = "admin:letmein-not"


@dataclass
class Hook:
    """What a webhook received, oldest first."""

    url: str
    received: list[dict[str, Any]] = field(default_factory=list)

    def wait(self, text: str, seconds: float = 30.0) -> dict[str, Any]:
        """The first message that holds `text`."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for message in list(self.received):
                if text in json.dumps(message):
                    return message
            time.sleep(0.1)
        raise AssertionError(f"no message with {text!r}: {self.received}")


@pytest.fixture(scope="session")
def hook() -> Iterator[Hook]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            made.received.append(json.loads(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        made = Hook(f"http://127.0.0.1:{server.server_port}/hook")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield made
        server.shutdown()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of the API of a server that asks for `AUTH`; this process uses it, with a Prefect home of its own."""
    home = tmp_path_factory.mktemp("prefect")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ,
        "PREFECT_HOME": str(home),
        "PREFECT_SERVER_API_AUTH_STRING": AUTH,
        "PREFECT_API_AUTH_STRING": AUTH,
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_UI_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    }
    environment.pop("PREFECT_API_URL", None)
    url = f"http://127.0.0.1:{port}/api"
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with (Path(home) / "server.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        for _ in range(600):
            try:
                if httpx.get(f"{url}/health", auth=tuple(AUTH.split(":")), timeout=5).status_code == 200:
                    break
            except httpx.HTTPError:
                pass
            assert process.poll() is None, (Path(home) / "server.log").read_text()
            time.sleep(0.2)
        with temporary_settings({PREFECT_API_URL: url, PREFECT_API_AUTH_STRING: AUTH, PREFECT_HOME: home}):
            yield url
    finally:
        process.terminate()
        process.wait(20)
