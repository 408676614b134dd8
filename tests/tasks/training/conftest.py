"""A stand-in for the SwanLab service: as much of its interface as the client uses, on a local port."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

KEY = "key-of-the-tests-0123456789"


class Service(ThreadingHTTPServer):
    """Knows experiments by their id and what was logged to them; `dead` drops every connection without an answer, `refuse` lets
    nobody in, and no answer comes while `silent` is cleared."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.experiments: dict[str, dict[str, Any]] = {}
        self.scalars: list[tuple[str, str, int, float]] = []
        self.media: list[dict[str, Any]] = []
        self.uploads: list[bytes] = []
        self.states: list[str] = []
        self.seen = ""
        self.dead = False
        self.refuse = False
        self.silent = threading.Event()
        self.silent.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Service

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""

    def do_HEAD(self) -> None:
        self.answer({}, 404)

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.seen += f"{self.path} {body[:5000]!r}\n"
        self.server.silent.wait(30)
        if self.server.dead:
            self.close_connection = True
            return
        path = self.path.removeprefix("/api")
        if path.startswith("/put/"):
            self.server.uploads.append(body)
            self.answer({})
            return
        data = json.loads(body) if body else {}
        if self.server.refuse:
            self.answer({"code": "unauthorized", "message": "who are you?"}, 401)
        elif path == "/login/api_key":
            user = {"username": "ada", "name": "Ada"}
            self.answer({"sid": "s", "expiredAt": "2099-01-01T00:00:00.000Z", "userInfo": user})
        elif path.endswith("/experiment"):
            known = data["cuid"] in self.server.experiments
            made = {"cuid": data["cuid"], "slug": data["cuid"], "name": data["name"], "createdAt": data["createdAt"]}
            self.server.experiments[data["cuid"]] = data
            self.answer(made, 200 if known else 201)
        elif path.startswith("/house/metrics/summaries/"):
            last: dict[str, int] = {}
            for _, key, step, _ in self.server.scalars:
                last[key] = max(step, last.get(key, -1))
            self.answer({"scalar": [{"key": key, "step": step} for key, step in last.items()], "media": [], "log": []})
        elif path == "/house/metrics":
            if data["type"] == "scalar":
                self.server.scalars += [
                    (data["experimentId"], m["key"], m["index"], m["data"]) for m in data["metrics"]
                ]
            elif data["type"] == "media":
                self.server.media += data["metrics"]
            self.answer({})
        elif path == "/resources/presigned/put":
            self.answer({"urls": [f"{self.server.url}/put/{i}" for i in range(len(data["paths"]))]})
        elif path.endswith("/state"):
            self.server.states.append(data["state"])
            self.answer({})
        else:
            group = {"username": "ada"}
            count = {"experiments": 0}
            self.answer(
                {"cuid": "p", "name": "grpo-pipeline", "path": "/ada/p", "group": group, "_count": count, "version": 1}
            )

    do_GET = do_POST = do_PUT = handle_any

    def answer(self, data: Any, status: int = 200) -> None:
        body = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """The service, and an environment in which SwanLab uses it."""
    server = Service()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("SWANLAB_API_HOST", server.url)
    monkeypatch.setenv("SWANLAB_API_KEY", KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield server
    server.silent.set()
    server.shutdown()
    server.server_close()
    from swanlab.sdk.internal.core_python import client

    if client.exists():
        client.reset()
