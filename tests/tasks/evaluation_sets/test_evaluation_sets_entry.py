"""The stage on local files of the published schemas: held-out set, MATH, AIME, GSM8K and a user's own, with overlap."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_config.pipeline import PipelineConfig
from tasks.dataset.problem import content_digest
from tasks.errors import DataError
from tasks.evaluation_sets.entry import run
from tasks.models import prepare_model
from tasks.process.context import StageContext

FRACTION = r"\frac{15}{28}"
MATH = {
    "problem": "A bag holds $3$ red and $5$ blue counters. Two counters are drawn without replacement. What is the probability that they differ in colour?",
    "solution": r"There are $56$ draws, so the probability is $\boxed{\frac{15}{28}}$.",
    "answer": FRACTION,
    "subject": "Counting & Probability",
    "level": 2,
    "unique_id": "test/counting_and_probability/99901.json",
}
AIME = {"problem": "Find the number of ordered pairs $(a,b)$ with $a+b=74$ and $\\gcd(a,b)=1$.", "answer": "036"}
GSM8K = {"question": "Ann has 3 apples and buys 5 more. How many apples has she?", "answer": "3+5=<<3+5=8>>8\n#### 8"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    prepare_model("tiny", path, revision=None, seed=0, trust_remote_code=False)
    return path


def table(path: Path, rows: list[dict[str, Any]]) -> None:
    pq.write_table(pa.Table.from_pylist(rows), path)


def question(text: str, answer: str = "8", **more: str) -> dict[str, str]:
    return {"id": content_digest(text), "question": text, **more, "answer": answer, "source": "file/x"}


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    folder = tmp_path / "dataset"
    folder.mkdir()
    table(folder / "eval.parquet", [question(f"What is {i} + 5?", str(i + 5)) for i in range(3)])
    table(folder / "sft.parquet", [question("What is 9 + 9?", "18", working=MATH["problem"])])
    table(folder / "train.parquet", [question("What is 8 + 8?", "16"), question("What is 7 + 7?", "14")])
    return folder


def stage(tmp_path: Path, model: Path, dataset: Path, *sets: dict[str, Any], **evaluation: Any) -> StageContext:
    settings = {
        "model": {"source": "tiny", "max_context": 512},
        "grpo": {"max_completion_length": 64},
        "sft": {"max_length": 256},
        "evaluation": {"problems": 2, "sets": list(sets), **evaluation},
    }
    work = tmp_path / "work"
    (work / "out").mkdir(parents=True)
    return StageContext(PipelineConfig.model_validate(settings), {"model": model, "dataset": dataset}, work)


def jsonl(path: Path, *rows: object) -> dict[str, str]:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return {"kind": "file", "url": str(path)}


def test_the_published_shapes(tmp_path: Path, model: Path, dataset: Path) -> None:
    table(
        tmp_path / "aime.parquet", [{"problem_idx": 1, **AIME, "answer": 36}, {"problem_idx": 2, **AIME, "answer": 36}]
    )
    with gzip.open(tmp_path / "gsm8k.jsonl.gz", "wt") as file:
        file.write(json.dumps(GSM8K) + "\n")
    (tmp_path / "own.csv").write_text('frage,wert\n"Was ist 2 + 2?",4\n')
    ctx = stage(
        tmp_path,
        model,
        dataset,
        {"name": "math500", "source": {**jsonl(tmp_path / "math.jsonl", MATH), "layout": "math"}},
        {"name": "aime24", "source": {"kind": "file", "url": str(tmp_path / "aime.parquet"), "layout": "aime"}},
        {"name": "aime25", "source": {**jsonl(tmp_path / "a.jsonl", {"question": "1 + 1?", "answer": "002"}), "layout": "aime"}},
        {"name": "gsm8k", "source": {"kind": "file", "url": str(tmp_path / "gsm8k.jsonl.gz"), "layout": "gsm8k"}},
        {"name": "own", "source": {"kind": "file", "url": str(tmp_path / "own.csv"), "columns": {"question": "frage", "answer": "wert"}}},
        {"name": "sums", "source": {"kind": "generated", "problem": "sum", "max_operand": 999}, "problems": 7},
    )  # fmt: skip
    result = run(ctx)
    rows = {path.stem: pq.read_table(path).to_pylist() for path in (ctx.out / "sets").iterdir()}
    assert [row["question"] for row in rows["held_out"]] == ["What is 0 + 5?", "What is 1 + 5?"], "evaluation.problems"
    golds = {name: [row["answer"] for row in found] for name, found in rows.items() if name != "sums"}
    assert golds == {
        "held_out": ["5", "6"], "math500": [FRACTION], "aime24": ["36"], "aime25": ["002"], "gsm8k": ["8"], "own": ["4"]
    }  # fmt: skip
    assert len(rows["sums"]) == 7 and all(row["id"] == content_digest(row["question"]) for row in rows["sums"])
    assert result.metrics["rows/aime24"] == 1, "the repeated problem counts once"
    # The MATH problem stands in an SFT working: reported, not removed.
    (found,) = [json.loads(line) for line in (ctx.out / "overlap" / "math500.jsonl").read_text().splitlines()]
    assert (found["overlap"], found["contaminated"], found["table"]) == (1.0, True, "sft")
    assert result.metrics["contaminated/math500"] == 1 and result.metrics["contaminated/gsm8k"] == 0
    assert result.notes == ["math500: 1 of 1 problems occur in the training data"]
    report = json.loads((ctx.out / "sets.json").read_text())
    assert report["aime24"]["read"] == 2 and report["aime24"]["dropped_on_reading"] == {"duplicate": 1}
    assert report["held_out"] == {"rows": 2, "contaminated": 0, "any_overlap": 0, "training_rows": 3}


def test_a_set_is_the_same_in_every_run(tmp_path: Path, model: Path, dataset: Path) -> None:
    """Which problems are taken does not depend on seeds, nor on the order in the file."""
    rows = [{"question": f"What is {i} + 100?", "answer": i + 100} for i in range(30)]
    ids = []
    for name, order, data in (("a", rows, {}), ("b", rows[::-1], {"seed": 7})):
        folder = tmp_path / name
        folder.mkdir()
        one = {"name": "own", "source": jsonl(folder / "own.jsonl", *order), "problems": 5}
        ctx = stage(folder, model, dataset, one)
        ctx.config = ctx.config.model_copy(update={"data": ctx.config.data.model_copy(update=data)})
        run(ctx)
        ids.append(pq.read_table(ctx.out / "sets" / "own.parquet")["id"].to_pylist())
    assert ids[0] == ids[1] and len(ids[0]) == 5


@pytest.mark.parametrize(
    ("rows", "settings", "message"),
    [
        ([{"question": "1 + 1?"}], {}, r"x\.jsonl, row 1, column 'answer'"),
        ([{"question": "1 + 1?", "answer": "2"}], {"problems": 2}, r"only 1 are left(?s:.*)lower evaluation\.sets\[0\]\.problems"),
        ([{"question": "1 + 1?" * 80, "answer": "2"}], {"max_new_tokens": 400}, "more than the model's context"),
        ([{"question": "1 + 1?", "answer": "nan"}], {}, "does not grade as right"),
    ],
)  # fmt: skip
def test_a_bad_set_is_named_before_anything_trains(
    tmp_path: Path, model: Path, dataset: Path, rows: list[Any], settings: dict[str, Any], message: str
) -> None:
    one = {"name": "own", "source": jsonl(tmp_path / "x.jsonl", *rows), **settings}
    with pytest.raises(DataError, match=message):
        run(stage(tmp_path, model, dataset, one))


def test_without_further_sets_no_tokenizer_is_needed(tmp_path: Path, dataset: Path) -> None:
    ctx = stage(tmp_path, tmp_path / "nowhere", dataset)
    assert run(ctx).metrics == {"rows/held_out": 2, "contaminated/held_out": 0}
