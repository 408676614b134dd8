"""The release test on hand-made numbers."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.export import proof
from tasks.export.proof import SpecialTokens, check_accuracy
from tasks.export.tensors import TensorError
from tasks.findings import Finding

TRAINING = SpecialTokens(bos=1, eos=2, adds_bos=False)


def answers(both: int, lost: int, gained: int, neither: int) -> tuple[list[bool], list[bool]]:
    model = [True] * both + [True] * lost + [False] * gained + [False] * neither
    file = [True] * both + [False] * lost + [True] * gained + [False] * neither
    return model, file


@pytest.mark.parametrize(
    ("counts", "status", "why"),
    [
        # p = 1, and a loss of at most z^2 / (n + z^2) = 2.706 / 66.706 = 4.06 %
        ((40, 0, 0, 24), "ok", "at most 4.1%"),
        # 4 lost, 0 gained: p = 1/16 = 0.0625 is not below 0.05, but 6.3 % or more may be lost
        ((40, 4, 0, 20), "warn", "cannot be ruled out on 64 problems"),
        # 5 lost, 0 gained: p = 1/32 and a loss of 5/64 = 7.8 % > 5 %
        ((40, 5, 0, 19), "fail", "one-sided p 0.0312"),
        # significant, but 9 of 1000 is less than the margin: p = 1/512
        ((500, 9, 0, 491), "warn", "measurably worse"),
        # many differ, evenly: p = P(X >= 20 of 40) = 0.563
        ((460, 20, 20, 500), "ok", "one-sided p 0.563"),
        # 20 items cannot rule out 5 %
        ((20, 0, 0, 0), "warn", "cannot be ruled out on 20 problems"),
        ((0, 0, 0, 64), "warn", "says nothing"),
        ((30, 0, 10, 24), "ok", "0 lost and 10 gained"),
    ],
)
def test_accuracy(counts, status, why):
    finding = check_accuracy(*answers(*counts), alpha=0.05, margin=0.05)
    assert finding.status == status
    assert why in finding.evidence


def test_accuracy_without_pairs():
    assert check_accuracy([], [], 0.05, 0.05).status == "not_measured"
    with pytest.raises(ValueError, match="not paired"):
        check_accuracy([True], [], 0.05, 0.05)


@given(st.integers(1, 60), st.floats(0.01, 0.2))
def test_no_worse_file_is_refused_more_often_than_alpha(differing, alpha):
    """Exact size: over all ways that equally good models can differ, P(p < alpha) < alpha."""
    refused = sum(
        math.comb(differing, lost) / 2**differing
        for lost in range(differing + 1)
        if check_accuracy(*answers(0, lost, differing - lost, 0), alpha=alpha, margin=1e-9).status == "fail"
    )
    assert refused < alpha


def test_template_names_the_place():
    assert proof.check_template(["a", "b"], ["a", "b"]).status == "ok"
    finding = proof.check_template(["same", "user\nx<tag>"], ["same", "user\nx"])
    assert finding.status == "fail"
    assert "prompt 1 of 2 differs at character 6: training '<tag>', the file ''" in finding.evidence


def test_eos():
    assert proof.check_eos(TRAINING, SpecialTokens(1, 2, False), stops_at_training_eos=True).status == "ok"
    assert proof.check_eos(TRAINING, SpecialTokens(1, 0, False), stops_at_training_eos=True).status == "fail"
    assert proof.check_eos(TRAINING, SpecialTokens(1, 2, False), stops_at_training_eos=False).status == "fail"


@pytest.mark.parametrize(
    ("training", "file", "ids", "served", "status"),
    [
        (TRAINING, SpecialTokens(1, 2, False), [5, 6], [5, 6], "ok"),
        (TRAINING, SpecialTokens(1, 2, False), [1, 5], [1, 5], "ok"),
        (TRAINING, SpecialTokens(1, 2, True), [5, 6], [1, 5, 6], "fail"),  # one too many
        (TRAINING, SpecialTokens(1, 2, False), [1, 5], [5], "fail"),  # dropped
        (TRAINING, SpecialTokens(1, 2, True), [1, 5], [1, 1, 5], "fail"),  # doubled
        (TRAINING, SpecialTokens(7, 2, False), [5], [5], "fail"),  # another token
        (SpecialTokens(None, 2, False), SpecialTokens(0, 2, False), [5], [5], "ok"),  # unknown to training, unused
        (SpecialTokens(None, 2, False), SpecialTokens(0, 2, True), [5], [0, 5], "fail"),
    ],
)
def test_bos(training, file, ids, served, status):
    assert proof.check_bos(training, file, ids, served).status == status


def test_tokens():
    assert proof.check_tokens(["a"], [[1, 2]], [[1, 2]]).status == "ok"
    finding = proof.check_tokens(["a", "b"], [[1, 2], [3, 4, 5]], [[1, 2], [3, 9]])
    assert finding.status == "fail"
    assert "1 of 2 texts differ; the first, b, at token 1: training [4, 5], llama.cpp [9]" in finding.evidence


def test_tensors():
    good = TensorError("blk.0.attn_q.weight", "Q4_K", 0.075, 0.16)
    bad = TensorError("blk.1.ffn_up.weight", "Q4_K", 0.9, 0.16)
    assert proof.check_tensors([good]).status == "ok"
    assert "1 of 2 tensors" in proof.check_tensors([good, bad]).evidence
    assert "blk.1.ffn_up.weight" in proof.check_tensors([good, bad]).evidence
    assert TensorError("x", "Q4_K", math.nan, 0.16).broken and TensorError("x", "missing", math.inf, 0.2).broken
    assert proof.check_tensors([]).status == "not_measured"


def test_log_probabilities():
    model = [[-0.1, -0.2], [-0.3]]
    near = [[-0.11, -0.2], [-0.3]]  # mean distance 0.01 / 3
    assert proof.check_log_probabilities("f16", model, near).status == "ok"
    assert proof.check_log_probabilities("f16", model, [[-0.6, -0.2], [-0.3]]).status == "fail"  # 0.5 / 3 > 0.1
    assert proof.check_log_probabilities("q4_k_m", model, [[-0.6, -0.2], [-0.3]]).status == "ok"
    assert proof.check_log_probabilities("f16", model, [[math.nan, -0.2], [-0.3]]).status == "fail"
    assert proof.check_log_probabilities("f16", [], []).status == "not_measured"
    # Within the tolerance of a coarse format, yet where training began: e / u = 0.95, 1, 1
    before = [[-0.3, -0.4], [-0.5]]
    assert proof.check_log_probabilities("q4_k_m", model, [[-0.29, -0.4], [-0.5]], before).status == "fail"
    assert proof.check_log_probabilities("q4_k_m", model, near, before).status == "ok"
    assert proof.check_log_probabilities("f16", model, model, model).status == "ok"  # training changed nothing
    # The same log-probabilities where the tensors have shown that these are the trained weights: rounding did it.
    back = proof.check_log_probabilities("q4_k_m", model, [[-0.29, -0.4], [-0.5]], before, holds_the_weights=True)
    assert back.status == "warn" and "rounding undoes" in back.evidence
    far = [[-3.0, -3.0], [-3.0]]
    assert proof.check_log_probabilities("q4_k_m", model, far, before, holds_the_weights=True).status == "fail"
    # Training moved each token by 0.02, rounding by +-0.2: nothing can be said, so nothing is held against the file
    model, before = [[-1.0] * 4], [[-1.02] * 4]
    assert proof.check_log_probabilities("q4_k_m", model, [[-1.2, -1.2, -1.2, -0.8]], before).status == "ok"


def test_decide():
    ok, warn = Finding("template", "ok", ""), Finding("accuracy", "warn", "")
    assert proof.decide([ok]).name == "released"
    verdict = proof.decide([ok, warn])
    assert (verdict.name, verdict.reasons) == ("released_with_warning", ["accuracy"])
    verdict = proof.decide(
        [Finding("load", "fail", ""), warn, Finding("tensors", "fail", ""), Finding("bos", "fail", "")]
    )
    assert (verdict.name, verdict.reasons) == ("refused", ["corrupt_file", "bos_differs"])


def test_served_text_drops_a_written_bos_only_when_one_is_added():
    assert proof.served_text("<s>x", "<s>", adds_bos=True) == "x"
    assert proof.served_text("<s>x", "<s>", adds_bos=False) == "<s>x"
    assert proof.served_text("x", "", adds_bos=True) == "x"
