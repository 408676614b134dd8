"""A headless browser through its DevTools protocol; tests that want it are skipped where no Chromium is installed."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
SIZES = {"desktop": (1280, 900), "phone": (390, 844)}
START_S = 60.0
# Elements that reach over the right edge, unless something between them and the page scrolls or cuts them off.
OVERFLOWING = """
(() => {
  const edge = document.documentElement.clientWidth + 0.5, found = [];
  document.querySelectorAll("body *").forEach(node => {
    if (node.getBoundingClientRect().right <= edge || getComputedStyle(node).visibility === "hidden") return;
    for (let up = node.parentElement; up && up !== document.body; up = up.parentElement)
      if (getComputedStyle(up).overflowX !== "visible") return;
    found.push(node.tagName + "." + (node.getAttribute("class") || ""));
  });
  return found.slice(0, 5);
})()
"""


class Browser:
    """One Chromium with one page. `problems` collects console errors, exceptions and requests that failed or left the file."""

    def __init__(self, program: str, folder: Path) -> None:
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--no-first-run"]
        arguments += ["--disable-dev-shm-usage", f"--user-data-dir={folder}", "about:blank"]
        env = {**os.environ, "HOME": str(folder)}
        self._process = subprocess.Popen(
            [program, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env
        )
        self._port_file, self._count = folder / "DevToolsActivePort", 0
        self.problems: list[str] = []
        self._events: list[dict[str, Any]] = []
        self._socket = connect(self._url(), max_size=1 << 28, open_timeout=START_S)
        targets = self.ask("Target.getTargets")["targetInfos"]
        page = next(target for target in targets if target["type"] == "page")
        self._session = self.ask("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    _session = ""

    def _url(self) -> str:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"the browser ended with {self._process.returncode}")
            lines = self._port_file.read_text().splitlines() if self._port_file.exists() else []
            if len(lines) >= 2:
                return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
            time.sleep(0.05)
        raise RuntimeError("the browser did not start")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol; events that arrive meanwhile are looked at."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._socket.send(json.dumps(message))
        while True:
            answer = json.loads(self._socket.recv(timeout=START_S))
            if answer.get("id") == self._count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self._look_at(answer)

    def _look_at(self, event: dict[str, Any]) -> None:
        method, data = event.get("method"), event.get("params", {})
        self._events.append(event)
        if method == "Runtime.exceptionThrown":
            self.problems.append(f"exception: {data['exceptionDetails'].get('exception', {}).get('description')}")
        elif method == "Log.entryAdded" and data["entry"]["level"] in ("error", "warning"):
            self.problems.append(f"{data['entry']['level']}: {data['entry']['text']}")
        elif method == "Runtime.consoleAPICalled" and data["type"] in ("error", "warning", "assert"):
            self.problems.append(f"console.{data['type']}: {data['args']}")
        elif method == "Network.loadingFailed":
            self.problems.append(f"loading failed: {data.get('errorText')}")
        elif method == "Network.requestWillBeSent" and not data["request"]["url"].startswith(
            ("file:", "data:", "about:")
        ):
            self.problems.append(f"request: {data['request']['url']}")

    def open(self, page: Path | str, size: str = "desktop", dark: bool = False) -> None:
        """Show a local file (or a URL) in a window of one of `SIZES`."""
        width, height = SIZES[size]
        self.problems.clear()
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=size == "phone",
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self._events.clear()
        self.ask("Page.navigate", url=page if isinstance(page, str) else page.absolute().as_uri())
        deadline = time.monotonic() + START_S
        while not any(event.get("method") == "Page.loadEventFired" for event in self._events):
            self.evaluate("1")
            assert time.monotonic() < deadline, "the page did not load"

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        result = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"])
        return result["result"].get("value")

    def overflow(self) -> tuple[int, list[str]]:
        """By how many pixels the page is wider than its window, and which elements are to blame."""
        width = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        return int(self.evaluate(width)), self.evaluate(OVERFLOWING)

    def move(self, x: float, y: float) -> None:
        """Move the pointer."""
        self.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def picture(self, path: Path) -> None:
        """The whole page as a PNG."""
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 16000), "scale": 1}
        data = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self) -> None:
        self._socket.close()
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("no Chromium is installed")
    made = Browser(program, tmp_path_factory.mktemp("browser"))
    yield made
    made.close()
