"""Reading JSONL, CSV and Parquet files at any fsspec URL, row by row and with bounded memory."""

from __future__ import annotations

import csv
import json
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from tasks.dataset.columns import Wanted, cells_of, paths_of
from tasks.errors import DataError, PipelineError, Retryable

MAX_LINE_BYTES = 16 * 1024 * 1024
_COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zst": "zstd"}
_FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet", ".pq": "parquet"}
_CHECK = "check the path or URL, and that it can be read from this machine"


class UnreadableRow(Exception):
    """A row that cannot be read, such as one that is not JSON; the rows after it can. `column` is where, if it is known."""

    def __init__(self, reason: str, message: str, column: str = "") -> None:
        self.reason, self.message, self.column = reason, message, column
        super().__init__(message)


def rows_of_file(url: str, file_format: str, wanted: Wanted) -> Iterator[tuple[int, Any]]:
    """(1-based row number, row or UnreadableRow) for every row of a file.

    Row numbers are line numbers in JSONL (blank lines count), and rows after the header in CSV. Of Parquet only the wanted
    columns are read.

    Raises:
        DataError: the file is missing, unreadable, not of its format, has a column twice, or lacks one that is needed.
    """
    kind, compression = file_kind(url, file_format)
    readers = {"jsonl": _jsonl, "csv": _csv, "parquet": _parquet}
    with _opened(url, compression) as file:
        yield from readers[kind](file, shown(url), wanted, compression)


def file_kind(url: str, file_format: str = "auto") -> tuple[str, str | None]:
    """Format and compression of a file, by its name unless the format is given."""
    # In a chain such as simplecache::s3://bucket/a.jsonl or zip://a.jsonl::b.zip the first part with a path names the file.
    path = next((part for part in url.split("::") if "://" in part), url)
    if "://" in path:
        path = re.split(r"[?#]", path, maxsplit=1)[0]
    stem, compression = path, None
    for ending, name in _COMPRESSIONS.items():
        if path.lower().endswith(ending):
            stem, compression = path[: -len(ending)], name
    if file_format != "auto":
        return file_format, compression
    for ending, name in _FORMATS.items():
        if stem.lower().endswith(ending):
            return name, compression
    fix = "name it .jsonl, .csv or .parquet (.gz, .bz2, .xz or .zst may follow), or set `format`"
    if stem.lower().endswith(".json"):
        fix = "if it has one JSON object a line, set `format: jsonl`; a JSON array must be turned into JSONL first"
    raise DataError("the format of the file cannot be told from its name", where=shown(url), fix=fix)


def shown(url: str) -> str:
    """The URL without user name, password and query, for messages."""
    if "://" not in url:
        return url
    return re.sub(r"//[^/@]*@", "//", re.split(r"[?#]", url, maxsplit=1)[0])


@contextmanager
def _opened(url: str, compression: str | None) -> Iterator[IO[bytes]]:
    """The decompressed bytes of a file; every fault of the storage or of the compression becomes a DataError."""
    import fsspec

    place = shown(url)
    try:
        with fsspec.open(url, "rb", compression=compression) as file:
            yield file
    except PipelineError:
        raise
    except FileNotFoundError as error:
        raise DataError("there is no such file", where=place, fix=_CHECK) from error
    except (TimeoutError, ConnectionError) as error:
        raise Retryable(f"the connection failed: {error}", where=place, fix="check the network") from error
    except (EOFError, zlib.error) as error:
        raise DataError(
            f"the {compression} data is damaged: {error}", where=place, fix="fetch the file again"
        ) from error
    except Exception as error:  # each fsspec back end has exceptions of its own
        if compression and type(error).__name__ in (
            "BadGzipFile",
            "LZMAError",
            "ZstdError",
            "ZstandardError",
            "OSError",
        ):
            message, fix = f"the {compression} data is damaged: {error}", "fetch the file again"
        else:
            message, fix = f"cannot be read: {type(error).__name__}: {error}", _CHECK
        raise DataError(message, where=place, fix=fix) from error


def _lines(file: IO[bytes], place: str) -> Iterator[tuple[int, str]]:
    """(1-based line number, text) with the line end; a longer line than the limit is never held in memory."""
    number = 0
    while raw := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(raw) > MAX_LINE_BYTES:
            raise DataError(
                f"the line is longer than {MAX_LINE_BYTES >> 20} MiB",
                where=f"{place}, line {number}",
                fix="a row is one line; is this a JSON array, or a file of another format?",
            )
        try:
            text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                f"not UTF-8 (byte {error.start} of the line)",
                where=f"{place}, line {number}",
                fix="save the file as UTF-8; if it is compressed, its name must end in .gz, .bz2, .xz or .zst",
            ) from error
        yield number, text


def _jsonl(file: IO[bytes], place: str, wanted: Wanted, compression: str | None) -> Iterator[tuple[int, Any]]:
    for number, line in _lines(file, place):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line, object_pairs_hook=_object)
        except UnreadableRow as fault:
            yield number, fault
        except (ValueError, RecursionError) as error:  # ValueError: also a number of more digits than Python converts
            reason = getattr(error, "msg", None) or str(error) or "nested too deeply"
            column = f" (character {error.colno})" if isinstance(error, json.JSONDecodeError) else ""
            yield number, UnreadableRow("not_json", f"not JSON: {reason}{column}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise UnreadableRow("repeated_key", "the key occurs twice in one object", twice)
    return found


def _csv(file: IO[bytes], place: str, wanted: Wanted, compression: str | None) -> Iterator[tuple[int, Any]]:
    limit = csv.field_size_limit(MAX_LINE_BYTES)
    try:
        reader = csv.reader((text for _, text in _lines(file, place)), strict=True)
        header = next(reader, None)
        if header is None:
            return
        wanted.present(header, f"{place}, header")
        number = 0
        for fields in reader:
            if not fields:
                continue
            number += 1
            if len(fields) != len(header):
                message = f"has {len(fields)} fields and the header has {len(header)}"
                yield number, UnreadableRow("wrong_width", f"{message} (line {reader.line_num})")
            else:
                yield number, dict(zip(header, fields, strict=True))
    except csv.Error as error:
        raise DataError(
            f"not CSV: {error}", where=f"{place}, line {reader.line_num}", fix="check quotes and commas there"
        ) from error
    finally:
        csv.field_size_limit(limit)


def _parquet(file: IO[bytes], place: str, wanted: Wanted, compression: str | None) -> Iterator[tuple[int, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with tempfile.TemporaryFile() as unpacked:
        if compression is not None:  # Parquet is read from its end
            shutil.copyfileobj(file, unpacked)
            unpacked.seek(0)
        try:
            table = pq.ParquetFile(unpacked if compression else file)
            names = table.schema_arrow.names
            leaves = [table.metadata.schema.column(i).path for i in range(table.metadata.num_columns)]
            paths = paths_of(wanted.present(names, f"{place}, schema"), names, leaves)
            number = 0
            for batch in table.iter_batches(batch_size=256, columns=paths):
                for row in _rows_of_batch(batch):
                    number += 1
                    yield number, row
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise DataError(f"not a readable Parquet file: {error}", where=place, fix="write the file again") from error


def _rows_of_batch(batch: Any) -> Iterator[Any]:
    names = batch.schema.names
    for cells in zip(*map(cells_of, batch.columns), strict=True):
        row = dict(zip(names, cells, strict=True))
        unread = next((name for name, value in row.items() if isinstance(value, Exception)), None)
        if unread is None:
            yield row
        else:
            yield UnreadableRow("unreadable_value", f"the value cannot be read: {row[unread]}", unread)
