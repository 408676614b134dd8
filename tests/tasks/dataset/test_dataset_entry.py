"""The stage on a real tokenizer with its real template: files, columns, token counts, and the same bytes again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline_config.pipeline import PipelineConfig
from tasks.contract.grading import grade
from tasks.contract.prompts import completion_text, encode_example, encode_prompt
from tasks.dataset.entry import run
from tasks.dataset.problem import content_digest
from tasks.errors import DataError
from tasks.models import prepare_model
from tasks.process.context import StageContext
from tasks.training.loading import load_tokenizer

SETTINGS: dict[str, Any] = {
    "model": {"source": "tiny", "max_context": 256},
    "data": {
        "train": [{"kind": "generated", "problem": "sum", "style": "plain", "trace": "short"}],
        "sft_rows": 40,
        "train_rows": 30,
        "eval_rows": 20,
        "gate_rows": 10,
    },
    "sft": {"max_length": 256},
    "grpo": {"max_completion_length": 64},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    prepare_model("tiny", path, revision=None, seed=0, trust_remote_code=False)
    return path


def stage(work_dir: Path, model: Path, **data: Any) -> StageContext:
    merged = {**SETTINGS["data"], **data}
    settings = {
        **SETTINGS,
        "data": merged,
        "gate": {"enabled": False},
        "evaluation": {"problems": 1},
    }
    (work_dir / "out").mkdir(parents=True)
    return StageContext(PipelineConfig.model_validate(settings), {"model": model}, work_dir)


def test_the_artifact(tmp_path: Path, model: Path) -> None:
    ctx = stage(tmp_path / "one", model)
    result = run(ctx)
    assert sorted(path.name for path in ctx.out.iterdir()) == [
        "eval.parquet",
        "gate.parquet",
        "sft.parquet",
        "stats.json",
        "train.parquet",
    ]
    tables = {role: pq.read_table(ctx.out / f"{role}.parquet") for role in ("sft", "train", "gate", "eval")}
    assert tables["sft"].column_names == ["id", "question", "working", "answer", "source"]
    assert tables["train"].column_names == ["id", "question", "answer", "source"]
    assert {role: table.num_rows for role, table in tables.items()} == {"sft": 40, "train": 30, "gate": 10, "eval": 20}
    assert result.metrics["rows/sft"] == 40

    config = ctx.config
    tokenizer = load_tokenizer(model / "model", config)
    rows = tables["sft"].to_pylist()
    for row in rows:
        assert row["id"] == content_digest(row["question"])
        assert grade(
            completion_text(config.contract, row["working"], row["answer"]), row["answer"], config.contract
        ).right
    stats = json.loads((ctx.out / "stats.json").read_text())
    lengths = [
        len(encode_example(tokenizer, config.contract, row["question"], row["working"], row["answer"])[0])
        for row in rows
    ]
    assert stats["sft_tokens"]["max"] == max(lengths)
    prompts = [len(encode_prompt(tokenizer, config.contract, row["question"])) for row in tables["train"].to_pylist()]
    assert stats["prompt_tokens"]["train"]["max"] == max(prompts) == result.metrics["longest_prompt/train"]


def test_the_same_bytes_again(tmp_path: Path, model: Path) -> None:
    first, second = stage(tmp_path / "one", model), stage(tmp_path / "two", model)
    run(first)
    run(second)
    for path in first.out.iterdir():
        assert path.read_bytes() == (second.out / path.name).read_bytes(), path.name


def test_bad_data_ends_the_stage(tmp_path: Path, model: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "What is 2 + 3?", "answer": "5"}\n{"question": "What is 2 + 4?"}\n')
    source = {"kind": "file", "url": str(path)}
    ctx = stage(tmp_path / "one", model, train=[source], sft=SETTINGS["data"]["train"], train_rows="all", gate_rows=1)
    with pytest.raises(DataError) as error:
        run(ctx)
    assert error.value.where == f"{path}, row 2, column 'answer'"
    assert list(ctx.out.iterdir()) == []


def test_a_prompt_longer_than_the_context(tmp_path: Path, model: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"question": "What is 2 + 3? " * 60, "answer": "5"}) + "\n")
    source = {"kind": "file", "url": str(path)}
    ctx = stage(tmp_path / "one", model, eval=[source], eval_rows="all")
    with pytest.raises(DataError, match="more than the model's context of 256") as error:
        run(ctx)
    assert error.value.where == f"{path}, row 1"
