"""JSON files that are whole or absent, and numbers that JSON can hold."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any


def finite(value: Any) -> Any:
    """`value` as plain JSON data: NaN and infinities become None, array scalars plain numbers, paths strings."""
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [finite(item) for item in value]
    if hasattr(value, "tolist"):  # numpy and torch, scalars and arrays alike
        return finite(value.tolist())
    return str(value)


def write_json(path: Path, data: Any, *, durable: bool = True) -> None:
    """Write `data` to `path` so that a reader sees the old file or the new one, never a part.

    Args:
        path: the file.
        data: made plain by `finite`.
        durable: wait until it is on the disk.

    Raises:
        OSError: the disk is full or the folder cannot be written.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(part, "w", encoding="utf-8") as file:
            json.dump(finite(data), file, ensure_ascii=False, indent=1, allow_nan=False)
            file.write("\n")
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def read_json(path: Path) -> Any | None:
    """The data of a JSON file; None when it is missing, torn or not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a JSON lines file.

    Raises:
        OSError: it cannot be read.
        ValueError: a line is not JSON.
    """
    # Not splitlines(): a completion may hold U+2028, which that takes for the end of a line.
    return [json.loads(line) for line in path.read_bytes().split(b"\n") if line.strip()]
