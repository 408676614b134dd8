"""Prefect logs a traceback for every exception; for an error that the user can mend, the message is enough."""

from __future__ import annotations

import logging

from tasks.errors import PipelineError


class _WithoutTraceback(logging.Filter):
    """Drops the traceback of a PipelineError; everything else keeps it."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, PipelineError):
            record.exc_info, record.exc_text = None, None
        return True


def calm_tracebacks() -> None:
    """Install the filter on Prefect's run loggers, once."""
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        logger = logging.getLogger(name)
        if not any(isinstance(item, _WithoutTraceback) for item in logger.filters):
            logger.addFilter(_WithoutTraceback())
