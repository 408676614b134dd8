"""The artifact store that a configuration names."""

from __future__ import annotations

from pathlib import Path

from artifacts.store import Store, open_store
from pipeline_config.pipeline import PipelineConfig


def store_of(config: PipelineConfig) -> Store:
    """`run.store`, or the folder `store` below `run.home`. Credentials come from the environment, never from here."""
    return open_store(config.run.store or str(Path(config.run.home).resolve() / "store"))
