"""Trials and their outcomes, in one JSON file that grows over many invocations."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tasks.stage import git_revision

FILE = Path(__file__).resolve().parents[1] / "reliability.json"


@dataclass(frozen=True)
class Trial:
    """One thing to do.

    Attributes:
        area: number of the list in the issue, such as `1-kills`.
        fault: what is done, such as `kill-9 trainer`.
        stage: to which stage it is done; empty when it is not about one.
        moment: number of the random moment, which is also its seed.
    """

    area: str
    fault: str
    stage: str = ""
    moment: int = 0

    @property
    def key(self) -> str:
        return "/".join((self.area, self.fault, self.stage or "-", str(self.moment)))


class Results:
    """What is known so far. A trial that raised counts as not done, but its error is kept."""

    def __init__(self, path: Path = FILE) -> None:
        self.path = path
        self.trials = self._read()

    def _read(self) -> dict[str, dict[str, Any]]:
        if not self.path.exists():
            return {}
        return {item["key"]: item for item in json.loads(self.path.read_text(encoding="utf-8"))}

    def done(self, trial: Trial) -> bool:
        return trial.key in self.trials and "error" not in self.trials[trial.key]

    def add(self, trial: Trial, outcome: dict[str, Any]) -> None:
        at = datetime.now(UTC).isoformat(timespec="seconds")
        with self._alone():
            self.trials = self._read()  # another lane may have added to it
            self.trials[trial.key] = {"key": trial.key, **vars(trial), "at": at, "revision": git_revision(), **outcome}
            part = self.path.with_suffix(".part")
            part.write_text(json.dumps([self.trials[key] for key in sorted(self.trials)], indent=1) + "\n", "utf-8")
            os.replace(part, self.path)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        folder = os.open(self.path.resolve().parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)
