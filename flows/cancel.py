"""Cancelling: a run without a worker (started from the command line, or its worker was killed) sees itself that it is to
end, and one with a worker ends as `Cancelled` at once instead of waiting for its worker to say so."""

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
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from prefect.states import Cancelled, State

EVERY_S = 2.0
PATIENCE = 2
"""Times in a row that a run is seen as `Cancelling` before it ends itself: 2 to 4 s, after which a worker that hears of it has
sent its own SIGTERM. With the largest `run.grace_s` nothing of the run is alive after 30 s."""
LAST_LOOK_S = 3.0

Result = TypeVar("Result")


def cancellable(work: Callable[[], Result], every_s: float = EVERY_S, patience: int = PATIENCE) -> Result | State:
    """Do `work` in this flow run. If the run stays `Cancelling`, it gets SIGTERM, as its worker would have sent it.

    Returns:
        What `work` returns, or a state `Cancelled`.
    """
    asked, done = threading.Event(), threading.Event()
    context = FlowRunContext.get()
    run_id = context.flow_run.id if context is not None and context.flow_run is not None else None
    if run_id is not None:
        # In a copy of the context: it holds which server is ours.
        arguments = (_watch, run_id, asked, done, every_s, patience)
        threading.Thread(target=copy_context().run, args=arguments, name="cancellation", daemon=True).start()
    try:
        result = work()
        if run_id is not None and _is_cancelling(run_id):
            # Prefect refuses Completed after Cancelling: the run would stay so until the server gives up, after minutes.
            return Cancelled(message="cancelled when all was done and stored")
        return result
    except TerminationSignal:
        if asked.is_set():
            return Cancelled(message="cancelled: the run saw it itself")
        if run_id is None or not _is_cancelling(run_id):
            raise
        # Raised on, the flow would end as crashed, or stay Cancelling until its worker has loaded it once more for its hooks.
        return Cancelled(message="cancelled; what is finished is stored, and the next run goes on from there")
    except Exception as error:
        if run_id is None or not _is_cancelling(run_id):
            raise
        # Prefect refuses Failed, too.
        return Cancelled(message=f"cancelled, when it had failed: {type(error).__name__}: {error}")
    finally:
        done.set()


def _is_cancelling(run_id: UUID) -> bool:
    """Whether the run is being cancelled; False when the server does not say so soon."""
    try:
        with (
            temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}),
            get_client(sync_client=True, httpx_settings={"timeout": LAST_LOOK_S}) as client,
        ):
            state = client.read_flow_run(run_id).state
    except (httpx.HTTPError, PrefectException, OSError):
        return False
    return state is not None and state.is_cancelling()


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
