"""The parent's end of a reward worker: start it, ask it, kill it when it hangs, start it again."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tasks.errors import ConfigError, from_json
from tasks.process.secrets import mask_secrets

START_LIMIT_S = 120.0
"""Seconds that importing the user's module may take."""

OUTPUT_WAIT_S = 2.0
"""Seconds for the last prints of a worker that has ended; longer only when something it left behind holds the pipe."""

MAX_OUTPUT = 1 << 20
"""Bytes of a function's prints that are kept in `reward_output.log`, per function and run; the rest is dropped."""

LONGEST_SECRET = 4096
"""Bytes at the end of an unfinished line that wait for the next piece, so that a secret in two pieces is still masked."""

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from tasks.rewards.worker import serve; serve(int(sys.argv[2]), int(sys.argv[3]))"
)
_LEFT_OUT = frozenset({"trainer_state", "log_metric", "log_extra", "environments"})


class CallFailed(Exception):
    """One call of a reward function gave nothing: it raised, died or hung.

    Attributes:
        whole_batch: the fault cannot belong to single rows, so looking for them is useless.
    """

    def __init__(self, message: str, *, whole_batch: bool = False) -> None:
        super().__init__(message)
        self.whole_batch = whole_batch


class Worker:
    """A persistent process for one function, started on first use and again after it was killed.

    Args:
        path: `package.module:function`.
        allow_none: see `RewardFunction.allow_none`.
        log: file that gets the head of what the function prints; None drops all of it.
    """

    def __init__(self, path: str, *, allow_none: bool = False, log: Path | None = None) -> None:
        self.path, self.allow_none, self.log = path, allow_none, log
        self._process: subprocess.Popen[bytes] | None = None
        self._kept = [0]
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the process if it does not run, and wait until the function is loaded.

        Raises:
            ConfigError: the function cannot be loaded, or loading it takes longer than START_LIMIT_S.
        """
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        ask_end, requests = os.pipe()
        answers, answer_end = os.pipe()
        paths = [os.getcwd(), *[p for p in sys.path if p]]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, json.dumps(paths), str(ask_end), str(answer_end)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(ask_end, answer_end),
            process_group=0,  # so that what the function starts itself is killed with it
        )
        os.close(ask_end)
        os.close(answer_end)
        self._requests = Connection(requests, readable=False)
        self._answers = Connection(answers, writable=False)
        self._stop = weakref.finalize(self, _kill, self._process, self._requests, self._answers)
        self._output = threading.Thread(target=_drain, args=(self._process, self.log, self._kept), daemon=True)
        self._output.start()
        try:
            answer = _without_secrets(self._ask({"path": self.path, "allow_none": self.allow_none}, START_LIMIT_S))
        except CallFailed as error:
            raise ConfigError(
                f"the process that loads it {error}",
                where=f"rewards.functions: {self.path}",
                fix="import the module in a shell" + (f"; its output is in {self.log}" if self.log else ""),
            ) from error
        _raise_config(answer)

    def score(self, offered: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """Score one batch.

        Returns:
            `values`, `errors` (row as text -> message), `metrics` and `extras`.

        Raises:
            CallFailed: it raised, returned something else than one value per row, died, or took longer than `limit_s`.
            ConfigError: the function cannot be loaded or needs a column that is not there.
        """
        with self._lock:
            self.start()
            answer = _without_secrets(self._ask(_picklable(offered), limit_s))
        _raise_config(answer)
        if "raised" in answer:
            raise CallFailed(answer["raised"])
        if "bad_return" in answer:
            raise CallFailed(answer["bad_return"], whole_batch=True)
        return answer

    def close(self) -> None:
        """Kill the process, if any. The next call starts another one."""
        if self._process is not None:
            self._stop()
            self._process = None
            self._output.join(OUTPUT_WAIT_S)

    def _ask(self, payload: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        # The timer also covers a send into the full pipe of a stuck process.
        process = self._process
        assert process is not None
        deadline = time.monotonic() + limit_s
        timer = threading.Timer(limit_s, _kill_group, args=(process,))
        timer.daemon = True
        timer.start()
        try:
            self._requests.send_bytes(pickle.dumps(payload, pickle.HIGHEST_PROTOCOL))
            if not self._answers.poll(limit_s + 1.0):
                raise EOFError
            answer: dict[str, Any] = json.loads(self._answers.recv_bytes())
            return answer
        except (EOFError, OSError) as error:
            late = time.monotonic() >= deadline
            if not late:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.5)  # let it end by itself, to tell how it ended
            self.close()
            if late:
                raise CallFailed(f"did not return within {limit_s:.3g} s and was killed") from error
            raise CallFailed(f"ended its process ({_ending(process)})") from error
        except BaseException:
            self.close()  # an interrupt in the middle of an answer leaves the pipe out of step
            raise
        finally:
            timer.cancel()


def _raise_config(answer: Mapping[str, Any]) -> None:
    if "config" in answer:
        raise from_json(answer["config"])


def _picklable(offered: Mapping[str, Any]) -> dict[str, Any]:
    """The columns that can be sent, and the numbers of the trainer's state."""
    state = offered.get("trainer_state")
    numbers = {
        name: value
        for name in ("global_step", "max_steps", "epoch", "num_train_epochs")
        if isinstance(value := getattr(state, name, None), int | float)
    }
    columns = {name: value for name, value in offered.items() if name not in _LEFT_OUT}
    sent: dict[str, Any] = {"trainer_state": numbers}
    for name, value in columns.items():
        try:
            pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        except Exception:  # noqa: BLE001, S112 - a function that needs this column is told that it is missing
            continue
        sent[name] = value
    return sent


def _ending(process: subprocess.Popen[bytes]) -> str:
    code = process.returncode
    if code is None or code >= 0:
        return f"exit code {code}"
    return f"signal {signal.Signals(-code).name}" if -code in {s.value for s in signal.Signals} else f"signal {-code}"


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is None:  # not reaped yet, so the number is still its own
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _kill(process: subprocess.Popen[bytes], *pipes: Connection) -> None:
    """Kill the process and what it started, reap it, and close our ends of its pipes."""
    if process.poll() is None:
        _kill_group(process)
        process.wait()
    for pipe in pipes:
        pipe.close()


def _without_secrets(value: Any) -> Any:
    """An answer with the values of secret variables masked: its messages go into logs, findings and rollouts."""
    if isinstance(value, str):
        return mask_secrets(value, os.environ)
    if isinstance(value, dict):
        return {key: _without_secrets(item) for key, item in value.items()}
    return [_without_secrets(item) for item in value] if isinstance(value, list) else value


def _drain(process: subprocess.Popen[bytes], log: Path | None, kept: list[int]) -> None:
    """Read all that the function prints, so that it never blocks; keep the first MAX_OUTPUT bytes, without secrets."""
    assert process.stdout is not None
    pending = b""
    with process.stdout as stream:
        while chunk := os.read(stream.fileno(), 1 << 16):
            head = chunk[: max(0, MAX_OUTPUT - kept[0])]
            kept[0] += len(head)
            if log is not None and head:
                # Whole lines, or all but the end of a long one: a secret may lie across two pieces.
                pending = _masked(pending + head)
                full = kept[0] >= MAX_OUTPUT
                cut = len(pending) if full else max(pending.rfind(b"\n") + 1, len(pending) - LONGEST_SECRET)
                _append(log, pending[:cut])
                pending = pending[cut:]
    if log is not None and pending:
        _append(log, _masked(pending))


def _masked(text: bytes) -> bytes:
    return mask_secrets(text.decode("utf-8", "surrogateescape"), os.environ).encode("utf-8", "surrogateescape")


def _append(log: Path, text: bytes) -> None:
    with log.open("ab") as file:
        file.write(text)
