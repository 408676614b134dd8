"""Cancelling a run that has no worker: one started from the command line, or whose worker was killed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import TypeVar
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext
from prefect.exceptions import PrefectException, TerminationSignal
from prefect.states import Cancelled, State

EVERY_S = 15.0
PATIENCE = 5
"""Times in a row that a run is seen as `Cancelling` before it ends itself, 60 to 75 s: a worker that lives polls every 10 s and
kills 30 s after its SIGTERM."""


Result = TypeVar("Result")


def cancellable(work: Callable[[], Result], every_s: float = EVERY_S, patience: int = PATIENCE) -> Result | State:
    """Do `work` in this flow run. If the run stays `Cancelling`, it gets SIGTERM, as its worker would have sent it.

    Returns:
        What `work` returns, or a state `Cancelled`.
    """
    asked, done = threading.Event(), threading.Event()
    context = FlowRunContext.get()
    if context is not None and context.flow_run is not None:
        run_id = context.flow_run.id
        # In a copy of the context: it holds which server is ours.
        arguments = (_watch, run_id, asked, done, every_s, patience)
        threading.Thread(target=copy_context().run, args=arguments, name="cancellation", daemon=True).start()
    try:
        return work()
    except TerminationSignal:
        if not asked.is_set():
            raise
        return Cancelled(message="cancelled without a worker: the run saw it itself")
    finally:
        done.set()


def _watch(run_id: UUID, asked: threading.Event, done: threading.Event, every_s: float, patience: int) -> None:
    seen = 0
    with get_client(sync_client=True) as client:
        while not done.wait(every_s):
            try:
                state = client.read_flow_run(run_id).state
            except (httpx.HTTPError, PrefectException, OSError):  # a server that is down cancels nothing
                continue
            seen = seen + 1 if state is not None and state.is_cancelling() else 0
            if seen >= patience and not done.is_set():
                asked.set()
                os.kill(os.getpid(), signal.SIGTERM)
                return
