"""Hub data sets at the commit where they are now, so that a change on the hub is noticed and a run is repeatable."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx

from pipeline_config.pipeline import PipelineConfig
from pipeline_config.sources import HubSource
from tasks.errors import DataError, Retryable
from tasks.stage import Log

TIMEOUT_S = 30.0
_COMMIT = re.compile(r"[0-9a-f]{40}")


def pin_revisions(config: PipelineConfig, log: Log) -> PipelineConfig:
    """The configuration with the commit of every hub data set that names a branch or tag, or nothing.

    With HF_HUB_OFFLINE they stay as they are: only the local cache is read, and that does not move.

    Raises:
        DataError: there is no such data set or revision, or it may not be read.
        Retryable: the hub does not answer.
    """
    from huggingface_hub import constants

    known: dict[tuple[str, str | None], str] = {}

    def pinned(source: Any) -> Any:
        if not isinstance(source, HubSource) or Path(source.dataset).is_dir() or constants.HF_HUB_OFFLINE:
            return source
        if source.revision and _COMMIT.fullmatch(source.revision):
            return source
        key = (source.dataset, source.revision)
        if key not in known:
            known[key] = _commit(*key)
            log(f"{source.dataset} ({source.revision or 'newest'}) is at commit {known[key][:12]}")
        return source.model_copy(update={"revision": known[key]})

    lists = {name: tuple(pinned(source) for source in getattr(config.data, name)) for name in ("train", "sft", "eval")}
    return config.model_copy(update={"data": config.data.model_copy(update=lists)})


def _commit(dataset: str, revision: str | None) -> str:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    where = f"{dataset}, revision {revision}" if revision else dataset
    try:
        found = HfApi().dataset_info(dataset, revision=revision, timeout=TIMEOUT_S).sha
    except (RepositoryNotFoundError, RevisionNotFoundError, HFValidationError) as error:
        fix = "check name and revision; a private data set needs HF_TOKEN"
        raise DataError("the hub has no such data set, or no such revision of it", where=where, fix=fix) from error
    except (httpx.HTTPError, OSError) as error:
        fix = "try again later; with everything in the local cache set HF_HUB_OFFLINE=1"
        raise Retryable(f"the hub does not answer: {type(error).__name__}", where=where, fix=fix) from error
    if found is None:
        raise DataError("the hub does not say at which commit it is", where=where, fix="give a commit as its revision")
    return found
