"""What stands for the content of a data source in a fingerprint, so that a changed file is noticed and a touched one is not."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import fsspec

from pipeline_config.data import DataConfig
from pipeline_config.sources import AnySource, FileSource, HubSource
from tasks.dataset.files import shown
from tasks.errors import DataError, Retryable

_CHECK = "check the url of this source, and that it can be read from this machine"


def source_identities(data: DataConfig) -> list[Any]:
    """`identities_of` everything that the tables are made from."""
    return identities_of((*data.train, *data.sft_sources, *data.eval_sources))


def identities_of(sources: Iterable[AnySource]) -> list[Any]:
    """One entry per distinct file or hub source: content digest of a local file, ETag or checksum of a remote one, digests
    of the files of a local folder, revision of a hub set.

    Generators need none: their settings say everything.

    Raises:
        DataError: a file is missing or cannot be read.
        Retryable: the connection to a remote one failed.
    """
    found = {repr(entry): entry for entry in map(_identity, sources) if entry}
    return [entry for _, entry in sorted(found.items())]


def _identity(source: AnySource) -> list[Any] | None:
    if isinstance(source, FileSource):
        return ["file", shown(source.url), file_identity(source.url)]
    if isinstance(source, HubSource):
        folder = Path(source.dataset)
        if folder.is_dir():
            files = sorted(path for path in folder.rglob("*") if path.is_file())
            return ["folder", [[str(path.relative_to(folder)), file_identity(str(path))] for path in files]]
        return ["hub", source.dataset, source.effective_config, source.effective_split, source.revision]
    return None


def file_identity(url: str) -> str:
    """SHA-256 of the bytes of a local file; of a remote one its ETag, else the checksum that its file system makes."""
    try:
        filesystem, path = fsspec.url_to_fs(url)
        protocols = (filesystem.protocol,) if isinstance(filesystem.protocol, str) else filesystem.protocol
        if "file" in protocols:
            stat = os.stat(path)
            return _sha256(path, stat.st_size, stat.st_mtime_ns)
        info = filesystem.info(path)
        tag = info.get("ETag") or info.get("etag") or info.get("md5Hash")
        return str(tag).strip('"') if tag else str(filesystem.checksum(path))
    except FileNotFoundError as error:
        raise DataError("there is no such file", where=shown(url), fix=_CHECK) from error
    except (TimeoutError, ConnectionError) as error:
        raise Retryable(f"the connection failed: {error}", where=shown(url), fix="check the network") from error
    except Exception as error:  # each fsspec back end has exceptions of its own
        raise DataError(f"cannot be read: {type(error).__name__}: {error}", where=shown(url), fix=_CHECK) from error


@lru_cache(maxsize=1024)
def _sha256(path: str, size: int, mtime_ns: int) -> str:
    """Digest of a local file, computed once in a process for every size and time of change."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
