"""What stands for the content of a data source in a fingerprint, so that a changed file is noticed and a touched one is not."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import fsspec

from pipeline_config.data import AnySource, DataConfig, FileSource, HubSource
from tasks.errors import DataError, Retryable


def source_identities(data: DataConfig) -> list[Any]:
    """One entry per distinct file or hub source: content digest of a local file, checksum of a remote one, revision of a hub set.

    Generators need none: their settings say everything.

    Raises:
        DataError: a file is missing or cannot be read.
    """
    listed = (*data.train, *data.sft_sources, *data.eval_sources)
    sources = {source.model_dump_json(): source for source in listed}
    return [identity for _, source in sorted(sources.items()) if (identity := _identity(source)) is not None]


def _identity(source: AnySource) -> Any:
    if isinstance(source, FileSource):
        return ["file", source.url, _file_digest(source.url)]
    if isinstance(source, HubSource):
        folder = Path(source.dataset)
        if folder.is_dir():
            files = sorted(path for path in folder.rglob("*") if path.is_file())
            return ["folder", [[str(path.relative_to(folder)), _local_digest(path)] for path in files]]
        return ["hub", source.dataset, source.revision]
    return None


def _file_digest(url: str) -> str:
    scheme = urlsplit(url).scheme
    if len(scheme) <= 1 or scheme == "file":
        return _local_digest(Path(url.removeprefix("file://")))
    try:
        filesystem, path = fsspec.url_to_fs(url)
        return str(filesystem.checksum(path))
    except FileNotFoundError as error:
        raise DataError("there is no such file", where=_shown(url), fix="check the url of this source") from error
    except (ValueError, ImportError, NotImplementedError) as error:
        raise DataError(
            f"cannot be opened: {error}", where=_shown(url), fix="install the fsspec package for this scheme"
        ) from error
    except (OSError, TimeoutError) as error:
        raise Retryable(f"cannot be reached: {type(error).__name__}", where=_shown(url)) from error


def _local_digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(
            f"cannot be read: {error.strerror}", where=str(path), fix="check the url of this source"
        ) from error


def _shown(url: str) -> str:
    """The URL without user, password and query, which may hold secrets."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname or ''}{parts.path}"
