"""What a run does outside its stages, tried as often as a stage: an object store that is away for a moment ends no run."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from pipeline_config.run import RunConfig
from tasks.errors import PipelineError
from tasks.stage import Log

GROWTH = 5.0
LONGEST_S = 3600.0

Result = TypeVar("Result")


def pauses(run: RunConfig) -> list[float]:
    """Seconds before each retry: `run.retry_delay_s`, then five times as long each time. The defaults, 10 s and 50 s, see a run
    through a network that is gone for a minute."""
    # Prefect takes at most 50; after the first few all are the longest.
    return [
        min(run.retry_delay_s * GROWTH**number, max(LONGEST_S, run.retry_delay_s))
        for number in range(min(run.retries, 50))
    ]


def patiently(work: Callable[[], Result], run: RunConfig, warn: Log) -> Result:
    """Do `work`, and again after `pauses` as long as it raises errors that can go away.

    Raises:
        PipelineError: one that cannot go away, or the last one.
    """
    for pause in pauses(run):
        try:
            return work()
        except PipelineError as error:
            if not error.retryable:
                raise
            warn(f"{error.where or 'before the first stage'}: {error.message}; again in {pause:g} s")
        time.sleep(pause)
    return work()
