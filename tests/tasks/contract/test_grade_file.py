"""Grading files: JSONL and Parquet, and errors that name file and row."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_config.contract import ContractConfig
from tasks.contract.grade_file import grade_rows
from tasks.errors import DataError

CONTRACT = ContractConfig()
GOOD = "3 + 5 = 8<end_working_out><SOLUTION>8 apples</SOLUTION>"


def jsonl(path: Path, *rows: object) -> Path:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), encoding="utf-8")
    return path


def test_jsonl(tmp_path: Path) -> None:
    source = jsonl(
        tmp_path / "a.jsonl",
        {"id": "q1", "response_text": GOOD, "gold": "8"},
        "",
        {"response_text": "The answer is 8", "gold": 8},
    )
    assert list(grade_rows(source, contract=CONTRACT)) == [
        {"row": 0, "id": "q1", "span": "8 apples", "right": True, "kind": "right", "well_formed": True, "detail": "", "gold": "8"},
        {"row": 1, "span": None, "right": False, "kind": "no_answer", "well_formed": False, "detail": "", "gold": "8"},
    ]  # fmt: skip


def test_parquet_gives_the_same_as_jsonl(tmp_path: Path) -> None:
    rows = [{"response_text": GOOD, "gold": "8"}, {"response_text": GOOD, "gold": "9"}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    source = jsonl(tmp_path / "a.jsonl", *rows)
    graded = list(grade_rows(tmp_path / "a.parquet", contract=CONTRACT))
    assert graded == list(grade_rows(source, contract=CONTRACT))
    assert [row["kind"] for row in graded] == ["right", "wrong"]


def test_other_columns_chats_and_tags(tmp_path: Path) -> None:
    contract = ContractConfig(answer_start="<answer>", answer_end="</answer>")
    chat = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "w<end_working_out><answer>8</answer>"}]
    source = jsonl(tmp_path / "a.jsonl", {"completion": chat, "answer": 8.0})
    (row,) = grade_rows(source, contract=contract, response_column="completion", gold_column="answer")
    assert row["right"]


def test_rewards_are_given_by_name_and_finite(tmp_path: Path) -> None:
    source = jsonl(tmp_path / "a.jsonl", {"response_text": GOOD, "gold": "8", "bonus": 2})
    (row,) = grade_rows(
        source,
        contract=CONTRACT,
        rewards=lambda completion, gold, row: {"a": float(row["bonus"]), "b": math.nan, "c": None},
    )
    assert row["rewards"] == {"a": 2.0, "b": None, "c": None}
    json.dumps(row, allow_nan=False)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{bad", ["row 1", "line 2", "not JSON"]),
        ("[1]", ["row 1", "list", "not an object"]),
        ('{"gold": "8"}', ["row 1", "no column 'response_text'", "there are: gold"]),
        ('{"response_text": "x"}', ["row 1", "no column 'gold'"]),
        ('{"response_text": null, "gold": "8"}', ["row 1", "nothing, not a text"]),
        ('{"response_text": "x", "gold": null}', ["row 1", "nothing, not a gold"]),
        ('{"response_text": "x", "gold": [8]}', ["row 1", "a list, not a gold"]),
        ("[" * 100_000, ["row 1", "not JSON"]),
    ],
)
def test_faults_name_file_and_row(tmp_path: Path, line: str, words: list[str]) -> None:
    source = jsonl(tmp_path / "faulty.jsonl", {"response_text": GOOD, "gold": "8"}, line)
    rows = grade_rows(source, contract=CONTRACT)
    assert next(rows)["right"]
    with pytest.raises(DataError) as caught:
        next(rows)
    assert all(word in str(caught.value) for word in ["faulty.jsonl", *words])


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        list(grade_rows(tmp_path / "absent.jsonl", contract=CONTRACT))
    (tmp_path / "a.csv").write_text("x")
    with pytest.raises(DataError, match="cannot be read"):
        list(grade_rows(tmp_path / "a.csv", contract=CONTRACT))
    (tmp_path / "a.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(DataError, match="Parquet"):
        list(grade_rows(tmp_path / "a.parquet", contract=CONTRACT))
    (tmp_path / "latin.jsonl").write_bytes(b'{"response_text": "\xe9", "gold": "8"}')
    with pytest.raises(DataError, match="not UTF-8"):
        list(grade_rows(tmp_path / "latin.jsonl", contract=CONTRACT))


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "bom.jsonl").write_bytes(b"\xef\xbb\xbf" + json.dumps({"response_text": GOOD, "gold": "8"}).encode())
    assert [row["right"] for row in grade_rows(tmp_path / "bom.jsonl", contract=CONTRACT)] == [True]
