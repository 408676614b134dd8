"""A good file is released; each fault of a real file is refused by its name."""

import shutil

import gguf
import numpy as np
import pytest
from transformers import AutoTokenizer

from pipeline_config.export import ExportConfig
from tasks.contract.prompts import encode_prompt
from tasks.export import convert
from tasks.export.checks import Problem, Reference, prove, trained_weights
from tasks.export.reference import log_probabilities
from tasks.export.tensors import compare_tensors
from tasks.models.tiny import build_tiny

SETTINGS = ExportConfig(parallel=4, threads=1)


def edit(file, name, value):
    """Overwrite a number of the header in place."""
    reader = gguf.GGUFReader(file, "r+")
    field = reader.fields[name]
    field.parts[field.data[0]][0] = value


@pytest.fixture(scope="module")
def reference(exported):
    sequences, starts = [], []
    for problem in exported.problems[:3]:
        completion = exported.tokenizer("12 + 5 = 17\n", add_special_tokens=False)["input_ids"]
        sequences.append([*problem.prompt, *completion])
        starts.append(len(problem.prompt))
    return Reference(sequences, starts, log_probabilities(exported.folder, 2_000_000, sequences, starts), [])


@pytest.fixture
def verdict_of(exported, reference):
    def verdict(file, quantization, **changes):
        source = exported.f16 if quantization != "f16" else None
        options = {
            "tokenizer": exported.tokenizer,
            "contract": exported.contract,
            "settings": SETTINGS,
            "max_tokens": 4,
            "problems": exported.problems,
            "reference": reference,
            "source": source,
        }
        return prove(file, quantization, **(options | changes)).verdict

    return verdict


def evidence(verdict):
    return {finding.name: (finding.status, finding.evidence) for finding in verdict.findings}


@pytest.mark.parametrize("name", ["f16", "q4_k_m"])
def test_a_good_file_is_not_refused(exported, verdict_of, name):
    verdict = verdict_of(exported.f16 if name == "f16" else exported.q4, name)
    # A random model answers nothing, which is said; everything else is proved.
    assert (verdict.name, verdict.reasons) == ("released_with_warning", ["accuracy"])
    statuses = {finding.name: finding.status for finding in verdict.findings}
    wanted = {"template", "eos", "bos", "tokens", "log_probabilities"} | ({"tensors"} if name != "f16" else set())
    assert {check for check, status in statuses.items() if status == "ok"} == wanted


@pytest.mark.parametrize("name", ["bf16", "q8_0", "q5_k_m"])
def test_the_other_formats_are_proved_too(exported, verdict_of, tmp_path, name):
    file = tmp_path / f"model-{name}.gguf"
    if name == "bf16":
        convert.convert(exported.folder, file, "bf16")
    else:
        convert.quantize(exported.f16, file, name, threads=1)
    weights = trained_weights(exported.folder, None, file if name == "bf16" else exported.f16)
    verdict = verdict_of(file, name, source=None if name == "bf16" else exported.f16, weights=weights)
    assert (verdict.name, verdict.reasons) == ("released_with_warning", ["accuracy"])
    assert evidence(verdict)["weights"] == ("ok", "20 tensors hold the trained values to the last bit")


def test_another_template(exported, verdict_of, copy_of):
    file = copy_of(exported.f16)
    data = file.read_bytes()
    assert data.count(b"+ message['role']") == 1
    file.write_bytes(data.replace(b"+ message['role']", b"+'user'          "))
    verdict = verdict_of(file, "f16")
    assert (verdict.name, verdict.reasons) == ("refused", ["template_differs"])
    assert "prompt 0 of 6 differs at character 12: training 'system" in evidence(verdict)["template"][1]


def test_a_template_that_does_not_render(exported, verdict_of, copy_of):
    file = copy_of(exported.f16)
    file.write_bytes(file.read_bytes().replace(b"{%- for message in messages -%}", b"{%- for message in messages  %%"))
    assert verdict_of(file, "f16").reasons == ["template_differs"]


def test_a_wrong_end_of_turn(exported, verdict_of, copy_of):
    file = copy_of(exported.f16)
    edit(file, "tokenizer.ggml.eos_token_id", 1)
    verdict = verdict_of(file, "f16")
    assert (verdict.name, verdict.reasons) == ("refused", ["eos_differs"])
    assert evidence(verdict)["eos"][1] == "training ended turns with token 2, the file names 1"


def test_a_beginning_that_training_did_not_have(exported, verdict_of, copy_of):
    file = copy_of(exported.f16)
    edit(file, "tokenizer.ggml.add_bos_token", True)
    verdict = verdict_of(file, "f16")
    assert (verdict.name, verdict.reasons) == ("refused", ["bos_differs"])
    assert "0 BOS, llama.cpp with 1" in evidence(verdict)["bos"][1]


@pytest.fixture(scope="module")
def with_bos(exported, tmp_path_factory):
    """The same model, trained with prompts that begin with a BOS which the template writes."""
    root = tmp_path_factory.mktemp("with-bos")
    folder = shutil.copytree(exported.folder, root / "model")
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    tokenizer.chat_template = "{{ bos_token }}" + tokenizer.chat_template
    tokenizer.save_pretrained(str(folder))
    file = root / "model-f16.gguf"
    convert.convert(folder, file, "f16")
    problems = [
        Problem(p.id, p.question, p.answer, encode_prompt(tokenizer, exported.contract, p.question), False)
        for p in exported.problems
    ]
    assert problems[0].prompt[0] == tokenizer.bos_token_id
    return file, {"tokenizer": tokenizer, "problems": problems, "reference": None}


def test_a_bos_that_training_wrote_is_kept(with_bos, verdict_of):
    file, options = with_bos
    verdict = verdict_of(file, "f16", **options)
    assert verdict.name == "released_with_warning"
    assert evidence(verdict)["bos"] == ("ok", "1 BOS before a prompt in both")


@pytest.mark.parametrize("how", ["the template", "its id", "added twice"])
def test_a_bos_that_was_dropped_or_doubled(with_bos, verdict_of, copy_of, how):
    file, options = with_bos
    file = copy_of(file)
    if how == "the template":
        data = file.read_bytes()
        assert data.count(b"{{ bos_token }}") == 1
        file.write_bytes(data.replace(b"{{ bos_token }}", b"{{ ''        }}"))
    elif how == "its id":
        edit(file, "tokenizer.ggml.bos_token_id", 7)
    else:
        data = file.read_bytes()
        file.write_bytes(data.replace(b"{{ bos_token }}{%- for", b"{{bos_token*2}}{%- for"))
    verdict = verdict_of(file, "f16", **options)
    assert (verdict.name, verdict.reasons) == ("refused", ["bos_differs"])


def test_other_token_ids(exported, verdict_of, copy_of):
    # A space before every text, as the converter's default for SentencePiece has it.
    file = copy_of(exported.f16)
    edit(file, "tokenizer.ggml.add_space_prefix", True)
    verdict = verdict_of(file, "f16")
    assert verdict.name == "refused" and "tokens_differ" in verdict.reasons


def test_weights_of_another_model(exported, reference, verdict_of, tmp_path):
    build_tiny(tmp_path / "other", seed=1)
    other = log_probabilities(tmp_path / "other", 2_000_000, reference.sequences, reference.starts)
    # The file holds the weights of seed 0; suppose that training had ended at those of seed 1.
    swapped = Reference(reference.sequences, reference.starts, other, reference.model)
    verdict = verdict_of(exported.f16, "f16", reference=swapped)
    assert (verdict.name, verdict.reasons) == ("refused", ["not_the_trained_model"])


@pytest.mark.parametrize("keep", [1_000, 1_000_000])
def test_a_truncated_file(exported, verdict_of, copy_of, keep):
    for original, name in ((exported.f16, "f16"), (exported.q4, "q4_k_m")):
        file = copy_of(original)
        file.write_bytes(file.read_bytes()[:keep])
        verdict = verdict_of(file, name)
        assert (verdict.name, verdict.reasons) == ("refused", ["corrupt_file"])
        assert evidence(verdict)["load"][1]


def test_one_damaged_tensor_is_named(exported, verdict_of, copy_of):
    file = copy_of(exported.q4)
    reader = gguf.GGUFReader(file, "r+")
    tensor = next(t for t in reader.tensors if t.name == "blk.1.ffn_down.weight")
    tensor.data[: len(tensor.data) // 4] = 0x11
    reader.data.flush()
    verdict = verdict_of(file, "q4_k_m")
    assert verdict.name == "refused" and "corrupt_file" in verdict.reasons
    assert "1 of 20 tensors" in evidence(verdict)["tensors"][1]
    assert "blk.1.ffn_down.weight" in evidence(verdict)["tensors"][1]


def test_one_damaged_block_is_named(exported, verdict_of, copy_of):
    """256 of 1.8 million weights: the tensor as a whole is off by less than rounding."""
    file = copy_of(exported.q4)
    reader = gguf.GGUFReader(file, "r+")
    tensor = next(t for t in reader.tensors if t.name == "blk.1.ffn_up.weight")
    assert tensor.tensor_type.name == "Q4_K"
    tensor.data[5, : gguf.GGML_QUANT_SIZES[tensor.tensor_type][1]] = 0
    reader.data.flush()
    verdict = verdict_of(file, "q4_k_m")
    assert (verdict.name, verdict.reasons) == ("refused", ["corrupt_file"])
    assert "1 of 20 tensors" in evidence(verdict)["tensors"][1] and "1 in one block" in evidence(verdict)["tensors"][1]


@pytest.mark.parametrize("name", ["blk.1.ffn_up.weight", "output_norm.weight"])
def test_one_damaged_weight_of_a_16_bit_file_is_named(exported, verdict_of, copy_of, name):
    file = copy_of(exported.f16)
    reader = gguf.GGUFReader(file, "r+")
    tensor = next(t for t in reader.tensors if t.name == name)
    tensor.data.reshape(-1)[7] *= 1.01
    reader.data.flush()
    verdict = verdict_of(file, "f16", weights=trained_weights(exported.folder, None, file))
    assert (verdict.name, verdict.reasons) == ("refused", ["corrupt_file"])
    assert evidence(verdict)["tensors"][1] == f"1 of 20 tensors differ from the trained model's: {name}"


def test_a_header_that_cannot_be_read(exported, copy_of):
    file = copy_of(exported.f16)
    file.write_bytes(file.read_bytes()[:1000])
    assert trained_weights(exported.folder, None, file).name == "load"


def test_rounding_errors_are_below_their_bounds(exported):
    errors = {error.name: error for error in compare_tensors(exported.f16, exported.q4)}
    q4 = errors["blk.0.attn_q.weight"]
    assert q4.quantization == "Q4_K" and 0.05 < q4.error < 0.1 and q4.allowed == 0.16
    assert errors["output_norm.weight"].error == 0.0
    assert not any(error.broken for error in errors.values())


def test_a_worse_file_is_refused(exported, verdict_of):
    """The 16-bit model is said to have had all 6 right; the file, of random weights, has none: p = 1/64."""
    problems = [Problem(p.id, p.question, p.answer, p.prompt, model_right=True) for p in exported.problems]
    verdict = verdict_of(exported.f16, "f16", problems=problems)
    assert (verdict.name, verdict.reasons) == ("refused", ["worse_than_model"])
    assert "6 lost and 0 gained, one-sided p 0.0156" in evidence(verdict)["accuracy"][1]


def test_nan_weights(exported, verdict_of, copy_of):
    file = copy_of(exported.f16)
    reader = gguf.GGUFReader(file, "r+")
    tensor = next(t for t in reader.tensors if t.name == "blk.0.attn_q.weight")
    tensor.data[0, 0] = np.float16(np.nan)
    reader.data.flush()
    verdict = verdict_of(file, "f16")
    assert (verdict.name, verdict.reasons) == ("refused", ["corrupt_file"])
