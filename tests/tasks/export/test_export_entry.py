"""The whole stage on a tiny random model."""

import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_config.pipeline import PipelineConfig
from tasks.errors import ExportRefused, ModelError
from tasks.export import convert, entry
from tasks.process.context import StageContext


@pytest.fixture
def context(exported, tmp_path, monkeypatch):
    # The converter takes seconds and has tests of its own.
    monkeypatch.setattr(convert, "convert", lambda folder, out, kind, name: out.write_bytes(exported.f16.read_bytes()))
    rows = [{"id": p.id, "question": p.question, "answer": p.answer} for p in exported.problems]
    (tmp_path / "dataset").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "dataset" / "eval.parquet")
    (tmp_path / "work" / "out").mkdir(parents=True)
    inputs = {"grpo": exported.folder.parent, "dataset": tmp_path / "dataset"}

    def make(items=None, **export):
        if items is not None:
            (tmp_path / "evaluate").mkdir()
            (tmp_path / "evaluate" / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
            inputs["evaluate_grpo"] = tmp_path / "evaluate"
        config = PipelineConfig(export={"max_tokens": 4, "threads": 1, "logprob_problems": 2, **export})
        return StageContext(config, inputs, tmp_path / "work")

    return make


def items(exported, right):
    return [{"id": p.id, "completion": "\n1 + 2 = 3\n", "right": right} for p in exported.problems[2:]]


def test_files_proof_samples_and_modelfile(exported, context):
    ctx = context(items(exported, right=False), proof_problems=5)
    result = entry.run(ctx)
    names = ["Modelfile", "contract.json", "model-f16.gguf", "model-q4_k_m.gguf", "proof.json", "samples.jsonl"]
    assert sorted(p.name for p in ctx.out.iterdir()) == names
    proof = json.loads((ctx.out / "proof.json").read_text())
    assert proof["q4_k_m"]["name"] == "released_with_warning"
    checks = {finding["name"]: finding["status"] for finding in proof["q4_k_m"]["findings"]}
    assert checks.pop("accuracy") == "warn"
    assert set(checks) == {"weights", "tensors", "template", "eos", "bos", "tokens", "log_probabilities"}
    assert set(checks.values()) == {"ok"}
    samples = [json.loads(line) for line in (ctx.out / "samples.jsonl").read_text().splitlines()]
    assert len(samples) == 2 * 5
    # The four problems that the evaluation asked come first, and only they are paired.
    assert [sample["id"] for sample in samples[:5]] == ["2", "3", "4", "5", "0"]
    assert [sample["model_right"] for sample in samples[:5]] == [False] * 4 + [None]
    metrics = result.metrics["f16"]
    assert (metrics["n"], metrics["right"], metrics["paired"], metrics["lost"]) == (5, 0, 4, 0)
    assert metrics["accuracy_high"] == pytest.approx(3.841459 / 8.841459, abs=1e-6)
    assert metrics["bytes"] == (ctx.out / "model-f16.gguf").stat().st_size
    assert (ctx.out / "Modelfile").read_text().startswith("FROM ./model-q4_k_m.gguf\n")
    limits = json.loads((ctx.out / "contract.json").read_text())
    assert limits["contract"]["answer_end"] == "</SOLUTION>" and limits["max_tokens"] == 4
    assert result.effective_config == {"max_tokens": 4, "problems": 5, "reference_completions": 2}


def test_weights_of_before_training_are_refused_even_when_they_answer_alike(exported, context, tmp_path):
    """Training moved the weights by a ten-thousandth: no score shows it, the comparison of weights does."""
    trained = shutil.copytree(exported.folder, tmp_path / "grpo" / "model")
    nudge(trained / "model.safetensors", 1.0001)
    ctx = context(items(exported, right=False), formats=["q4_k_m"])
    ctx.inputs.update(
        grpo=trained.parent, sft=exported.folder.parent
    )  # the converter's stand-in writes the old weights
    with pytest.raises(
        ExportRefused, match="20 tensors differ from the trained model's; 20 are those of before"
    ) as caught:
        entry.run(ctx)
    assert caught.value.cause == "not_the_trained_model"


def nudge(file, factor):
    """Multiply every weight of a safetensors file."""
    from safetensors.torch import load_file, save_file

    tensors = {name: (tensor.double() * factor).to(tensor.dtype) for name, tensor in load_file(file).items()}
    save_file(tensors, file, {"format": "pt"})


def test_without_an_evaluation_the_first_file_is_the_measure(context):
    ctx = context(formats=["q4_k_m"])
    result = entry.run(ctx)
    assert not (ctx.out / "model-f16.gguf").exists()  # only an intermediate
    assert result.metrics["q4_k_m"]["reasons"] == ["accuracy"]
    assert "paired" not in result.metrics["q4_k_m"]


def test_a_refused_file_stops_the_run_with_its_reason(exported, context):
    ctx = context([{**item, "id": str(i)} for i, item in enumerate(items(exported, True) * 2)][:6], formats=["f16"])
    with pytest.raises(ExportRefused, match="worse_than_model") as caught:
        entry.run(ctx)
    assert caught.value.cause == "worse_than_model"
    assert json.loads((ctx.out / "proof.json").read_text())["f16"]["name"] == "refused"
    assert not (ctx.out / "Modelfile").exists()


def test_a_refused_file_can_be_reported_instead(exported, context):
    ctx = context(
        [{**item, "id": str(i)} for i, item in enumerate(items(exported, True) * 2)][:6],
        formats=["f16"],
        on_refused="warn",
    )
    result = entry.run(ctx)
    assert result.notes == ["f16: refused (worse_than_model)"]
    assert result.metrics["f16"]["verdict"] == "refused"


def test_no_trained_model(tmp_path):
    with pytest.raises(ModelError, match="no trained model"):
        entry.run(StageContext(PipelineConfig(), {}, tmp_path))


def test_formats_named_twice():
    with pytest.raises(ValueError, match="f16 is named more than once"):
        PipelineConfig(export={"formats": ["f16", "f16"]})
