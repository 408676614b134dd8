"""Hub data sets, loaded by `datasets` from local folders of the same schema, and what is asked of the hub for known names."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_config.sources import Columns, HubSource
from tasks.dataset.problem import Problem
from tasks.dataset.sources import label, problems
from tasks.errors import DataError

MESSAGES = [{"content": "Question: what is 30 + 38?", "role": "user"}]
DAPO = {
    "prompt": "what is 30 + 38?",
    "solution": "68",
    "data_source": "math_dapo",
    "source_prompt": MESSAGES,
    "ability": "MATH",
    "reward_model": {"ground_truth": "68", "style": "rule-lighteval/MATH_v2"},
    "extra_info": {"index": "00000000-0000-4000-8000-000000000001"},
}
DAPO_ORIGINAL = {key: DAPO[key] for key in ("data_source", "ability", "reward_model", "extra_info")} | {
    "prompt": MESSAGES
}
OPENMATH = {
    "expected_answer": "4",
    "problem_type": "has_answer_extracted",
    "problem_source": "aops_c4_high_school_math",
    "generation_model": "DeepSeek-R1",
    "pass_rate_72b_tir": "n/a",
    "problem": "Solve $3x = 12$.",
    "generated_solution": "<think>\n12 / 3 = 4\n</think>\nSo $\\boxed{4}$.",
    "inference_mode": "cot",
}
GSM8K = {"question": "What is 2 + 3?", "answer": "2+3=<<2+3=5>>5\n#### 5"}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()


def folder(path: Path, rows: list[dict[str, Any]], kind: str, split: str) -> str:
    """A folder of data as `datasets` reads it."""
    path.mkdir()
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path / f"{split}.parquet")
    else:
        text = "".join(json.dumps(row) + "\n" for row in rows).encode()
        (path / f"{split}.jsonl{'.gz' if kind == 'jsonl.gz' else ''}").write_bytes(
            gzip.compress(text) if kind == "jsonl.gz" else text
        )
    return str(path)


def read(source: HubSource) -> tuple[list[Problem], Counter[str]]:
    counts: Counter[str] = Counter()
    return list(problems(source, counts)), counts


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "jsonl.gz"])
@pytest.mark.parametrize(
    ("layout", "row", "expected"),
    [
        ("gsm8k", GSM8K, ("What is 2 + 3?", "5", "2+3=5")),
        ("openmath", OPENMATH, ("Solve $3x = 12$.", "4", "12 / 3 = 4\n\nSo $\\boxed{4}$.")),
        ("dapo", DAPO, ("what is 30 + 38?", "68", "")),
        ("dapo", DAPO_ORIGINAL, ("Question: what is 30 + 38?", "68", "")),
    ],
)
def test_local_folders_of_the_published_schemas(
    tmp_path: Path, kind: str, layout: Any, row: dict[str, Any], expected: tuple[str, str, str]
) -> None:
    source = HubSource(dataset=folder(tmp_path / "set", [row, row], kind, "train"), layout=layout)
    found, counts = read(source)
    assert [(p.question, p.gold, p.working) for p in found] == [expected] * 2
    assert [p.where for p in found] == ["row 1", "row 2"]
    assert found[0].kind == "hub/set"
    assert counts == {"read": 2}


def test_openmath_keeps_numeric_golds(tmp_path: Path) -> None:
    rows = [{**OPENMATH, "expected_answer": gold} for gold in ("4", "\\sqrt{2}", "1/2", "x+1")]
    found, counts = read(HubSource(dataset=folder(tmp_path / "set", rows, "parquet", "train"), layout="openmath"))
    assert [p.gold for p in found] == ["4", "1/2"]
    assert counts == {"read": 4, "gold_not_numeric": 2}


def test_own_columns_and_split(tmp_path: Path) -> None:
    rows = [{"problem": "p", "answer": 36}]
    path = folder(tmp_path / "set", rows, "jsonl", "test")
    source = HubSource(dataset=path, split="test", columns=Columns(question="problem"))
    assert [(p.question, p.gold) for p in read(source)[0]] == [("p", "36")]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"dataset": "openai/gsm8k"}, ("openai/gsm8k", "main", "train", None)),
        ({"dataset": "openai/gsm8k", "split": "test"}, ("openai/gsm8k", "main", "test", None)),
        (
            {"dataset": "openai/gsm8k", "config": "socratic", "revision": "abc"},
            ("openai/gsm8k", "socratic", "train", "abc"),
        ),
        ({"dataset": "unsloth/OpenMathReasoning-mini"}, ("unsloth/OpenMathReasoning-mini", None, "cot", None)),
        ({"dataset": "open-r1/DAPO-Math-17k-Processed"}, ("open-r1/DAPO-Math-17k-Processed", "en", "train", None)),
        ({"dataset": "me/mine", "columns": {}}, ("me/mine", None, "train", None)),
    ],
)
def test_what_is_asked_of_the_hub(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], expected: tuple[str, str | None, str, str | None]
) -> None:
    row = {**GSM8K, **OPENMATH, **DAPO}
    asked = []

    def load_dataset(name: str, config: str | None, *, split: str, revision: str | None) -> datasets.Dataset:
        asked.append((name, config, split, revision))
        return datasets.Dataset.from_list([row])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    source = HubSource(**settings)
    found, _ = read(source)
    assert asked == [expected]
    assert found[0].kind == f"hub/{settings['dataset']}" == label(source)


def test_a_missing_folder_split_and_column(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the data set cannot be loaded") as error:
        read(HubSource(dataset=str(tmp_path / "none"), layout="gsm8k"))
    assert error.value.where == f"{tmp_path / 'none'}, split train"
    path = folder(tmp_path / "set", [GSM8K], "jsonl", "train")
    with pytest.raises(DataError, match="the data set cannot be loaded"):
        read(HubSource(dataset=path, layout="gsm8k", split="nosuch"))
    with pytest.raises(DataError, match="the columns problem, expected_answer are missing") as error:
        read(HubSource(dataset=path, layout="openmath"))
    assert error.value.fix == "the table has: question, answer; set `columns` or `layout` to fit"


def test_no_hub_is_a_data_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*_: object, **__: object) -> None:
        raise ConnectionError("Couldn't reach 'openai/gsm8k' on the Hub")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(DataError, match="Couldn't reach") as error:
        read(HubSource(dataset="openai/gsm8k"))
    assert error.value.where == "openai/gsm8k (main), split train"
    assert "`file`" in error.value.fix


def test_a_bad_row_is_named(tmp_path: Path) -> None:
    path = folder(tmp_path / "set", [GSM8K, {**GSM8K, "answer": "five"}], "parquet", "train")
    with pytest.raises(DataError, match="not `#### N`") as error:
        read(HubSource(dataset=path, layout="gsm8k"))
    assert error.value.where == f"{path}, split train, row 2, column 'answer'"


def test_narrow_floats_keep_their_text_and_other_columns_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    answers, far = pa.array([0.1, 2.4], pa.float32()), pa.array([2**60, 0], pa.timestamp("us"))
    pq.write_table(pa.table({"question": ["p", "q"], "answer": answers, "at": far}), tmp_path / "set" / "train.parquet")
    source = HubSource(dataset=str(tmp_path / "set"), columns=Columns())
    assert [p.gold for p in read(source)[0]] == ["0.1", "2.4"]
    with pytest.raises(DataError, match="a value cannot be read") as error:
        read(HubSource(dataset=str(tmp_path / "set"), columns=Columns(working="at")))
    assert "rows 1 to 1000" in error.value.where
