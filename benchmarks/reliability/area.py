"""What every file of trials offers to the runner."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.reliability.lab import Lab
from benchmarks.reliability.results import Trial


@contextmanager
def nothing(lab: Lab) -> Iterator[None]:
    yield


@dataclass(frozen=True)
class Area:
    """One point of the list.

    Attributes:
        title: for the page.
        trials: all trials for a number of moments.
        run: carries one out. Returns at least `lost` (a list, empty for nothing), `noticed` and `went_on` (sentences).
        ready: what all of them need, such as a Prefect server.
    """

    title: str
    trials: Callable[[int], Sequence[Trial]]
    run: Callable[[Lab, Trial], dict[str, Any]]
    ready: Callable[[Lab], AbstractContextManager[None]] = nothing
