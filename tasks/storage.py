"""The artifact store that a configuration names, and the records of runs in it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from artifacts.store import Store, open_store
from pipeline_config.pipeline import PipelineConfig
from tasks.errors import StoreError

RUN_ID = re.compile(r"\d{8}-\d{6}(-[0-9a-f]*)?")
"""A run's id or a long enough beginning: its start in UTC and a random part."""


def store_of(config: PipelineConfig) -> Store:
    """`run.store`, or the folder `store` below `run.home`. Credentials come from the environment, never from here."""
    return open_store(config.run.store or str(Path(config.run.home).resolve() / "store"))


def find_run(store: Store, run_id: str) -> dict[str, Any]:
    """A run's record by id, unique beginning of one, or `latest`.

    Raises:
        StoreError: none or several fit; the newest are named.
    """
    names = sorted(Path(name).stem for name in store.list_records("runs"))
    names = [name for name in names if RUN_ID.fullmatch(name)]
    chosen = names[-1:] if run_id == "latest" else [name for name in names if name.startswith(run_id)]
    if len(chosen) != 1:
        known = ", ".join(names[-5:]) or "none"
        raise StoreError(
            f"no single run {run_id!r}", where=store.url, fix=f"the newest runs: {known}", cause="no_such_run"
        )
    record: dict[str, Any] | None = store.read_record(f"runs/{chosen[0]}.json")
    if record is None:
        raise StoreError(f"the record of run {chosen[0]} cannot be read", where=store.url, fix="choose another run")
    if missing := _missing(record):
        problem = f"the record is damaged: `{missing}` is missing or not what it should be"
        raise StoreError(problem, where=f"{store.url}/runs/{chosen[0]}.json", fix="restore or delete it")
    return record


def _missing(record: Mapping[str, Any]) -> str:
    """The first field without which nothing can be said of a run; empty when all are there."""
    for name, kind in {"run_id": str, "status": str, "started_at": str, "config": dict, "stages": list}.items():
        if not isinstance(record.get(name), kind):
            return name
    whole = all(isinstance(item, dict) and {"stage", "action"} <= item.keys() for item in record["stages"])
    return "" if whole else "stages"
