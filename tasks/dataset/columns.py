"""The columns of a table: which ones a source reads, which are missing, and what a cell of Arrow's becomes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from tasks.errors import DataError

Change = Callable[[Any], Any]


@dataclass(frozen=True)
class Wanted:
    """Names of columns, a dot going into a nested one.

    Attributes:
        needed: must be there whatever the row.
        one_of: one of these must be there; the first is preferred.
        optional: are read where they are there.
    """

    needed: tuple[str, ...]
    one_of: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()

    def present(self, names: Sequence[str], where: str) -> list[str]:
        """The columns to read of a table that has these top-level columns.

        Raises:
            DataError: a column occurs twice, or one that must be there is missing.
        """
        twice = [name for name, times in Counter(names).items() if times > 1]
        if twice:
            raise DataError(f"the column name {twice[0]!r} occurs twice", where=where, fix="rename one of the two")
        missing = [name for name in self.needed if not _is_in(name, names)]
        if self.one_of and not any(_is_in(name, names) for name in self.one_of):
            missing.append(" or ".join(self.one_of))
        if missing:
            _raise_missing(missing, names, where)
        asked = dict.fromkeys((*self.needed, *self.one_of, *self.optional))
        return [name for name in asked if _is_in(name, names)]


def _is_in(name: str, names: Sequence[str]) -> bool:
    return name in names or name.split(".")[0] in names


def _raise_missing(missing: list[str], names: Sequence[str], where: str) -> NoReturn:
    raise DataError(
        f"the column {missing[0]!r} is missing"
        if len(missing) == 1
        else f"the columns {', '.join(missing)} are missing",
        where=where,
        fix=f"the table has: {', '.join(map(str, names))[:500] or 'no columns'}; set `columns` or `layout` to fit",
    )


def paths_of(asked: Iterable[str], names: Sequence[str], leaves: Iterable[str]) -> list[str]:
    """What Parquet has to read for these columns: a nested one alone where there is such a one, else its whole column.

    Args:
        names: top-level columns.
        leaves: dotted paths of all columns that are stored.
    """
    stored = tuple(f"{leaf}." for leaf in leaves)
    nested = (name in names or any(leaf.startswith(f"{name}.") for leaf in stored) for name in asked)
    return [name if alone else name.split(".")[0] for name, alone in zip(asked, nested, strict=True)]


def shortest(arrow_type: Any) -> Change | None:
    """How a value of this Arrow type is freed of the digits that widening a narrow float adds; None if it has none.

    0.1 in 32 bits is 0.10000000149011612 in 64; what was written is the shortest text that reads as the same 32 bits. A
    whole number is exact as it is.
    """
    import pyarrow.types as kinds

    if kinds.is_float16(arrow_type) or kinds.is_float32(arrow_type):
        width = np.float16 if kinds.is_float16(arrow_type) else np.float32
        return lambda value: value if _is_whole(value) else float(str(width(value)))
    if kinds.is_struct(arrow_type):
        changes = {field.name: change for field in arrow_type if (change := shortest(field.type)) is not None}
        return _in_struct(changes) if changes else None
    if kinds.is_map(arrow_type):
        key, item = shortest(arrow_type.key_type) or _same, shortest(arrow_type.item_type) or _same
        return None if key is item is _same else lambda value: value and [(key(k), item(v)) for k, v in value]
    if kinds.is_dictionary(arrow_type) or getattr(arrow_type, "value_type", None) is not None:
        inner = shortest(arrow_type.value_type)
        if inner is None or kinds.is_dictionary(arrow_type):
            return inner
        return lambda value: value and [inner(item) for item in value]
    return None


def _same(value: Any) -> Any:
    return value


def _is_whole(value: float | None) -> bool:
    return value is None or not math.isfinite(value) or float(value).is_integer()


def _in_struct(changes: dict[str, Change]) -> Change:
    def change(value: Any) -> Any:
        return value and {name: changes.get(name, _same)(item) for name, item in value.items()}

    return change


def cells_of(column: Any) -> Iterator[Any]:
    """The values of an Arrow array; in place of one that Python cannot hold stands the exception."""
    change = shortest(column.type) or _same
    try:
        values = column.to_pylist()
    except (ValueError, OverflowError):  # such as a date after the year 9999: find the rows that hold one
        values = [_cell(scalar) for scalar in column]
    return (value if isinstance(value, Exception) else change(value) for value in values)


def _cell(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except (ValueError, OverflowError) as error:
        return error
