"""Base plus adapter against merged weights, on a real tiny model with a real adapter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from pipeline_config.pipeline import PipelineConfig
from tasks.contract.prompts import trained_template
from tasks.errors import ModelError
from tasks.models.tiny import build_tiny
from tasks.training.merge import MergeCheck, Probe, probes_of_rollouts, probes_of_rows, remarks
from tasks.training.saving import save_merged

PROBES = [Probe(list(range(5, 40)), 10), Probe(list(range(60, 90)), 4)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("merge") / "model"
    build_tiny(made, seed=0)
    return made


def adapted(folder: Path, size: float) -> Any:
    """The model with an adapter whose second matrix has entries of about `size`."""
    base = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32)
    model = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "up_proj", "down_proj"]))
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=size)
    return model


def rounded(model: Any) -> Any:
    return model.to(torch.bfloat16).to(torch.float32)


def test_a_true_merge(folder: Path) -> None:
    model = adapted(folder, 0.05)
    check = MergeCheck(model, PROBES)
    found = check.compare(rounded(model.merge_and_unload()))
    assert found["tokens"] == 25 + 26
    assert 0 < found["mean"] < 0.01 and found["largest"] < 0.05 and abs(found["lost"]) < 0.05
    assert remarks(found) == []


@pytest.mark.parametrize("size", [0.002, 0.05])
def test_an_adapter_that_was_left_out(folder: Path, size: float) -> None:
    """Found also where the distance alone would say nothing."""
    model = adapted(folder, size)
    check = MergeCheck(model, PROBES)
    with pytest.raises(ModelError, match=r"1\d\d% .* of the adapter's effect is gone|9\d% .* is gone") as caught:
        check.compare(rounded(model.unload()))
    assert caught.value.cause == "merge_differs"


def test_another_model(folder: Path, tmp_path: Path) -> None:
    check = MergeCheck(adapted(folder, 0.05), PROBES)
    build_tiny(tmp_path / "other", seed=1)
    with pytest.raises(ModelError, match="merging changed the model: mean distance"):
        check.compare(AutoModelForCausalLM.from_pretrained(str(tmp_path / "other"), dtype=torch.float32))


def test_what_cannot_be_measured_is_not_called_well(folder: Path) -> None:
    model = adapted(folder, 0.05)
    assert MergeCheck(model, []).compare(model.merge_and_unload()) == {"tokens": 0, "tolerance": 0.1}

    class Patched(torch.nn.Module):
        """Hands out hidden states in place of logits, as some patched forward passes do."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, input_ids: torch.Tensor, use_cache: bool) -> Any:
            return type("Output", (), {"logits": torch.zeros(*input_ids.shape, 8)})

    assert MergeCheck(adapted(folder, 0.05), PROBES).compare(Patched())["tokens"] == 0


def test_saving_measures_the_merge(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    saved = save_merged(adapted(folder, 0.05), tokenizer, tmp_path, torch.bfloat16, probes=PROBES)
    assert saved["dtype"] == "bfloat16" and saved["merge"]["tokens"] == 51
    assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()
    # A policy whose own weights must not be merged into: the adapter goes onto the folder's.
    policy = adapted(folder, 0.05)
    again = save_merged(policy, tokenizer, tmp_path / "2", torch.bfloat16, folder, PROBES)
    assert again["merge"]["mean"] < 0.05

    def full(self: Any, *_: Any) -> Any:
        monkeypatch.undo()
        raise torch.OutOfMemoryError("CUDA out of memory")

    # Without room beside the policy the merge is made on the host, and says that it was not compared.
    monkeypatch.setattr(type(policy.get_base_model()), "to", full)
    third = save_merged(policy, tokenizer, tmp_path / "host", torch.bfloat16, folder, PROBES)
    assert third["merge"] == {"tokens": 0, "tolerance": 0.1}
    one, two = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("2", "host"))
    assert all(torch.equal(one[name], two[name]) for name in one) and one.keys() == two.keys()
    plain = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32)
    assert "merge" not in save_merged(plain, tokenizer, tmp_path / "3", torch.bfloat16, probes=PROBES)


def test_probes(folder: Path, tmp_path: Path) -> None:
    rows = [{"input_ids": list(range(10)), "labels": [-100] * 4 + list(range(4, 10))}] * 6
    assert probes_of_rows(rows, -100) == [Probe(list(range(10)), 4)] * 4
    config = PipelineConfig()
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    tokenizer.chat_template = trained_template(tokenizer.chat_template, config.contract)
    path = tmp_path / "rollouts.jsonl"
    assert probes_of_rollouts(path, tokenizer, config) == []
    rollouts = [{"question": "1 + 1?", "completion": text} for text in ("old", "2", "2", "2\u2028", "")]
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rollouts))
    probes = probes_of_rollouts(path, tokenizer, config)
    assert len(probes) == 3 and tokenizer.decode(probes[0].ids).endswith("<start_working_out>2")


def test_remarks() -> None:
    assert remarks(None) == remarks({"tokens": 0}) == remarks({"lost": 0.3, "lost_error": 0.2}) == []
    assert "undid 40% of what" in remarks({"lost": 0.4, "lost_error": 0.04})[0]
