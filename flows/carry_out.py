"""Carry a run out: the selected stages in order, the gate's decision, the record and the report. No Prefect here."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from artifacts.fingerprint import fingerprint
from artifacts.manifest import Manifest
from flows.patience import patiently
from flows.record import RunRecord
from flows.report import write_report
from pipeline_config.pipeline import PipelineConfig
from tasks.errors import PipelineError
from tasks.format_gate.verdict import Verdict, raise_unless_go
from tasks.plan import Selection, select
from tasks.preflight.local import check_before_start
from tasks.sft_rounds import settle_gate, sft_rounds
from tasks.stage import Log, Outcome, Settings, Stage, all_terms, work_name
from tasks.storage import store_of


@dataclass(frozen=True)
class Choice:
    """Which part of the chain a run carries out; see `tasks.plan.select`."""

    start_from: str | None = None
    stop_after: str | None = None
    force: tuple[str, ...] = ()
    resume_from: str | None = None


class RunStage(Protocol):
    """How one stage is run: `tasks.execution.execute` itself, or the Prefect task around it."""

    def __call__(
        self, stage: Stage, settings: Settings, parents: Mapping[str, Manifest], *, force: bool
    ) -> Outcome: ...


def carry_out(
    config: PipelineConfig, choice: Choice, run_stage: RunStage, log: Log, warn: Log, record: RunRecord | None = None
) -> dict[str, Any]:
    """Run the chosen stages. The record and the report are written however the run ends.

    Args:
        record: a new one, of a caller that wants to know the run's id also when it fails.

    Returns:
        `run_id`, `report` (path) and `stages` (fingerprint by stage name).
    """
    store = store_of(config)

    def look() -> Selection:
        check_before_start(config, store)
        return select(config, store, choice.start_from, choice.stop_after, choice.force, choice.resume_from)

    selection = patiently(look, config.run, warn)
    record = record or RunRecord.start(config, asdict(choice))
    log(f"run {record.run_id}, artifact store {store.url}")
    settings = Settings(config, store, record.run_id, log=log, warn=warn)
    try:
        _run_stages(selection, settings, record, run_stage)
    except BaseException as error:
        record.fail(error)
        raise
    finally:
        record.finish()
        _keep(record, settings)
        report = _report(record, settings)
    return {"run_id": record.run_id, "report": report, "stages": record.fingerprints()}


def _keep(record: RunRecord, settings: Settings) -> None:
    """Store the record as it is now, so that a run killed later is known too. A failure never costs the run its result."""
    try:
        settings.store.write_record(f"runs/{record.run_id}.json", record.to_json())
    except PipelineError as error:
        settings.warn(f"the run's record could not be written: {error}")


def _report(record: RunRecord, settings: Settings) -> str:
    """Path of the report that was written, empty when it could not be."""
    try:
        path = write_report(record.to_json(), settings.store, settings.home)
    except Exception as error:  # noqa: BLE001 - how the run itself ended matters more, whatever this is
        settings.warn(f"the report could not be written: {type(error).__name__}: {error}")
        return ""
    settings.log(f"report: {path}")
    return str(path)


def _run_stages(selection: Selection, settings: Settings, record: RunRecord, run_stage: RunStage) -> None:
    known: dict[str, Manifest] = dict(selection.given)
    for name, manifest in known.items():
        record.stage_done(name, manifest, "given", "used as it is", 0.0)

    def make(stage: Stage, why: str = "") -> Manifest:
        parents = {name: known[name] for name in stage.parents}
        record.stage_started(stage.name)
        record.works_in(work_name(stage, fingerprint(all_terms(stage, settings.config, parents))))
        _keep(record, settings)
        began = time.monotonic()
        outcome = run_stage(stage, settings, parents, force=stage.name in selection.forced)
        action = "reused" if outcome.reused else "made"
        reason = outcome.reason if outcome.reused or not why else why
        record.stage_done(stage.name, outcome.manifest, action, reason, time.monotonic() - began)
        return outcome.manifest

    for stage in selection.stages:
        if stage.name not in known:
            known[stage.name] = make(stage)
        if stage.name == "format_gate" and "grpo" not in selection.given:
            _pass_gate(selection, settings, record, known, make)


def _pass_gate(
    selection: Selection,
    settings: Settings,
    record: RunRecord,
    known: dict[str, Manifest],
    make: Callable[[Stage, str], Manifest],
) -> None:
    """The gate's last word, after further SFT rounds where it asks for them; GateRefused unless it is `go`."""

    def more(stage: Stage, rounds: int, why: str) -> Manifest:
        settings.log(f"format gate: {why}")
        return make(stage, why)

    def looked(rounds: int, verdict: Verdict, manifest: Manifest) -> None:
        record.gate_looked(rounds, verdict.name, verdict.evidence, manifest)
        settings.log(f"format gate: {verdict.name}: {verdict.evidence}")

    verdict = settle_gate(settings.config, known, more, looked, rounds=sft_rounds(settings.config, selection.given))
    assert verdict is not None  # every stage that it asks for is made
    raise_unless_go(verdict)
