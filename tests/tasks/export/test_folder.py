"""The folder that a user takes away, and its card, from stored artifacts with a few bytes in place of weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from artifacts.manifest import Manifest
from artifacts.store import Store
from pipeline_config.loading import load_config
from tasks.errors import ConfigError, StoreError
from tasks.evaluate.scores import score
from tasks.export.card import related
from tasks.export.folder import _without_places, write_folder

PROOF = {
    "f16": {
        "file": "model-f16.gguf",
        "findings": [{"name": "tokens", "status": "ok", "evidence": "36 texts | of 605 tokens", "fix": ""}],
    }
}
MEASURED = {
    "verdict": "released",
    "reasons": [],
    "n": 64,
    "accuracy": 0.75,
    "accuracy_low": 0.631,
    "accuracy_high": 0.84,
    "model_accuracy": 0.75,
    "lost": 1,
    "gained": 1,
}


def items(right: int) -> list[dict[str, Any]]:
    return [
        {"id": str(i), "right": i < right, "lenient": i < right, "well_formed": True, "truncated": False, "tokens": 9}
        for i in range(40)
    ]


@pytest.fixture
def export(make_chain: Any) -> Manifest:
    answers = {"evaluate_base": items(0), "evaluate_sft": items(20), "evaluate_grpo": items(30)}
    content = {
        f"{stage}/items.jsonl": "".join(json.dumps(item) + "\n" for item in rows) for stage, rows in answers.items()
    }
    sources = [{"table": "train", "name": "hub/openai/gsm8k", "kept": 5, "read": 9}]
    content |= {
        "export/proof.json": json.dumps(PROOF),
        "dataset/stats.json": json.dumps({"sources": sources, "rows": {"train": 5}}),
    }
    metrics: dict[str, Any] = {stage: score(rows, 0) for stage, rows in answers.items()}
    metrics["export"] = {"f16": MEASURED}
    metrics["grpo"] = {"merge": {"mean": 0.0012, "largest": 0.03, "tokens": 120, "tolerance": 0.1}}
    config = load_config("tiny", overrides=["model.source=org/base-0.5b", "run.home=/home/someone/runs"])
    return make_chain(config, content=content, metrics=metrics)["export"]


def test_the_folder(chain_store: Store, export: Manifest, tmp_path: Path) -> None:
    out = tmp_path / "out" / "my-model"
    files = [path.relative_to(out).as_posix() for path in write_folder(chain_store, export, out, "my-model")]
    assert files == [
        "Modelfile",
        "README.md",
        "adapter/adapter_model.safetensors",
        "config.yaml",
        "contract.json",
        "merged/config.json",
        "merged/model.safetensors",
        "model-f16.gguf",
        "proof.json",
    ]
    assert [path.name for path in out.parent.iterdir()] == ["my-model"]  # nothing half-written is left
    # Weights are the store's own bytes; what a user may edit is not.
    stored = chain_store.local_folder(export)
    assert (out / "model-f16.gguf").samefile(stored / "model-f16.gguf")
    assert not (out / "Modelfile").samefile(stored / "Modelfile")
    assert chain_store.verify(export, deep=True) == []
    contract = json.loads((out / "contract.json").read_text())
    assert contract["contract"]["answer_start"] == "<SOLUTION>" and contract["n_ctx"] == 256
    config = yaml.safe_load((out / "config.yaml").read_text())
    assert config["model"]["source"] == "org/base-0.5b"
    assert load_config("tiny", [out / "config.yaml"]).grpo == load_config("tiny").grpo
    assert "/home/someone" not in "".join(path.read_text() for path in out.iterdir() if path.is_file())


def test_the_card_has_what_was_measured(chain_store: Store, export: Manifest, tmp_path: Path) -> None:
    from huggingface_hub import ModelCard

    write_folder(chain_store, export, tmp_path / "out", "my-model")
    text = (tmp_path / "out" / "README.md").read_text()
    card = ModelCard(text)
    assert card.data.base_model == "org/base-0.5b" and card.data.datasets == ["openai/gsm8k"]
    assert card.data.pipeline_tag == "text-generation" and "gguf" in card.data.tags
    (result,) = card.data.eval_results
    assert result.metric_value == 75.0 and result.metric_name == "strict accuracy, greedy, n = 40"
    # Wilson: 30 of 40 is 75 % [59.8, 85.8], 20 of 40 is 50 % [35.2, 64.8].
    assert "| GRPO | held_out | 40 | 75.0 % [59.8 %, 85.8 %] |" in text
    assert "| SFT | held_out | 40 | 50.0 % [35.2 %, 64.8 %] |" in text
    assert "| SFT to GRPO | 40 | 10 | 0 | +25.0 |" in text
    assert "| `model-f16.gguf` | released | 64 | 75.0 % [63.1 %, 84.0 %] | 75.0 % | 1 | 1 |" in text
    assert "- `model-f16.gguf` tokens: ok; 36 texts \\| of 605 tokens" in text
    assert "grpo: merged weights against base plus adapter: mean distance 0.0012" in text
    assert "| train | hub/openai/gsm8k | 5 | 9 |" in text
    for manifest in related(export, chain_store).values():
        assert f"`{manifest.fingerprint[:16]}`" in text
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert all(line.endswith("|") for line in tables)


def test_a_card_of_a_run_without_baseline_or_adapter(make_chain: Any, chain_store: Store, tmp_path: Path) -> None:
    config = load_config("tiny", overrides=["evaluation.baseline=false", "gate.enabled=false"])
    made = make_chain(config, metrics={"export": {"f16": {**MEASURED, "verdict": "released_with_warning"}}})
    write_folder(chain_store, made["export"], tmp_path / "out", "plain", weights=False)
    text = (tmp_path / "out" / "README.md").read_text()
    assert "There is no system message." in text and "adapter/" not in text and "base_model" not in text
    assert not (tmp_path / "out" / "merged").exists()


def test_refused_files_are_left_out_unless_asked_for(make_chain: Any, chain_store: Store, tmp_path: Path) -> None:
    refused = {**MEASURED, "verdict": "refused", "reasons": ["worse_than_model"]}
    export = make_chain(load_config("tiny"), metrics={"export": {"f16": refused}})["export"]
    with pytest.raises(ConfigError, match="no GGUF file of this export was released") as caught:
        write_folder(chain_store, export, tmp_path / "out", "x")
    assert caught.value.cause == "export_refused" and not (tmp_path / "out").exists()
    write_folder(chain_store, export, tmp_path / "out", "x", refused=True)
    assert (tmp_path / "out" / "model-f16.gguf").exists()


def test_a_folder_that_is_not_empty_is_left_alone(chain_store: Store, export: Manifest, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    with pytest.raises(ConfigError, match="not an empty folder"):
        write_folder(chain_store, export, tmp_path / "out", "x")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]
    (tmp_path / "out" / "mine").unlink()
    write_folder(chain_store, export, tmp_path / "out", "x")


def test_weights_that_are_gone(chain_store: Store, export: Manifest, tmp_path: Path) -> None:
    chain_store.remove(chain_store.find("grpo:latest"))
    with pytest.raises(StoreError, match=r"not in the store any more(?s:.*)--no-weights"):
        write_folder(chain_store, export, tmp_path / "out", "x")
    write_folder(chain_store, export, tmp_path / "out", "x", weights=False)


def test_the_adapter_names_no_place_on_this_machine(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# Model Card for Model ID")
    (tmp_path / "adapter_config.json").write_text('{"r": 8, "base_model_name_or_path": "/home/someone/store/sft"}')
    _without_places(tmp_path)
    settings = json.loads((tmp_path / "adapter_config.json").read_text())
    assert settings == {"r": 8, "base_model_name_or_path": "the merged SFT model of the same run"}
    assert not (tmp_path / "README.md").exists()
