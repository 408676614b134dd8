"""From what a user names to the artifacts of a version, checked to be whole."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Any

from artifacts.manifest import Manifest, Parent
from artifacts.registry import Version
from artifacts.store import Store
from pipeline_config.pipeline import PipelineConfig
from tasks.errors import ConfigError, StoreError
from tasks.storage import RUN_ID, find_run


def model_name(config: PipelineConfig) -> str:
    """Name in the registry: `promotion.name`, else the base model's (`Qwen/Qwen3-0.6B` -> `qwen3-0.6b`)."""
    return config.promotion.name or _of_source(config.model.source)


def name_of_export(export: Manifest) -> str:
    """As `model_name`, of the configuration that the export was made with; empty when its manifest does not hold it."""
    made: Any = export.config
    source = made.get("model", {}).get("source")
    return str(made.get("promotion", {}).get("name") or (_of_source(source) if isinstance(source, str) else ""))


def _of_source(source: str) -> str:
    base = PurePath(source.removeprefix("package:")).name.lower()
    return re.sub(r"[^a-z0-9._-]+", "-", base).strip("-._")[:64] or "model"


def export_of(store: Store, ref: str) -> tuple[Manifest, str | None]:
    """(the export artifact that `ref` names, its run's id if known).

    Args:
        ref: a run id, `latest` (the newest export), `production`, `candidate`, or anything that `Store.find` takes.

    Raises:
        StoreError: there is none.
        ConfigError: it is an artifact of another stage.
    """
    if RUN_ID.fullmatch(ref):
        run = find_run(store, ref)
        key = next((item.get("fingerprint") for item in run["stages"] if item["stage"] == "export"), None)
        manifest = store.lookup("export", key) if key else None
        if manifest is None:
            raise StoreError(
                f"the run {run['run_id']} has no stored export",
                where=store.url,
                fix="let the run end with its export, or name another one",
                cause="no_export",
            )
        return manifest, str(run["run_id"])
    manifest = store.find("export:latest" if ref == "latest" else ref)
    if manifest.stage != "export":
        raise ConfigError(
            f"{ref!r} is an artifact of the stage {manifest.stage}, not an exported model",
            fix="name a run, an export artifact, or `latest`",
            cause="no_export",
        )
    return manifest, None


def version_of(store: Store, ref: str) -> Version:
    """The version that `ref` names; see `export_of`.

    Raises:
        StoreError: it was exported without an evaluation, or an artifact of it is gone or damaged.
    """
    export, run_id = export_of(store, ref)
    model = export.parents.get("grpo") or export.parents.get("sft")
    evaluation = export.parents.get("evaluate_grpo")
    if model is None or evaluation is None:
        raise StoreError(
            "the export does not say which model and evaluation it was made from",
            where=f"export/{export.fingerprint[:16]}",
            fix="run the pipeline with its evaluation before the export",
            cause="no_evaluation",
        )
    version = Version(export=export.as_parent(), model=model, evaluation=evaluation, run_id=run_id)
    check_whole(store, version)
    return version


def check_whole(store: Store, version: Version) -> None:
    """Every artifact of the version is there, the same as when it was named, and undamaged.

    Raises:
        StoreError: one is not (causes `artifact_gone`, `artifact_damaged`).
    """
    for item in (version.export, version.model, version.evaluation):
        manifest = artifact(store, item)
        problems = store.verify(manifest, deep=True)
        if problems:
            raise StoreError(
                f"the stored artifact is damaged: {problems[0]}",
                where=f"{item.stage}/{item.fingerprint[:16]}",
                fix="run the pipeline again, so that the stage makes it again",
                cause="artifact_damaged",
            )


def artifact(store: Store, item: Parent) -> Manifest:
    """The artifact behind a reference. StoreError if it is gone or was made again with other contents."""
    manifest = store.lookup(item.stage, item.fingerprint)
    if manifest is None or manifest.content_digest != item.content_digest:
        raise StoreError(
            "is not in the store any more" if manifest is None else "was made again since, with other contents",
            where=f"{item.stage}/{item.fingerprint[:16]}",
            fix="promote a version whose artifacts are there",
            cause="artifact_gone",
        )
    return manifest
