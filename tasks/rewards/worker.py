"""The process in which one of the user's reward functions runs, so that it can be killed.

It reads requests from one pipe and answers on another; its standard output and error go to the parent, which keeps a
little and drops the rest. Requests are pickles from the parent; answers are small JSON, whatever the function returned.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import queue
import signal
import threading
import traceback
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

from tasks.errors import ConfigError
from tasks.rewards.spec import MAX_MESSAGE, BadReturn, RewardFn, checked_values
from tasks.rewards.user import call, load

MAX_TEXT = 2000
"""Longest text that a function may log per completion, in characters; the rest is cut off."""

MAX_METRICS = 1000
"""Most `log_metric` calls that are kept per batch."""


def serve(request_fd: int, answer_fd: int) -> None:
    """Load the function named by the first request, then score one batch per request until the parent is gone."""
    answers = Connection(answer_fd, readable=False)
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(Connection(request_fd, writable=False), requests), daemon=True).start()
    first = pickle.loads(requests.get())  # noqa: S301 - only our parent writes to this pipe
    try:
        function = load(first["path"])
    except ConfigError as error:
        answers.send_bytes(_encode({"config": error.to_json()}))
        return
    answers.send_bytes(_encode({"ready": True}))
    with asyncio.Runner() as runner:
        while True:
            answers.send_bytes(_encode(_score(function, requests.get(), first["allow_none"], runner)))


def _receive(pipe: Connection, requests: queue.SimpleQueue[bytes]) -> None:
    """Pass requests on; end the whole process group when the parent is gone, even in the middle of a call."""
    while True:
        try:
            requests.put(pipe.recv_bytes())
        except (EOFError, OSError):
            if os.getpgrp() == os.getpid():
                os.killpg(os.getpid(), signal.SIGKILL)
            os._exit(0)


def _score(function: RewardFn, request: bytes, allow_none: bool, runner: asyncio.Runner) -> dict[str, Any]:
    metrics: list[tuple[str, float]] = []
    extras: dict[str, list[Any]] = {}
    try:
        offered = pickle.loads(request)  # noqa: S301 - only our parent writes to this pipe
        rows = len(offered["completions"])
        offered["trainer_state"] = SimpleNamespace(**offered["trainer_state"])
        offered["log_metric"] = lambda name, value: metrics.append((str(name), float(value)))
        offered["log_extra"] = lambda column, values: extras.setdefault(str(column), []).extend(values)
        values, errors = checked_values(call(function, offered, runner), rows, allow_none=allow_none)
    except ConfigError as error:
        return {"config": error.to_json()}
    except BadReturn as error:
        return {"bad_return": str(error)}
    except BaseException as error:  # noqa: BLE001 - SystemExit and the like are the function's faults, too
        return {"raised": _describe(error)}
    logged = {column: [_short(item) for item in items] for column, items in extras.items() if len(items) == rows}
    return {"values": values, "errors": errors, "metrics": metrics[:MAX_METRICS], "extras": logged}


def _short(item: Any) -> Any:
    return item if item is None or isinstance(item, int | float) else str(item)[:MAX_TEXT]


def _describe(error: BaseException) -> str:
    """The error and the last place in the function's own code."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - a broken __str__ must not hide the error
        text = "an error that cannot be printed"
    return f"raised {type(error).__name__}: {text}"[:MAX_MESSAGE] + place


def _encode(answer: dict[str, Any]) -> bytes:
    return json.dumps(answer).encode()
