"""What became of a run, as Prefect events under stable names: automations turn them into notifications (docs/operations.md)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prefect.context import FlowRunContext
from prefect.events import emit_event

from tasks.errors import GateRefused, Interrupted, NonFinite, PipelineError, RunStopped
from tasks.process.secrets import mask_secrets

PREFIX = "grpo-pipeline."
KINDS = {
    "gate-refused": "The format gate refused GRPO",
    "stopped": "Training stopped itself",
    "failed": "The run failed",
    "promoted": "A new model is in production",
    "not-promoted": "The new model stays out of production",
}
"""Kind (its event is `grpo-pipeline.<kind>`) -> first line of the notification."""
MAX_TEXT = 4000


def kind_of(error: BaseException) -> str:
    """Which kind of event an error is."""
    if isinstance(error, GateRefused):
        return "gate-refused"
    return "stopped" if isinstance(error, RunStopped | NonFinite) else "failed"


@contextmanager
def announced(run_id: str = "", report: Path | None = None) -> Iterator[None]:
    """Say so when this block ends with an error; not when it is only asked to stop.

    Args:
        report: path of the run's report; named when it was written.
    """
    try:
        yield
    except Interrupted:
        raise
    except Exception as error:
        written = report is not None and report.exists()
        announce_error(error, run=run_id if written else "", report=str(report) if written else "")
        raise


def announce_error(error: BaseException, **facts: str) -> None:
    """Say that a run ended with an error, with its cause, place and what to do."""
    told = error.to_json() if isinstance(error, PipelineError) else {"message": str(error)}
    facts = {"cause": told.get("cause") or type(error).__name__, "where": told.get("where", ""), **facts}
    announce(kind_of(error), told["message"], fix=told.get("fix", ""), **facts)


def announce(kind: str, message: str, **facts: str) -> None:
    """Emit the event of `kind`. Sent in the background: a server that does not answer costs the run nothing.

    Args:
        message: what happened and why, for people.
        facts: further lines of the notification, and keys of the event's payload: cause, where, fix, run, report.
    """
    context = FlowRunContext.get()
    run = context.flow_run if context else None
    if run is None:
        return
    shown = {name: _clean(value) for name, value in facts.items() if value}
    payload = {"subject": f"{KINDS[kind]}: {run.name}", "message": _clean(message), **shown}
    resource = {"prefect.resource.id": f"{PREFIX}run.{run.id}", "prefect.resource.name": run.name, **labels(shown)}
    emit_event(PREFIX + kind, resource=resource, payload={**payload, "text": text_of(payload)})


def labels(facts: Mapping[str, str]) -> dict[str, str]:
    """What automations can match on."""
    return {PREFIX + "cause": facts["cause"]} if "cause" in facts else {}


def text_of(payload: Mapping[str, Any]) -> str:
    """The body of a notification."""
    named = {"cause": "cause", "where": "where", "fix": "what to do", "run": "run", "report": "report"}
    lines = [f"{label}: {payload[name]}" for name, label in named.items() if payload.get(name)]
    return "\n".join([payload["message"], *lines])


def _clean(text: str) -> str:
    return mask_secrets(text, os.environ)[:MAX_TEXT]
