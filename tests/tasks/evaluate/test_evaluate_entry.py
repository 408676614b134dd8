"""The stage with a sampler that writes given texts: several sets, overlap, and results taken over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_config.pipeline import PipelineConfig
from tasks.evaluate import entry
from tasks.evaluate.scores import sets_of
from tasks.models import prepare_model
from tasks.process.context import StageContext
from tasks.sampling.sampler import Completion, SamplingSettings

RIGHT = "w\u2028<end_working_out><SOLUTION>{}</SOLUTION>"  # a line separator to Unicode, not to JSON lines


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    prepare_model("tiny", path, revision=None, seed=0, trust_remote_code=False)
    return path


class Writer:
    """Answers 2 always: greedily in the tags, sampled in turn in the tags and bare."""

    name = "written"
    asked: ClassVar[list[tuple[int, SamplingSettings]]] = []

    def __init__(self, folder: Path, tokenizer: Any, config: PipelineConfig, new_tokens: int) -> None:
        pass

    def sample(self, prompts: Any, settings: SamplingSettings, progress: Any = None) -> list[list[Completion]]:
        Writer.asked.append((len(prompts), settings))
        texts = [RIGHT.format(2) if i % 2 == 0 else "it is 2" for i in range(settings.n)]
        return [[Completion(text, 5, truncated=False) for text in texts] for _ in prompts]


@pytest.fixture(autouse=True)
def writer(monkeypatch: pytest.MonkeyPatch) -> type[Writer]:
    monkeypatch.setattr(entry, "Sampler", Writer)
    Writer.asked = []
    return Writer


def stage(folder: Path, model: Path, sets: dict[str, list[str]], dirty: str = "", **inputs: Path) -> StageContext:
    """Sets of problems by their golds; the problem with the gold `dirty` occurs in training."""
    (folder / "out").mkdir(parents=True)
    for part in ("sets", "overlap"):
        (folder / "in" / part).mkdir(parents=True)
    for name, golds in sets.items():
        rows = [{"id": f"{name}{gold}", "question": f"{gold}?", "answer": gold, "source": "file/x"} for gold in golds]
        pq.write_table(pa.Table.from_pylist(rows), folder / "in" / "sets" / f"{name}.parquet")
        lines = [
            {"id": row["id"], "overlap": float(row["answer"] == dirty), "contaminated": row["answer"] == dirty}
            for row in rows
        ]
        (folder / "in" / "overlap" / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    others = [
        {"name": name, "source": {"kind": "file", "url": "x.jsonl"}, "samples": 2, "max_new_tokens": 33}
        for name in sets
        if name != "held_out"
    ]
    config = PipelineConfig.model_validate({"evaluation": {"sets": others}, "grpo": {"max_completion_length": 64}})
    given = {name.replace("__", "/"): path for name, path in inputs.items()}
    return StageContext(config, {"model": model, "evaluation_sets": folder / "in", **given}, folder)  # fmt: skip


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def test_every_set_is_scored_under_its_own_spec(tmp_path: Path, model: Path) -> None:
    ctx = stage(tmp_path, model, {"held_out": ["2", "3"], "own": ["2", "5", "7"]}, dirty="2")
    result = entry.run(ctx)
    assert [(n, s.temperature, s.n, s.max_new_tokens, s.seed) for n, s in Writer.asked] == [
        (2, 0.0, 1, 64, 0),
        (3, 0.0, 1, 33, 0),
        (3, 1.0, 2, 33, 0),
    ]
    metrics = result.metrics
    assert metrics == json.loads((ctx.out / "scores.json").read_text())
    assert (metrics["strict"]["hits"], metrics["strict"]["n"]) == (1, 2)
    own = metrics["sets"]["own"]
    assert (own["strict"]["rate"], own["clean"]["strict"]["rate"], own["overlapping"]["n"]) == (1 / 3, 0.0, 1)
    # Of the two samples of the right problem one has the tags: pass@1 1/6 strictly, 1/3 leniently.
    assert (own["pass_at_1"]["rate"], own["pass_at_1_lenient"]["rate"]) == (pytest.approx(1 / 6), pytest.approx(1 / 3))
    assert own["pass_at_k"]["2"]["rate"] == pytest.approx(1 / 3) and own["maj_at_k"]["rate"] == pytest.approx(1 / 3)
    assert own["spec"]["problems"]["n"] == 3 and own["spec"]["digest"] != metrics["spec"]["digest"]
    items = rows(ctx.out / "sets" / "own" / "items.jsonl")
    assert [(item["right"], item["contaminated"]) for item in items] == [(True, True), (False, False), (False, False)]
    assert pq.read_table(ctx.out / "sets" / "own" / "samples.parquet").num_rows == 6
    assert not (ctx.out / "samples.parquet").exists()
    found = sets_of(metrics)
    assert list(found) == ["held_out", "own"] and "sets" not in found["held_out"]


def test_what_an_earlier_artifact_holds_is_taken_over(tmp_path: Path, model: Path) -> None:
    sets = {"held_out": ["2", "3"], "own": ["2", "5"]}
    first = stage(tmp_path / "first", model, sets)
    before = entry.run(first)
    Writer.asked.clear()
    # A set is added, and training now holds a problem: nothing old is sampled, the marks and scores are new.
    again = stage(
        tmp_path / "again",
        model,
        {**sets, "new": ["2"]},
        dirty="5",
        earlier__held_out=first.out,
        earlier__own=first.out,
    )
    result = entry.run(again)
    assert [n for n, _ in Writer.asked] == [1, 1]
    assert result.metrics["strict"] == before.metrics["strict"]
    own = result.metrics["sets"]["own"]
    assert own["strict"] == before.metrics["sets"]["own"]["strict"] and own["overlapping"]["n"] == 1
    assert pq.read_table(again.out / "sets" / "own" / "samples.parquet").num_rows == 4
    assert result.notes == ["held_out, own: taken over from an earlier evaluation of this model"]
    assert result.effective_config["rollout_engine"] == dict.fromkeys(("held_out", "own", "new"), "written")


def test_another_spec_is_not_taken_over(tmp_path: Path, model: Path) -> None:
    """Whatever the flow offers, the spec has the last word."""
    first = stage(tmp_path / "first", model, {"held_out": ["2", "3"]})
    entry.run(first)
    Writer.asked.clear()
    entry.run(stage(tmp_path / "again", model, {"held_out": ["2", "4"]}, earlier__held_out=first.out))
    assert len(Writer.asked) == 1
