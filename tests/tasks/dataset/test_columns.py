"""What becomes of the cells of a Parquet file: numbers keep their text, and one that cannot be read spoils its row alone."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline_config.sources import Columns, FileSource
from tasks.dataset.columns import cells_of
from tasks.dataset.problem import Problem
from tasks.dataset.sources import problems
from tasks.errors import DataError


def read(path: Path, **settings: Any) -> tuple[list[Problem], Counter[str]]:
    counts: Counter[str] = Counter()
    return list(problems(FileSource(url=str(path), **settings), counts)), counts


def fails(path: Path, **settings: Any) -> DataError:
    with pytest.raises(DataError) as error:
        read(path, **settings)
    return error.value


def golds(tmp_path: Path, array: pa.Array, **settings: Any) -> list[str]:
    path = tmp_path / "golds.parquet"
    questions = pa.array([f"q{i}" for i in range(len(array))])
    pq.write_table(pa.table({"question": questions, "answer": array}), path)
    settings.setdefault("columns", Columns())
    return [problem.gold for problem in read(path, **settings)[0]]


NARROW = [0.1, 2.4, -0.3, 36.0, 1e10, 1e-7, 2.0**30]


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (pa.float32(), NARROW, ["0.1", "2.4", "-0.3", "36", "10000000000", "1e-07", "1073741824"]),
        (pa.float64(), NARROW, ["0.1", "2.4", "-0.3", "36", "10000000000", "1e-07", "1073741824"]),
        (pa.float16(), np.array([0.1, 2.4, 36.0], np.float16), ["0.1", "2.4", "36"]),
        (pa.decimal128(10, 2), [Decimal("0.10"), Decimal("-36")], ["0.10", "-36.00"]),
        (pa.decimal128(38, 0), [Decimal(10**37)], [str(10**37)]),
        (pa.int64(), [2**53 + 1], [str(2**53 + 1)]),
    ],
)
def test_numbers_of_every_width_keep_their_text(tmp_path: Path, kind: Any, values: Any, expected: list[str]) -> None:
    assert golds(tmp_path, pa.array(values, kind)) == expected


def test_narrow_numbers_inside_a_nested_column(tmp_path: Path) -> None:
    array = pa.array([{"gold": 0.1, "at": [2.4]}], pa.struct([("gold", pa.float32()), ("at", pa.list_(pa.float32()))]))
    assert golds(tmp_path, array, columns=Columns(answer="answer.gold")) == ["0.1"]
    nested = pa.map_(pa.string(), pa.large_list(array.type))
    cells = list(cells_of(pa.array([[("k", [array[0].as_py(), None])], None], nested)))
    assert cells == [[("k", [{"gold": 0.1, "at": [2.4]}, None])], None]
    coded = pa.DictionaryArray.from_arrays(pa.array([1, 0]), pa.array([0.1, 2.4], pa.float32()))
    assert list(cells_of(coded)) == [2.4, 0.1]


@given(st.lists(st.floats(width=32, allow_nan=False) | st.none(), max_size=5))
def test_the_shortest_text_is_the_same_number(values: list[float | None]) -> None:
    found = list(cells_of(pa.array(values, pa.float32())))
    assert [None if v is None else np.float32(v) for v in found] == [
        None if v is None else np.float32(v) for v in values
    ]


FAR = pa.array([0, 2**60, 0], pa.timestamp("us"))


def test_a_value_that_python_cannot_hold(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    table = pa.table({"question": ["a", "b", "c"], "answer": ["1", "2", "3"], "at": FAR})
    pq.write_table(table, path)
    assert [problem.gold for problem in read(path, columns=Columns())[0]] == ["1", "2", "3"]
    columns = Columns(working="at")
    pq.write_table(table.slice(1), path)
    error = fails(path, columns=columns)
    assert error.where == f"{path}, row 1, column 'at'"
    assert error.message.startswith("the value cannot be read: ")
    pq.write_table(table.set_column(2, "at", pa.array([None, 2**60, None], pa.timestamp("us"))), path)
    found, counts = read(path, columns=columns, on_bad_row="drop")
    assert [problem.gold for problem in found] == ["1", "3"] and counts == {"read": 3, "unreadable_value": 1}


def test_a_nested_column_beside_one_that_python_cannot_hold(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    nested = pa.StructArray.from_arrays([pa.array(["1", "2", "3"]), FAR], ["gold", "at"])
    pq.write_table(pa.table({"question": ["a", "b", "c"], "answer": nested}), path)
    found, _ = read(path, columns=Columns(answer="answer.gold"))
    assert [problem.gold for problem in found] == ["1", "2", "3"]
    error = fails(path, columns=Columns(answer="answer.none"))
    assert error.where == f"{path}, row 1, column 'answer.none'"
