"""The stage's own last line of defence: it ends itself when everyone who could end it is dead.

The supervisor and its guard hold the writing end of a pipe, the stage the reading end. When both have been killed
the stage's watchdog thread sees the end of the pipe, asks for a save by SIGTERM, and after the grace kills all
that belongs to the stage, itself last.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

from tasks.process import proc

WATCH = "GRPO_STAGE_WATCH"
"""Environment variable `fd:session:grace_s`, set by the supervisor for the stage."""


class Watchdog:
    """Watches the pipe that `WATCH` names; does nothing when the stage was started by hand.

    Args:
        log: the stage's log file, which takes its output once nobody reads it any more.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self.orphaned = False
        self._stage_id = os.environ.get(proc.MARKER, "")
        fd, session, grace = (os.environ.pop(WATCH, "") or "-1:-1:0").split(":")
        self._fd, self._session, self._grace_s = int(fd), int(session), float(grace)
        if self._fd >= 0 and self._stage_id:
            os.set_inheritable(self._fd, False)
            threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def _watch(self) -> None:
        while os.read(self._fd, 1):
            continue
        self.orphaned = True
        # Nobody reads the output any more: a print during the last save must not fail on a broken pipe.
        log = os.open(self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        for fd in (1, 2):
            os.dup2(log, fd)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(self._grace_s)
        self.sweep()
        os.kill(os.getpid(), signal.SIGKILL)

    def sweep(self) -> None:
        """End the stage's other processes if the stage has been orphaned; called by the stage as it exits."""
        if self.orphaned:
            proc.end_all(lambda: proc.members(self._stage_id, self._session))
