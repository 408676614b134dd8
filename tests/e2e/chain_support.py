"""How the end-to-end tests call the command line on a home folder."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# A parent that does not exist yet, as on a fresh machine.
_PREFECT_HOME = Path(tempfile.mkdtemp(prefix="grpo-prefect-")) / "new" / "prefect"


@dataclass(frozen=True)
class Chain:
    """A home folder in which the chain has run, and how to call the command line on it."""

    home: Path

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "flows.cli", *arguments]

    @property
    def options(self) -> list[str]:
        return ["--profile", "tiny", "--set", f"run.home={self.home}", "--set", "evaluation.samples=4"]

    def call(self, *arguments: str, timeout: float = 900) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; the output is in the assertion message when it fails."""
        return subprocess.run(
            self.command(*arguments), cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=timeout
        )


def environment() -> dict[str, str]:
    """No server, no colours, and a Prefect home of its own."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    env.update(NO_COLOR="1", COLUMNS="200", PREFECT_HOME=str(_PREFECT_HOME))
    return env
