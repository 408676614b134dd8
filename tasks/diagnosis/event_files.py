"""Scalars of TensorBoard event files, read without TensorBoard.

A file is a sequence of records: length (uint64, little endian), checksum of the length (4 bytes), payload, checksum of
the payload (4 bytes). A payload is a protocol-buffer `Event`: 2 = step, 5 = summary; `Summary`: 1 = value (repeated);
`Summary.Value`: 1 = tag, 2 = simple_value, 8 = tensor; `TensorProto`: 1 = dtype (1 float, 2 double), 4 = tensor_content, 5 = float_val, 6 = double_val.
Checksums are not verified: a damaged record fails to parse and is reported.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from tasks.diagnosis.files import read_bytes
from tasks.errors import DataError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def read_scalars(path: Path) -> Iterator[tuple[int, str, float]]:
    """(step, tag, value) of every scalar, in file order; a half-written last record ends the reading.

    Raises:
        DataError: the file is not an event file, or a record in it is damaged.
    """
    data = read_bytes(path)
    at = record = 0
    while at + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        end = at + 12 + length
        if end + 4 > len(data):
            if record == 0:
                raise DataError("is not a TensorBoard event file", where=str(path))
            return
        record += 1
        try:
            yield from _event_scalars(data[at + 12 : end])
        except (IndexError, struct.error, UnicodeDecodeError, ValueError) as error:
            raise DataError(
                "is damaged", where=f"{path}, record {record}", fix="give trainer_state.json or another log"
            ) from error
        at = end + 4


def _fields(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """(field number, wire type, value) of one protocol-buffer message."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        field, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, at = _varint(data, at)
            yield field, wire, value
            continue
        if wire == _BYTES:
            size, at = _varint(data, at)
        elif wire in (_FIXED64, _FIXED32):
            size = 8 if wire == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {wire}")
        if at + size > len(data):
            raise ValueError("field runs past its message")
        yield field, wire, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise ValueError("varint longer than 64 bits")


def _event_scalars(event: bytes) -> Iterator[tuple[int, str, float]]:
    step, summary = 0, b""
    for field, wire, value in _fields(event):
        if field == 2 and wire == _VARINT and isinstance(value, int):
            step = value
        elif field == 5 and isinstance(value, bytes):
            summary = value
    for field, _, value in _fields(summary):
        if field == 1 and isinstance(value, bytes):
            tag, scalar = _summary_value(value)
            if scalar is not None:
                yield step, tag, scalar


def _summary_value(message: bytes) -> tuple[str, float | None]:
    tag, scalar = "", None
    for field, wire, value in _fields(message):
        if not isinstance(value, bytes):
            continue
        if field == 1:
            tag = value.decode()
        elif field == 2 and wire == _FIXED32:
            scalar = struct.unpack("<f", value)[0]
        elif field == 8:
            scalar = _tensor_scalar(value)
    return tag, scalar


def _tensor_scalar(message: bytes) -> float | None:
    """The one number of a tensor of one float or double; None for any other tensor."""
    dtype, content = 0, b""
    for field, wire, value in _fields(message):
        if field == 1 and isinstance(value, int):
            dtype = value
        elif field in (4, 5, 6) and isinstance(value, bytes) and wire in (_BYTES, _FIXED32, _FIXED64):
            content = value
    if (dtype, len(content)) == (1, 4):
        return float(struct.unpack("<f", content)[0])
    if (dtype, len(content)) == (2, 8):
        return float(struct.unpack("<d", content)[0])
    return None
