"""Where a model comes from: what is built, what is referenced, and what is refused."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tasks.errors import ModelError
from tasks.models import model_folder, prepare_model

CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}


def make_folder(path: Path, **files: str) -> Path:
    """A folder that looks like a model; `files` replaces or (with "-") removes single files, `_` standing for `.`."""
    content = {"config.json": json.dumps(CONFIG), "model.safetensors": "weights", "tokenizer.json": "{}"}
    content |= {name.replace("_", ".", 1): text for name, text in files.items()}
    path.mkdir()
    for name, text in content.items():
        if text != "-":
            (path / name).write_text(text)
    return path


def prepare(source: str | Path, dest: Path, *, trust: bool = False) -> dict[str, Any]:
    dest.mkdir(exist_ok=True)
    return prepare_model(str(source), dest, revision=None, seed=0, trust_remote_code=trust)


def test_the_tiny_model_is_built(tmp_path: Path) -> None:
    summary = prepare("tiny", tmp_path / "out")
    assert summary["built"] is True
    assert model_folder(tmp_path / "out", "tiny", None) == tmp_path / "out" / "model"
    assert (tmp_path / "out" / "model" / "tokenizer.model").is_file()


def test_a_local_folder_is_referenced_not_copied(tmp_path: Path) -> None:
    source = make_folder(tmp_path / "m")
    prepare(source, tmp_path / "out")
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["reference.json"]
    files = {f["name"]: f for f in json.loads((tmp_path / "out" / "reference.json").read_text())["files"]}
    assert files["model.safetensors"]["size"] == len("weights")
    assert files["model.safetensors"]["sha256"] == hashlib.sha256(b"weights").hexdigest()
    assert model_folder(tmp_path / "out", str(source), None) == source


@pytest.mark.parametrize("change", ["gone", "longer"])
def test_a_changed_file_is_noticed(tmp_path: Path, change: str) -> None:
    source = make_folder(tmp_path / "m")
    prepare(source, tmp_path / "out")
    target = source / "model.safetensors"
    target.unlink() if change == "gone" else target.write_text("other weights")
    with pytest.raises(ModelError, match=r"model.safetensors is missing or has changed"):
        model_folder(tmp_path / "out", str(source), None)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"config_json": "-"}, "no config.json"),
        ({"config_json": "{not json"}, "config.json cannot be read"),
        ({"config_json": "{}"}, "names no architecture"),
        ({"config_json": json.dumps({**CONFIG, "auto_map": {"AutoModel": "m.M"}})}, "needs Python code"),
        ({"model_safetensors": "-"}, "no safetensors"),
        ({"model_safetensors": "-", "pytorch_bin": "pickle"}, "only pickles: pytorch.bin"),
        ({"tokenizer_json": "-"}, "no tokenizer"),
    ],
)
def test_what_is_refused(tmp_path: Path, files: dict[str, str], message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        prepare(make_folder(tmp_path / "m", **files), tmp_path / "out")
    assert caught.value.fix and caught.value.where
    assert list((tmp_path / "out").iterdir()) == []


def test_custom_code_is_taken_when_trusted(tmp_path: Path) -> None:
    source = make_folder(tmp_path / "m", config_json=json.dumps({**CONFIG, "auto_map": {"AutoModel": "m.M"}}))
    assert prepare(source, tmp_path / "out", trust=True)["built"] is False


@pytest.mark.parametrize("source", ["./nowhere", "nowhere", "a/b/c", "package:other"])
def test_an_unknown_source(tmp_path: Path, source: str) -> None:
    with pytest.raises(ModelError) as caught:
        prepare(source, tmp_path / "out")
    assert source in caught.value.where and caught.value.fix
