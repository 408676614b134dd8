"""One Prefect task for every stage: retries what can go away, shows progress, and calls a reused stage `Cached`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import httpx
from prefect import task
from prefect.artifacts import create_progress_artifact, create_table_artifact, update_progress_artifact
from prefect.cache_policies import NO_CACHE
from prefect.exceptions import PrefectException
from prefect.states import Completed, State

from artifacts.manifest import Manifest
from flows.limits import global_slots
from flows.patience import pauses
from tasks.errors import PipelineError
from tasks.execution import execute
from tasks.format_gate.table import rows as gate_rows
from tasks.format_gate.verdict import decide
from tasks.selection.table import rows as selection_rows
from tasks.stage import Outcome, Settings, Stage

PROGRESS_EVERY_S = 5.0
UNAVAILABLE = (httpx.HTTPError, PrefectException, OSError)
"""What a Prefect server that does not answer raises."""


def can_go_away(task: Any, run: Any, state: Any) -> bool:
    """Retry only errors that may not come back: network, a killed process, a stall."""
    try:
        state.result()
    except PipelineError as error:
        return error.retryable
    except Exception:  # noqa: BLE001 - whatever else a stage raised is a fault of ours, and would be raised again
        return False
    return False


# Our own store is the cache (it verifies the files); Prefect's results would be a second, unverified one.
@task(name="stage", cache_policy=NO_CACHE, persist_result=False)
def _stage(stage: Stage, settings: Settings, parents: Mapping[str, Manifest], force: bool) -> Any:
    shown = _under_prefect(stage, settings)
    outcome = execute(stage, shown, parents, force=force)
    _show_table(stage, settings, outcome.manifest)
    if outcome.reused:
        settings.log(f"{stage.name}: reused {outcome.manifest.fingerprint[:16]} ({outcome.reason})")
        return Completed(name="Cached", message=outcome.reason, data=outcome)
    return outcome


def run_stage(stage: Stage, settings: Settings, parents: Mapping[str, Manifest], *, force: bool) -> Outcome:
    """Run a stage as a task run of its own name, in this thread: signals and cancellation then reach the stage process."""
    run = settings.config.run
    named = _stage.with_options(
        name=stage.name,
        task_run_name=stage.name,
        retries=run.retries,
        retry_delay_seconds=pauses(run),
        retry_condition_fn=can_go_away,
    )
    result = named(stage, settings, parents, force)
    # A task that returns a state hands that state to its caller.
    return cast(Outcome, result.result() if isinstance(result, State) else result)


def _show_table(stage: Stage, settings: Settings, manifest: Manifest) -> None:
    """The numbers of a stage that measures as a Prefect table artifact; one that cannot be shown costs nothing but a warning."""
    gate = settings.config.gate
    if stage.name == "format_gate":
        table, said = gate_rows(manifest.metrics, gate), decide(manifest.metrics, gate).name
    elif stage.name == "selection":
        table, said = selection_rows(manifest.metrics), f"{manifest.metrics['kept']} prompts kept"
    else:
        return
    try:
        create_table_artifact(
            table=table,
            key=stage.name.replace("_", "-"),
            description=f"{stage.name} {manifest.fingerprint[:16]}: {said}",
        )
    except UNAVAILABLE as error:
        settings.warn(f"{stage.name}: its table cannot be shown in Prefect: {type(error).__name__}")


class Pace:
    """How long a part of a stage still takes, from what was seen of this part: a stage counts several things one after the other, and
    training that goes on from a checkpoint begins in the middle."""

    def __init__(self) -> None:
        self._label = ""
        self._done = self._last = self._at = 0.0

    def left(self, done: float, total: float, label: str, now: float) -> float | None:
        """Seconds that are left, or None while nothing was done since this part was first seen.

        Args:
            done, total: how much, in units of `label`.
            now: monotonic seconds.
        """
        if label != self._label or done < self._last:
            self._label, self._done, self._at = label, done, now
        self._last = done
        return (now - self._at) * (total - done) / (done - self._done) if done > self._done else None


def _under_prefect(stage: Stage, settings: Settings) -> Settings:
    """Settings whose progress goes to a Prefect progress artifact and, less often, to the log, and whose GPU stages take
    slots of `run.gpu_limit`.

    A Prefect server that does not answer must not stop training: the failure is logged once and progress goes on in the log.
    """
    state: dict[str, Any] = {"id": None, "shown": 0.0, "logged": 0.0, "broken": False}
    pace = Pace()

    def show(done: float, total: float, label: str) -> None:
        now = time.monotonic()
        percent = 100.0 * done / total if total else 0.0
        left = pace.left(done, total, label, now)
        if now - state["logged"] >= 3 * PROGRESS_EVERY_S:
            state["logged"] = now
            about = f", about {left:.0f} s left" if left is not None else ""
            settings.log(f"{stage.name}: {label} {done:g}/{total:g} ({percent:.0f} %){about}")
        if state["broken"] or (now - state["shown"] < PROGRESS_EVERY_S and done < total):
            return
        state["shown"] = now
        try:
            if state["id"] is None:
                key = f"{stage.name.replace('_', '-')}-progress"
                state["id"] = create_progress_artifact(progress=percent, key=key, description=f"{stage.name}: {label}")
            else:
                update_progress_artifact(artifact_id=state["id"], progress=percent)
        except UNAVAILABLE as error:
            state["broken"] = True
            settings.warn(f"{stage.name}: progress cannot be shown in Prefect: {type(error).__name__}")

    return replace(settings, on_progress=show, gpu_slots=lambda count: global_slots(stage, settings, count))
