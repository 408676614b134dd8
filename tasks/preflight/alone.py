"""The preflight by itself: model, dataset and preflight stages, without Prefect. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from artifacts.fingerprint import fingerprint
from artifacts.manifest import Manifest
from pipeline_config.pipeline import PipelineConfig
from tasks.chain import CHAIN
from tasks.errors import PipelineError
from tasks.execution import execute
from tasks.findings import Finding
from tasks.preflight import verdict
from tasks.preflight.local import check_before_start
from tasks.stage import Log, Settings, Stage, all_terms
from tasks.storage import store_of

GROUP_OF_STAGE = {"model": "tokenizer", "dataset": "data"}
STAGES: tuple[Stage, ...] = tuple(stage for stage in CHAIN if stage.name in ("model", "dataset", "preflight"))


@dataclass(frozen=True)
class Alone:
    """What a preflight by itself found; `error` is what stops a run, None when nothing does."""

    found: verdict.Findings
    error: PipelineError | None
    reused: bool
    sizes: dict[str, Any] | None = None
    """Shape of the model and lengths of the data, for questions about other GPUs."""


def preflight_alone(config: PipelineConfig, run_id: str, log: Log, *, force: bool = False) -> Alone:
    """Carry out the stages up to the preflight and return its findings, whether it passes or not.

    What stops the model or dataset stage (a missing file, a bad row, tags that do not survive) is the only finding then.

    Args:
        force: make the preflight again although it is stored: memory and disk are as they are now.

    Raises:
        PipelineError: nothing could be begun (no disk, no store), or the preflight was stopped half way.
    """
    store = store_of(config)
    check_before_start(config, store)
    settings = Settings(config, store, run_id, log=log, warn=log)
    known: dict[str, Manifest] = {}
    reused = False
    for stage in STAGES:
        parents = {name: known[name] for name in stage.parents}
        last = stage is STAGES[-1]
        try:
            outcome = execute(stage, settings, parents, force=force and last)
        except PipelineError as error:
            folder = _folder_of_failed(stage, settings, parents)
            found = verdict.read(folder) if last else _as_finding(stage, error)
            if not found:
                raise
            return Alone(found, error, False, verdict.read_sizes(folder) if last else None)
        known[stage.name], reused = outcome.manifest, outcome.reused
    folder = store.local_folder(known["preflight"])
    return Alone(verdict.read(folder), None, reused, verdict.read_sizes(folder))


def _folder_of_failed(stage: Stage, settings: Settings, parents: dict[str, Manifest]) -> Path:
    """Where a preflight that failed left its findings: nothing is stored, they are still in its work directory."""
    key = fingerprint(all_terms(stage, settings.config, parents))
    return settings.home / "work" / f"{stage.name}-{key[:16]}" / "out"


def _as_finding(stage: Stage, error: PipelineError) -> verdict.Findings:
    evidence = f"{error.where}: {error.message}" if error.where else error.message
    return {GROUP_OF_STAGE[stage.name]: [Finding(error.cause, "fail", evidence, error.fix)]}
