"""A finding: what a check saw, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail", "not_measured"]


@dataclass(frozen=True)
class Finding:
    """The result of one check; `not_measured` is an honest answer, never `ok` by default."""

    name: str
    """Machine-readable name of the check."""
    status: Status
    evidence: str
    """What was seen, with the numbers or texts that show it."""
    fix: str = ""
    """What the user can do; empty when nothing is needed."""
