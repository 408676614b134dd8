"""What can be known to fail before any stage process starts: disk, store, model folder, data files. No torch."""

from __future__ import annotations

import shutil
from pathlib import Path

from artifacts.store import Store
from pipeline_config.pipeline import PipelineConfig
from tasks.dataset.identity import identities_of, source_identities
from tasks.errors import StoreError
from tasks.models.resolve import check_source
from tasks.terms import template_terms
from tasks.training.reporters import check_reporters


def check_before_start(config: PipelineConfig, store: Store) -> None:
    """Raise at once for what would otherwise fail after minutes or hours.

    Raises:
        StoreError: the store or the work directory cannot be written, or too little disk is free.
        DataError: a data file is missing or cannot be read.
        ModelError: the model is a local folder that is missing or cannot be used, or a package that is not installed.
        ConfigError: the configured chat template cannot be read.
    """
    home = Path(config.run.home).resolve()
    try:
        home.mkdir(parents=True, exist_ok=True)
        probe = home / ".writable"
        probe.write_text("", encoding="utf-8")
        probe.unlink()
    except OSError as error:
        raise StoreError(
            f"cannot be written: {error.strerror}", where=f"run.home ({home})", fix="choose another run.home"
        ) from error
    free = shutil.disk_usage(home).free / 1e9
    if free < config.run.min_free_gb:
        raise StoreError(
            f"{free:.1f} GB are free and run.min_free_gb asks for {config.run.min_free_gb:g}",
            where=f"run.home ({home})",
            fix="free disk space (`grpo-pipeline artifacts gc`), or choose another run.home",
            cause="disk",
        )
    store.check_writable()
    check_source(config.model.source, config.model.trust_remote_code)
    template_terms(config)
    check_reporters(config)
    source_identities(config.data)
    identities_of(one.source for one in config.evaluation.sets)
