"""Reading files: every format and compression, bounded memory, and one clear message for every kind of bad input."""

from __future__ import annotations

import bz2
import contextlib
import csv
import gzip
import io
import json
import lzma
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline_config.sources import Columns, FileSource
from tasks.dataset.files import MAX_LINE_BYTES, file_kind, shown
from tasks.dataset.problem import Problem
from tasks.dataset.sources import label, place_of, problems
from tasks.errors import DataError, Retryable

ROWS = [
    {"question": "What is 2 + 3?", "answer": "5", "working": "2 + 3 = 5"},
    {"question": "Ein Ei, zwei Eier: „wie viele“?", "answer": "2", "working": "one,\nthen two"},
    {"question": 'Quotes " and commas, too', "answer": "7", "working": ""},
]


def read(url: str | Path, **settings: Any) -> tuple[list[Problem], Counter[str]]:
    counts: Counter[str] = Counter()
    settings.setdefault("columns", Columns(working="working"))
    return list(problems(FileSource(url=str(url), **settings), counts)), counts


def jsonl(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def as_csv(rows: list[dict[str, Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def parquet(rows: list[dict[str, Any]]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue()


WRITERS = {"jsonl": jsonl, "csv": as_csv, "parquet": parquet}
PACKERS = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


@pytest.mark.parametrize("ending", WRITERS)
@pytest.mark.parametrize("packed", PACKERS)
def test_formats_and_compressions(tmp_path: Path, ending: str, packed: str) -> None:
    path = tmp_path / f"rows.{ending}{packed}"
    path.write_bytes(PACKERS[packed](WRITERS[ending](ROWS)))
    found, counts = read(path)
    assert [(p.question, p.gold, p.working) for p in found] == [
        (row["question"], row["answer"], row["working"]) for row in ROWS
    ]
    assert [p.kind for p in found] == [f"file/rows.{ending}{packed}"] * 3
    assert counts == {"read": 3}


def test_format_can_be_given(tmp_path: Path) -> None:
    path = tmp_path / "rows.txt"
    path.write_bytes(jsonl(ROWS))
    assert len(read(path, format="jsonl")[0]) == 3


def test_any_fsspec_url() -> None:
    fs = fsspec.filesystem("memory")
    fs.pipe("/dataset-test/rows.csv.gz", gzip.compress(as_csv(ROWS)))
    assert len(read("memory://dataset-test/rows.csv.gz")[0]) == 3


def test_byte_order_mark_and_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + jsonl(ROWS[:1]) + b"\n  \n" + jsonl(ROWS[1:2]))
    found, _ = read(path)
    assert [p.where for p in found] == ["row 1", "row 4"]
    path = tmp_path / "rows.csv"
    path.write_bytes(b"\xef\xbb\xbf" + as_csv(ROWS))
    assert len(read(path)[0]) == 3


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("a/b.jsonl", ("jsonl", None)),
        ("a/b.NDJSON.GZ", ("jsonl", "gzip")),
        ("s3://bucket/a.parquet", ("parquet", None)),
        ("https://host/a.csv.bz2?token=x.y", ("csv", "bz2")),
        ("simplecache::s3://bucket/a.jsonl.zst", ("jsonl", "zstd")),
        ("zip://inner.csv::outer.zip", ("csv", None)),
        ("a?b.jsonl", ("jsonl", None)),
    ],
)
def test_kind_by_name(url: str, expected: tuple[str, str | None]) -> None:
    assert file_kind(url) == expected


@pytest.mark.parametrize(
    ("name", "hint"), [("a.txt", ".jsonl, .csv or .parquet"), ("a.json", "format: jsonl"), ("a", "name it")]
)
def test_unknown_ending(name: str, hint: str) -> None:
    with pytest.raises(DataError, match="format of the file cannot be told") as error:
        file_kind(name)
    assert hint in error.value.fix


def test_secrets_of_a_url_are_not_shown() -> None:
    assert shown("https://me:secret@host/a.csv?sig=abc#x") == "https://host/a.csv"
    assert shown("data/a.csv") == "data/a.csv"
    source = FileSource(url="https://host/a.csv?session=abc")
    assert place_of(source) == "https://host/a.csv"
    assert label(source) == "file/a.csv"


# Bad input: where it is and what is wrong with it.


def fails(path: Path, **settings: Any) -> DataError:
    with pytest.raises(DataError) as error:
        read(path, **settings)
    assert error.value.exit_code == 11
    assert error.value.fix
    return error.value


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"not json", "not JSON: Expecting value (character 1)"),
        (b'{"question": "q", ', "not JSON: Expecting property name"),
        (b'{"question": "q"} {}', "not JSON: Extra data"),
        (b"[" * 100_000, "not JSON: "),
        (b"9" * 10_000, "not JSON: "),
    ],
)
def test_a_line_that_is_not_json(tmp_path: Path, line: bytes, message: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(jsonl(ROWS) + line + b"\n" + jsonl(ROWS))
    error = fails(path)
    assert error.where == f"{path}, row 4"
    assert message in error.message
    found, counts = read(path, on_bad_row="drop")
    assert len(found) == 6
    assert counts == {"read": 7, "not_json": 1}


def test_a_row_without_a_column(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(jsonl([*ROWS, {"question": "q", "solution": "1"}]))
    error = fails(path)
    assert error.where == f"{path}, row 4, column 'working'"
    assert error.message == "the column is missing; the row has: question, solution"
    error = fails(path, columns=Columns())
    assert error.where == f"{path}, row 4, column 'answer'"
    assert "on_bad_row: drop" in error.fix


@pytest.mark.parametrize("ending", WRITERS)
def test_a_row_without_a_gold(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"rows.{ending}"
    path.write_bytes(WRITERS[ending]([ROWS[0], {**ROWS[1], "answer": ""}, ROWS[2]]))
    error = fails(path)
    assert error.where == f"{path}, row 2, column 'answer'"
    assert error.message == "no gold: the answer is empty"
    found, counts = read(path, on_bad_row="drop")
    assert [p.where for p in found] == ["row 1", "row 3"]
    assert counts == {"read": 3, "no_gold": 1}


def test_a_value_of_the_wrong_type(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(jsonl([{**ROWS[0], "answer": [1, 2]}]))
    error = fails(path)
    assert error.where == f"{path}, row 1, column 'answer'"
    assert error.message == "should be text or a number and is a list"


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_table_without_a_column(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"rows.{ending}"
    path.write_bytes(WRITERS[ending]([{"problem": "q", "gold": "1"}]))
    error = fails(path, on_bad_row="drop", columns=Columns())
    assert error.where in (f"{path}, header", f"{path}, schema")
    assert error.message == "the columns question, answer are missing"
    assert error.fix == "the table has: problem, gold; set `columns` or `layout` to fit"


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_table_without_either_of_two_columns(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"rows.{ending}"
    path.write_bytes(WRITERS[ending]([{"text": "q", "answer": "1"}]))
    error = fails(path, on_bad_row="drop", columns=None, layout="aime")
    assert error.message == "the column 'problem or question' is missing"
    assert "the table has: text, answer" in error.fix


def test_a_column_or_a_key_that_occurs_twice(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    columns = [pa.array(["q"]), pa.array(["1"]), pa.array(["2"])]
    pq.write_table(pa.Table.from_arrays(columns, names=["question", "answer", "answer"]), path)
    error = fails(path, columns=Columns())
    assert (error.where, error.message) == (f"{path}, schema", "the column name 'answer' occurs twice")
    path = tmp_path / "rows.jsonl"
    path.write_bytes(jsonl(ROWS[:1]) + b'{"question": "q", "answer": "1", "answer": "2"}\n' + jsonl(ROWS[1:]))
    error = fails(path)
    assert (error.where, error.message) == (f"{path}, row 2, column 'answer'", "the key occurs twice in one object")
    found, counts = read(path, on_bad_row="drop")
    assert len(found) == 3 and counts == {"read": 4, "repeated_key": 1}


def test_csv_faults(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("question,answer\nq,1\nq2,2,3\n")
    error = fails(path, columns=Columns())
    assert (error.where, error.message) == (f"{path}, row 2", "has 3 fields and the header has 2 (line 3)")
    assert read(path, columns=Columns(), on_bad_row="drop")[1] == {"read": 2, "wrong_width": 1}
    path.write_text("question,answer,answer\nq,1,2\n")
    assert "occurs twice" in fails(path, columns=Columns()).message
    path.write_text('question,answer\n"never closed,1\n')
    error = fails(path, columns=Columns())
    assert error.message.startswith("not CSV: ")
    assert error.where == f"{path}, line 2"


def test_csv_leaves_the_global_limit_alone(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(as_csv([{**ROWS[0], "working": "x" * 200_000}]))
    before = csv.field_size_limit()
    assert len(read(path)[0][0].working) == 200_000
    assert csv.field_size_limit() == before


@pytest.mark.parametrize("ending", ["jsonl", "csv"])
@pytest.mark.parametrize("content", [b"", b"\n\n"])
def test_an_empty_file(tmp_path: Path, ending: str, content: bytes) -> None:
    path = tmp_path / f"rows.{ending}"
    path.write_bytes(content)
    error = fails(path)
    if ending == "jsonl" or not content:
        assert error.message == "there are no rows"


def test_a_table_of_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"question": pa.array([], pa.string()), "answer": pa.array([], pa.string())}), path)
    assert fails(path, columns=Columns()).message == "there are no rows"
    path = tmp_path / "rows.csv"
    path.write_text("question,answer\n")
    assert fails(path, columns=Columns()).message == "there are no rows"


def test_a_missing_file(tmp_path: Path) -> None:
    error = fails(tmp_path / "none.jsonl")
    assert (error.where, error.message) == (str(tmp_path / "none.jsonl"), "there is no such file")


def test_a_folder_and_an_unknown_protocol(tmp_path: Path) -> None:
    folder = tmp_path / "rows.jsonl"
    folder.mkdir()
    assert fails(folder).message.startswith("cannot be read: ")
    with pytest.raises(DataError, match="cannot be read"):
        read("nosuchprotocol://a/b.jsonl")


@pytest.mark.parametrize("packed", [".gz", ".bz2", ".xz"])
@pytest.mark.parametrize("fault", ["not packed", "cut off", "altered"])
def test_damaged_compression(tmp_path: Path, packed: str, fault: str) -> None:
    path = tmp_path / f"rows.jsonl{packed}"
    whole = PACKERS[packed](jsonl(ROWS * 2000))
    content = {
        "not packed": jsonl(ROWS),
        "cut off": whole[: len(whole) // 2],
        "altered": whole[: len(whole) // 2] + bytes(16) + whole[len(whole) // 2 + 16 :],
    }[fault]
    path.write_bytes(content)
    error = fails(path, on_bad_row="drop")
    assert error.where.startswith(str(path))
    assert "data is damaged" in error.message or "not UTF-8" in error.message


def test_packed_without_the_name(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(gzip.compress(jsonl(ROWS)))
    error = fails(path)
    assert error.where == f"{path}, line 1"
    assert "not UTF-8" in error.message
    assert ".gz" in error.fix


def test_not_parquet(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    path.write_bytes(jsonl(ROWS))
    assert fails(path).message.startswith("not a readable Parquet file: ")
    path.write_bytes(parquet(ROWS)[:-10])
    assert fails(path).message.startswith("not a readable Parquet file: ")


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv"])
def test_a_gigabyte_without_a_line_end_is_not_loaded(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with path.open("wb") as file:
        file.write(b"question,answer,working\n" if name.endswith("csv") else jsonl(ROWS[:1]))
        file.truncate(1 << 30)  # a sparse file: it takes no space on the disk
    tracemalloc.start()
    try:
        error = fails(path, on_bad_row="drop")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert error.where == f"{path}, line 2"
    assert error.message == "the line is longer than 16 MiB"
    assert peak < 4 * MAX_LINE_BYTES


def test_a_packed_gigabyte_is_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "bomb.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(20):
            file.write(bytes(1 << 20))
    assert fails(path).message == "the line is longer than 16 MiB"


def test_a_lost_connection_can_be_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ConnectionResetError("reset by peer")

    monkeypatch.setattr(fsspec, "open", fail)
    with pytest.raises(Retryable, match="the connection failed: reset by peer"):
        read("https://host/a.jsonl")


def test_numeric_golds_only(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    golds = ["5", "-1/2", "3.5", "1,000", "x = y", "\\sqrt{2}", "(1, 2)", "yes"]
    path.write_bytes(jsonl([{"question": f"q{i}", "answer": gold} for i, gold in enumerate(golds)]))
    found, counts = read(path, columns=Columns(), golds="numeric")
    assert [p.gold for p in found] == golds[:4]
    assert counts == {"read": 8, "gold_not_numeric": 4}
    assert len(read(path, columns=Columns())[0]) == 8


@given(st.binary(max_size=300), st.sampled_from(["a.jsonl", "a.csv", "a.parquet", "a.jsonl.gz", "a.csv.xz"]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
def test_any_bytes_give_rows_or_a_data_error(tmp_path: Path, content: bytes, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with contextlib.suppress(DataError):
        read(path, columns=Columns(), on_bad_row="drop")


@given(st.lists(st.text(max_size=20) | st.just('{"question": "q", "answer": "1"}')))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_good_lines_among_any_others_are_found(tmp_path: Path, lines: list[str]) -> None:
    good = '{"question": "q", "answer": "1"}'
    lines = [good, *(line.replace("\n", " ").replace("\ud800", "") for line in lines)]
    path = tmp_path / "a.jsonl"
    path.write_bytes("\n".join(lines).encode("utf-8", "replace"))
    found, counts = read(path, columns=Columns(), on_bad_row="drop")
    assert len(found) == sum(line == good for line in lines)
    assert counts["read"] == sum(bool(line.strip()) for line in lines)
