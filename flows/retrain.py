"""Retraining: nothing when nothing is new, else the chain, and production only for a better model. No Prefect here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from artifacts.fingerprint import fingerprint
from artifacts.locks import file_lock
from artifacts.store import Store
from flows.carry_out import Choice, RunStage, carry_out
from flows.patience import patiently
from flows.record import RunRecord, now
from pipeline_config.pipeline import PipelineConfig
from tasks.errors import ExportRefused, GateRefused, NonFinite, PipelineError, RunStopped
from tasks.plan import plan, select
from tasks.promote import promote
from tasks.promote.evaluation import evaluator
from tasks.promote.versions import model_name
from tasks.stage import Log, Settings
from tasks.storage import store_of

DECIDED = (GateRefused, RunStopped, NonFinite, ExportRefused)
"""Ends that the same data and settings would come to again: not worth another night."""


@dataclass(frozen=True)
class Night:
    """What a retraining came to.

    Attributes:
        outcome: `nothing_new` when this data and these settings were trained before, or came to the model in production.
        text: why, for people.
        run_id: None when nothing ran.
    """

    outcome: Literal["nothing_new", "promoted", "not_promoted"]
    text: str
    run_id: str | None = None
    report: str = ""


def retrain(
    config: PipelineConfig, choice: Choice, run_stage: RunStage, log: Log, warn: Log, record: RunRecord | None = None
) -> Night:
    """Train on what is new and promote the model if it is better than production by the rule `promotion.*`.

    Of two at once in the same home the second waits for the first, and then mostly finds nothing new. What a night
    came to is kept in the store as `nightly/<model name>.json`; stages named in `choice.force` run in any case.

    Raises:
        PipelineError: what the chain raised; one of `DECIDED` is not tried again until data or settings change.
    """
    store, name = store_of(config), model_name(config)
    lock = Path(config.run.home).resolve() / "locks" / f"nightly-{name}.lock"
    with file_lock(lock, on_wait=lambda text: log(f"another retraining is in progress: {text}")):
        before = patiently(lambda: inputs(config, store), config.run, warn)
        last = _last(store, name, warn)
        if last is not None and last.get("inputs") == before and not choice.force:
            return Night(
                "nothing_new", f"nothing new since {last.get('at')} ({last.get('outcome')}: {last.get('text')})"
            )
        record = record or RunRecord.start(config)
        try:
            result = carry_out(config, choice, run_stage, log, warn, record)
        except DECIDED as error:
            _remember(store, name, inputs(config, store), error.cause, error.message, record.run_id)
            raise
        settings = Settings(config, store, record.run_id, log=log, warn=warn)
        decision = promote(store, record.run_id, config.promotion, name, evaluate=evaluator(settings, run_stage))
        _remember(store, name, inputs(config, store), decision.outcome, decision.text, record.run_id)
    outcome: dict[str, Literal["nothing_new", "promoted", "not_promoted"]] = {
        "promoted": "promoted",
        "refused": "not_promoted",
        "unchanged": "nothing_new",
    }
    text = f"{name}: {decision.text} [{decision.reason}]"
    return Night(outcome[decision.outcome], text, record.run_id, str(result["report"]))


def inputs(config: PipelineConfig, store: Store) -> str:
    """Digest of all that the outcome of a run depends on: data, settings, code and library versions, by stage.

    The fingerprints of the stages, as far as they are known before a run, and the thresholds that act outside them.
    """
    steps = plan(config, store, select(config, store))
    return fingerprint(
        {
            "steps": [[step.stage, step.action, step.fingerprint or ""] for step in steps],
            "gate": config.gate.model_dump(mode="json"),
            "promotion": config.promotion.model_dump(mode="json"),
        }
    )


def _last(store: Store, name: str, warn: Log) -> dict[str, Any] | None:
    try:
        return store.read_record(f"nightly/{name}.json")
    except PipelineError as error:
        warn(f"what the last night came to cannot be read, so it is done again: {error}")
        return None


def _remember(store: Store, name: str, key: str, outcome: str, text: str, run_id: str) -> None:
    done = {"inputs": key, "outcome": outcome, "text": text, "run_id": run_id, "at": now()}
    store.write_record(f"nightly/{name}.json", done)
