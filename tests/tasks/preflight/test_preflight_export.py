"""The dry run of the export, with the real converter and quantizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline_config.loading import load_config
from pipeline_config.pipeline import PipelineConfig
from tasks.errors import ModelError, StoreError
from tasks.preflight import export
from tasks.preflight.export import check_export, shrunk
from tasks.training.loading import load_tokenizer

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
QUESTIONS = ["What is 12 + 5?", "What is 3 + 4?"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tasks.models.tiny import build_tiny

    folder = tmp_path_factory.mktemp("tiny") / "model"
    build_tiny(folder, seed=0)
    return folder


def config(*overrides: str) -> PipelineConfig:
    return load_config("tiny", overrides=["export.threads=1", *overrides])


def test_a_small_base_model_is_exported_as_it_is(tiny: Path) -> None:
    asked = config()
    found = {f.name: f for f in check_export(tiny, asked, load_tokenizer(tiny, asked), QUESTIONS)}
    assert {name: f.status for name, f in found.items()} == {
        "export.dry_run": "ok", "export.template": "ok", "export.eos": "ok", "export.bos": "ok", "export.tokens": "ok",
    }  # fmt: skip
    assert "the base model" in found["export.dry_run"].evidence
    assert "converts to f16, q4_k_m" in found["export.dry_run"].evidence


def test_an_architecture_that_the_converter_does_not_know(tiny: Path, tmp_path: Path) -> None:
    asked = config()
    tokenizer = load_tokenizer(tiny, asked)
    shape = {"n_embd": 32, "n_layer": 1, "n_head": 2, "rotary_dim": 8, "vocab_size": len(tokenizer), "n_positions": 64}
    model = transformers.CodeGenForCausalLM(transformers.CodeGenConfig(**shape))
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    (finding,) = check_export(tmp_path, asked, tokenizer, QUESTIONS)
    assert (finding.name, finding.status) == ("export_unsupported", "fail")
    assert "CodeGenForCausalLM" in finding.evidence and "architecture_unsupported" in finding.evidence
    assert "supported architecture" in finding.fix


def test_a_folder_without_weights(tiny: Path, tmp_path: Path) -> None:
    asked = config()
    (tmp_path / "config.json").write_text((tiny / "config.json").read_text())
    (finding,) = check_export(tmp_path, asked, load_tokenizer(tiny, asked), QUESTIONS)
    assert (finding.name, finding.status) == ("export_unsupported", "fail") and "incomplete_model" in finding.evidence


@pytest.mark.parametrize(
    ("error", "name", "status"),
    [
        (ModelError("llama.cpp could not quantize", cause="quantization_failed"), "export_unsupported", "fail"),
        (StoreError("the disk is full", cause="disk_full"), "export.dry_run", "not_measured"),
        (OSError("no space left"), "export.dry_run", "not_measured"),
    ],
)
def test_what_goes_wrong_on_the_way(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, name: str, status: str
) -> None:
    def fails(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(export, "write_files", fails)
    asked = config()
    (finding,) = check_export(tiny, asked, load_tokenizer(tiny, asked), QUESTIONS)
    assert (finding.name, finding.status) == (name, status)


def test_no_formats() -> None:
    asked = config()
    none = asked.model_copy(update={"export": asked.export.model_copy(update={"formats": []})})
    (finding,) = check_export(Path("none"), none, None, [])
    assert (finding.name, finding.status) == ("export.dry_run", "not_measured")


def llama(**more: Any) -> Any:
    shape = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9}
    return transformers.LlamaConfig(**{**shape, "num_key_value_heads": 3, "vocab_size": 49152, **more})


def test_a_large_model_is_shrunk_and_keeps_its_vocabulary_and_head_dimension() -> None:
    base = llama()
    small = shrunk(base)
    assert (small.num_hidden_layers, small.hidden_size, small.intermediate_size) == (2, 128, 256)
    assert (small.num_attention_heads, small.num_key_value_heads, small.head_dim) == (2, 1, 64)
    assert small.vocab_size == 49152
    assert base.num_hidden_layers == 30  # untouched


@pytest.mark.parametrize(
    "make",
    [
        lambda: llama(num_key_value_heads=9),
        lambda: transformers.Qwen2Config(),
        lambda: transformers.Qwen3Config(),
        lambda: transformers.Qwen3MoeConfig(),
        lambda: transformers.MistralConfig(),
        lambda: transformers.MixtralConfig(),
        lambda: transformers.Gemma2Config(),
        lambda: transformers.Gemma3TextConfig(),
        lambda: transformers.Phi3Config(pad_token_id=0),
        lambda: transformers.SmolLM3Config(),
    ],
)
def test_the_usual_architectures_can_be_shrunk(make: Any) -> None:
    torch = pytest.importorskip("torch")
    small = shrunk(make())
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(small, dtype=torch.bfloat16)
        model(input_ids=torch.zeros((1, 4), dtype=torch.long))
    assert sum(p.numel() for p in model.parameters()) < export.LARGEST


def test_a_large_base_model_is_not_read(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = config()
    tokenizer = load_tokenizer(tiny, asked)
    monkeypatch.setattr(export, "SMALL", 1000)
    folder = tmp_path / "base"
    folder.mkdir()
    for name in ("config.json", "tokenizer.model", "tokenizer_config.json"):
        (folder / name).write_bytes((tiny / name).read_bytes())
    made, what = export.small_model(folder, asked, tokenizer, tmp_path / "out")
    assert "random LlamaForCausalLM of 2 layers" in what
    small = json.loads((made / "config.json").read_text())
    assert small["hidden_size"] == 64 and (made / "tokenizer.model").is_file()
