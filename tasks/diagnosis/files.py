"""Files of logs as text: unpacked, decoded, parsed, or refused by name."""

from __future__ import annotations

import codecs
import gzip
import json
import zlib
from pathlib import Path
from typing import Any

from tasks.errors import DataError

_GZIP = b"\x1f\x8b"
_PACKED = {b"PK\x03\x04": "zip", b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ": "xz", b"BZh": "bzip2", b"7z\xbc\xaf": "7z"}
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # begins with the mark of UTF-16, so it is looked for first
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def read_bytes(path: Path) -> bytes:
    """The bytes of a file; those of a gzip file unpacked.

    Raises:
        DataError: it cannot be read, is damaged, or is packed in another way.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(
            f"cannot be read: {error.strerror or error}", where=str(path), fix="check the path and its rights"
        ) from error
    if data.startswith(_GZIP):
        try:
            return gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(
                f"is a damaged or half written gzip file ({error})", where=str(path), fix="give it unpacked"
            ) from error
    for mark, name in _PACKED.items():
        if data.startswith(mark):
            raise DataError(f"is packed ({name})", where=str(path), fix="unpack it and give the log inside")
    return data


def read_text(path: Path) -> str:
    """The text of a file in UTF-8 (what is none becomes U+FFFD), or in UTF-16 or 32, as PowerShell's `>` writes it."""
    data = read_bytes(path)
    encoding = next((name for mark, name in _MARKS if data.startswith(mark)), None) or _without_mark(data[:400])
    return data.decode(encoding, errors="replace")


def _without_mark(head: bytes) -> str:
    """UTF-16 without a mark shows by its zeros: every second byte of a log, which is mostly ASCII."""
    for offset, name in ((1, "utf-16-le"), (0, "utf-16-be")):
        here, there = head[offset::2], head[1 - offset :: 2]
        if here and here.count(0) > 0.8 * len(here) and there.count(0) < 0.2 * len(there):
            return name
    return "utf-8"


def parse_json(text: str) -> Any:
    """`json.loads`; the bare words NaN and Infinity are accepted.

    Raises:
        ValueError: it is no JSON, or nested too deeply to be read.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def kind(path: Path) -> str:
    """The ending that says what a file is, in small letters: `.jsonl` of both `a.jsonl` and `a.JSONL.gz`."""
    return Path(path.stem if path.suffix.lower() == ".gz" else path.name).suffix.lower()
