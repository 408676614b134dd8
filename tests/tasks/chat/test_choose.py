"""Which file is meant, with what contract; every wrong name is one clear error."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from artifacts.fingerprint import fingerprint
from artifacts.manifest import Manifest, ManifestDraft
from artifacts.store import Store, open_store
from pipeline_config.contract import ContractConfig
from pipeline_config.loading import load_config
from tasks.chat.choose import choose, contract_data
from tasks.errors import ConfigError, ModelError, StoreError

DEFAULT = ContractConfig(system_prompt="default")
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def export(store: Store, tmp_path: Path) -> Manifest:
    """An export of three formats, of which the smallest was refused."""
    out = tmp_path / "out"
    out.mkdir()
    for name in ("f16", "q8_0", "q4_k_m"):
        (out / f"model-{name}.gguf").write_text(name)
    metrics: dict[str, Any] = {name: {"verdict": "released", "reasons": []} for name in ("f16", "q8_0")}
    metrics["q4_k_m"] = {"verdict": "refused", "reasons": ["worse_than_model"]}
    terms = {"stage": "export"}
    draft = ManifestDraft(
        stage="export",
        stage_version=1,
        fingerprint=fingerprint(terms),
        terms=terms,
        metrics=metrics,
        config=load_config("tiny").model_dump(mode="json"),
        effective_config={"max_tokens": 48},
        started_at=NOON,
        finished_at=NOON,
        duration_s=1.0,
    )
    return store.commit(draft, out)


def test_the_smallest_released_file_of_an_export(store: Store, export: Manifest) -> None:
    for name in ("latest", export.fingerprint[:10], f"export/{export.fingerprint[:10]}", "export:latest"):
        chosen = choose(store, name, None, DEFAULT)
        assert chosen.file == store.local_folder(export) / "model-q8_0.gguf"
        assert chosen.contract == load_config("tiny").contract
        assert (chosen.max_tokens, chosen.n_ctx, chosen.warning) == (48, 256, "")


def test_a_format_by_name(store: Store, export: Manifest) -> None:
    assert choose(store, "latest", "f16", DEFAULT).file.name == "model-f16.gguf"
    refused = choose(store, "latest", "q4_k_m", DEFAULT)
    assert refused.warning == "model-q4_k_m.gguf was refused by its proof (worse_than_model)"
    with pytest.raises(ConfigError, match=r"no file of format q5_k_m(?s:.*)there are: f16, q4_k_m, q8_0"):
        choose(store, "latest", "q5_k_m", DEFAULT)


def test_a_file_with_and_without_its_contract(tmp_path: Path, export: Manifest) -> None:
    file = tmp_path / "any-name.gguf"
    file.write_text("")
    chosen = choose(None, str(file), None, DEFAULT)
    assert chosen.contract == DEFAULT and "no contract.json beside any-name.gguf" in chosen.warning
    beside = tmp_path / "contract.json"
    beside.write_text(json.dumps(contract_data(export.config)))
    chosen = choose(None, str(file), None, DEFAULT)
    assert chosen.contract == load_config("tiny").contract and (chosen.max_tokens, chosen.warning) == (48, "")
    beside.write_text('{"contract": {"answer_start": ""}}')
    with pytest.raises(ModelError, match="its contract is not one"):
        choose(None, str(file), None, DEFAULT)
    beside.write_text("{")
    with pytest.raises(ModelError, match=r"contract\.json: cannot be read"):
        choose(None, str(file), None, DEFAULT)


def test_a_folder_of_files(tmp_path: Path) -> None:
    for name in ("f16", "q5_k_m"):
        (tmp_path / f"model-{name}.gguf").write_text("")
    assert choose(None, str(tmp_path), None, DEFAULT).file.name == "model-q5_k_m.gguf"
    assert choose(None, str(tmp_path), "f16", DEFAULT).file.name == "model-f16.gguf"


def test_names_that_fit_nothing(store: Store, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
        choose(store, str(tmp_path / "none.gguf"), None, DEFAULT)
    with pytest.raises(StoreError, match="no artifact of export yet"):
        choose(store, "latest", None, DEFAULT)
    with pytest.raises(StoreError, match="no model was ever promoted"):
        choose(store, "production", None, DEFAULT)
    with pytest.raises(ConfigError, match="no GGUF file"):
        choose(None, "latest", None, DEFAULT)
