"""A 16-bit file against the folder it was made from, on real files of a tiny model."""

import shutil

import pytest
from safetensors.torch import load_file, save_file

from tasks.export import convert
from tasks.export.proof import check_weights
from tasks.export.weights import WeightsMatch, compare_weights


def changed(folder, target, change):
    """A copy of a model folder with changed tensors."""
    shutil.copytree(folder, target)
    tensors = load_file(target / "model.safetensors")
    change(tensors)
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    return target


@pytest.mark.parametrize(("dtype", "outtype"), [("float16", "bf16"), ("float32", "f16"), ("float32", "bf16")])
def test_every_value_is_found_whatever_the_types(exported, tmp_path, dtype, outtype):
    import torch

    kind = getattr(torch, dtype)
    folder = changed(exported.folder, tmp_path / "m", lambda t: t.update({name: v.to(kind) for name, v in t.items()}))
    file = tmp_path / "m.gguf"
    convert.convert(folder, file, outtype)
    match = compare_weights(folder, file)
    assert (match.architecture, match.compared, match.different, match.missing) == ("llama", 20, [], [])


def test_one_changed_value_is_found(exported, tmp_path):
    def change(tensors):
        tensors["model.layers.1.mlp.up_proj.weight"][3, 5] += 1

    match = compare_weights(changed(exported.folder, tmp_path / "m", change), exported.f16)
    assert match.different == ["blk.1.ffn_up.weight"]
    finding = check_weights(match)
    assert (finding.name, finding.status) == ("tensors", "fail") and "blk.1.ffn_up.weight" in finding.evidence


def test_weights_of_before_training_are_told_from_damage(exported, tmp_path):
    """Training changed one projection only; a file of before differs in as little as a damaged one would."""

    def change(tensors):
        tensors["model.layers.1.self_attn.q_proj.weight"] *= 1.02

    trained = changed(exported.folder, tmp_path / "m", change)
    match = compare_weights(trained, exported.f16, before=exported.folder)
    assert match.different == match.before == ["blk.1.attn_q.weight"]
    assert (check_weights(match).name, check_weights(match).status) == ("weights", "fail")
    assert check_weights(compare_weights(trained, exported.f16)).name == "tensors"


def test_what_the_finding_says():
    names = [f"blk.{i}" for i in range(20)]
    assert check_weights(WeightsMatch("llama", 20, [], [], [])).status == "ok"
    other = check_weights(WeightsMatch("llama", 20, names[:11], [], []))
    assert (other.name, other.evidence) == ("weights", "11 of 20 tensors differ from the trained model's")
    assert check_weights(WeightsMatch("llama", 20, names[:9], [], [])).name == "tensors"
    assert check_weights(WeightsMatch("mamba", 0, [], [], [])).status == "not_measured"
    # Experts that the converter stacks have no counterpart: too little was compared to say anything.
    assert check_weights(WeightsMatch("llama", 5, [], [], names)).status == "not_measured"
