"""The release test of a GGUF file: pure comparisons of what training uses with what the file holds and does.

Each check returns a Finding; a failed one refuses the file for a reason with a name (`REASONS`). Three things are
proved in turn: the file asks the same question (template, BOS, EOS, token ids), it holds the same weights (those of the
16-bit file to the last bit, those of a quantized one but for rounding, and the same log-probabilities), and it answers as
well (the same problems, paired).

The accuracy test. On n problems answered by both, `lost` were right only by the 16-bit model and `gained` only by the
file. The file is *significantly worse* when an exact one-sided McNemar test has p < alpha. It is refused when it is
significantly worse and has lost more than `margin`; released with a warning when it is significantly worse by less, or
when the upper end of the one-sided 1 - alpha score interval of the loss exceeds `margin`, so that such a loss cannot be
ruled out; otherwise released. A file that is no worse is thus refused with probability below alpha.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

from tasks.export.tensors import TensorError
from tasks.export.weights import WeightsMatch
from tasks.findings import Finding
from tasks.log_probabilities import mean_distance, way_back
from tasks.statistics import mcnemar_worse, paired_loss_interval

REASONS = {
    "load": "corrupt_file",
    "template": "template_differs",
    "eos": "eos_differs",
    "bos": "bos_differs",
    "tokens": "tokens_differ",
    "weights": "not_the_trained_model",
    "tensors": "corrupt_file",
    "log_probabilities": "not_the_trained_model",
    "accuracy": "worse_than_model",
}
"""Name of a check -> the reason for which its failure refuses a file."""

TOLERANCE = {"f16": 0.1, "bf16": 0.1, "q8_0": 0.2, "q5_k_m": 0.75, "q4_k_m": 1.0}
"""Largest mean distance of log-probabilities from the 16-bit model's, in nats per token.

SmolLM2-135M, measured: 0.001, 0.005, 0.034, 0.18 and 0.13. Room is left for a reference computed in bfloat16; a quantized
file is held to its 16-bit file much more tightly by the comparison of tensors.
"""

LOST = 0.5
"""Share of the way back to the model before training from which a file is suspect; 1 means that it is that model."""

_OTHER_MODEL = "export the merged weights of the trained model"
_EXPORT_AGAIN = "export again from the trained model's folder; do not edit the file's metadata"


@dataclass(frozen=True)
class SpecialTokens:
    """What ends a turn and what begins a prompt; None where there is no such token."""

    bos: int | None
    eos: int | None
    adds_bos: bool
    """Whether a BOS comes before every prompt without being written in its text."""


@dataclass(frozen=True)
class Verdict:
    """What becomes of a file, and why."""

    name: Literal["released", "released_with_warning", "refused"]
    reasons: list[str]
    findings: list[Finding]


def check_template(training: Sequence[str], file: Sequence[str]) -> Finding:
    """The file's own chat template renders every prompt as training did."""
    for i, (expected, found) in enumerate(zip(training, file, strict=True)):
        if expected != found:
            return Finding(
                "template",
                "fail",
                f"prompt {i} of {len(training)} {_first_difference(expected, found)}",
                "save the tokenizer with the trained chat template before the export",
            )
    return Finding("template", "ok", f"{len(training)} prompts render the same")


def check_eos(training: SpecialTokens, file: SpecialTokens, stops_at_training_eos: bool) -> Finding:
    """The file ends a turn at the token that ended every turn in training."""
    if training.eos != file.eos or not stops_at_training_eos:
        return Finding(
            "eos", "fail", f"training ended turns with token {training.eos}, the file names {file.eos}", _EXPORT_AGAIN
        )
    return Finding("eos", "ok", f"token {training.eos} ends a turn in both")


def check_bos(
    training: SpecialTokens, file: SpecialTokens, training_ids: Sequence[int], file_ids: Sequence[int]
) -> Finding:
    """Both begin a prompt with the same BOS, or both with none.

    Args:
        training_ids: ids of a prompt as training used them.
        file_ids: ids of the same prompt as a llama.cpp server would feed them.
    """
    if training.bos is not None and training.bos != file.bos:
        return Finding("bos", "fail", f"training knows token {training.bos} as BOS, the file {file.bos}", _EXPORT_AGAIN)
    ids = {token for token in (training.bos, file.bos) if token is not None}
    expected, found = _leading(training_ids, ids), _leading(file_ids, ids)
    if expected != found:
        return Finding(
            "bos",
            "fail",
            f"training began prompts with {expected} BOS, llama.cpp with {found}",
            "set add_bos_token in the tokenizer as in training, and export again",
        )
    return Finding("bos", "ok", f"{expected} BOS before a prompt in both")


def check_tokens(labels: Sequence[str], training: Sequence[Sequence[int]], file: Sequence[Sequence[int]]) -> Finding:
    """llama.cpp cuts the same texts into the same token ids as the training tokenizer."""
    different = [i for i, (a, b) in enumerate(zip(training, file, strict=True)) if list(a) != list(b)]
    if not different:
        count = sum(len(ids) for ids in training)
        return Finding("tokens", "ok", f"{len(training)} texts of {count} tokens have the same ids")
    i = different[0]
    a, b = training[i], file[i]
    at = next((j for j, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return Finding(
        "tokens",
        "fail",
        f"{len(different)} of {len(training)} texts differ; the first, {labels[i]}, at token {at}: training "
        f"{list(a[at : at + 4])}, llama.cpp {list(b[at : at + 4])}",
        "use a tokenizer that llama.cpp implements (a published model's, or SentencePiece)",
    )


def check_tensors(errors: Sequence[TensorError]) -> Finding:
    """Every tensor of a quantized file is its source but for rounding."""
    broken = sorted((e for e in errors if e.broken), key=lambda e: (-e.error, e.name))
    if broken:
        worst = broken[0]
        return Finding(
            "tensors",
            "fail",
            f"{len(broken)} of {len(errors)} tensors differ from the 16-bit file; {worst.name} ({worst.quantization}) "
            f"by {worst.error:.3g} of its size ({worst.block:.3g} in one block), rounding explains {worst.allowed:.3g}",
            "export again; the file was damaged after it was written",
        )
    if not errors:
        return Finding("tensors", "not_measured", "no 16-bit file to compare with")
    worst = max(errors, key=lambda e: e.error / e.allowed)
    return Finding("tensors", "ok", f"{len(errors)} tensors; largest relative error {worst.error:.3g} ({worst.name})")


def check_weights(match: WeightsMatch) -> Finding:
    """The 16-bit file holds every value of the trained model's tensors.

    A failed finding is called `weights` when the file is another model (most tensors differ, or the differing ones are those
    of the model before training), and `tensors` when a few are damaged.
    """
    if match.compared <= len(match.missing):
        return Finding("weights", "not_measured", f"how {match.architecture} weights are written is not known here")
    evidence = f"{len(match.different)} of {match.compared} tensors differ from the trained model's"
    if not match.different:
        more = f"; {len(match.missing)} have no counterpart" if match.missing else ""
        return Finding("weights", "ok", f"{match.compared} tensors hold the trained values to the last bit{more}")
    first = ", ".join(match.different[:3])
    if match.before and 2 * len(match.before) > len(match.different):
        return Finding("weights", "fail", f"{evidence}; {len(match.before)} are those of before training", _OTHER_MODEL)
    if 2 * len(match.different) > match.compared:
        return Finding("weights", "fail", evidence, _OTHER_MODEL)
    return Finding("tensors", "fail", f"{evidence}: {first}", "export again; the file was damaged after it was written")


def check_log_probabilities(
    quantization: str,
    model: Sequence[Sequence[float]],
    file: Sequence[Sequence[float]],
    other: Sequence[Sequence[float]] = (),
    *,
    holds_the_weights: bool = False,
) -> Finding:
    """The file gives the same completions the same log-probabilities as the trained model.

    Args:
        quantization: names the tolerance (`TOLERANCE`).
        model: per completion, per token, of the trained 16-bit model.
        file: the same of the file.
        other: the same of the model that training started from, if known: the file must not lie where training began.
        holds_the_weights: the tensors have shown that these are the trained weights, rounded. Lying near the start is then what
            rounding did, not another model: GRPO sharpens what the model samples, rounding blurs it, so after a short
            training both are of one size (seen on an H200: 60 steps, q4_k_m, 1.49 +- 0.25 of the way back). Whether
            it costs right answers is for the accuracy test to say.
    """
    if not model:
        return Finding("log_probabilities", "not_measured", "no reference log-probabilities")
    distance = mean_distance(model, file)
    tolerance = TOLERANCE[quantization]
    evidence = (
        f"mean distance {distance:.4f} nats a token on {sum(len(row) for row in model)} tokens, tolerance {tolerance}"
    )
    failed = not distance <= tolerance
    back = way_back(model, other, file) if other else None
    if back:
        share, error = back
        evidence += f"; {share:.2f} +- {error:.2f} of the way back to the model before training"
        failed = failed or (not holds_the_weights and share > max(LOST, 3 * error))
    if failed:
        return Finding("log_probabilities", "fail", evidence, _OTHER_MODEL)
    if back and back[0] - 2 * back[1] > LOST:
        return Finding(
            "log_probabilities",
            "warn",
            f"{evidence}: rounding undoes most of what training changed here, for training changed little",
            "trust the accuracy test, on more problems (export.proof_problems), or use a format with more bits",
        )
    return Finding("log_probabilities", "ok", evidence)


def check_accuracy(model: Sequence[bool], file: Sequence[bool], alpha: float, margin: float) -> Finding:
    """The file answers the same problems as well as the 16-bit model (see the module's text for the test)."""
    n = len(model)
    if n != len(file):
        raise ValueError(f"{n} answers of the model and {len(file)} of the file are not paired")
    if n == 0:
        return Finding(
            "accuracy", "not_measured", "no problems answered by both", "run the evaluation before the export"
        )
    lost = sum(a and not b for a, b in zip(model, file, strict=True))
    gained = sum(b and not a for a, b in zip(model, file, strict=True))
    loss = (lost - gained) / n
    p = mcnemar_worse(gained, lost)
    upper = paired_loss_interval(gained, lost, n, NormalDist().inv_cdf(1 - alpha))[1]
    evidence = (
        f"{sum(file)} of {n} right, the 16-bit model {sum(model)}; {lost} lost and {gained} gained, "
        f"one-sided p {p:.3g}, loss {loss:.1%}, at most {upper:.1%}"
    )
    if p < alpha and loss > margin:
        return Finding(
            "accuracy", "fail", evidence, f"use a format with more bits, or accept more than {margin:.1%} of loss"
        )
    if p < alpha:
        return Finding("accuracy", "warn", f"{evidence}: measurably worse, by less than {margin:.1%}")
    if not any(model) and not any(file):
        return Finding("accuracy", "warn", f"{evidence}: neither answers any problem, so this says nothing")
    if upper > margin:
        fix = "raise export.proof_problems"
        return Finding(
            "accuracy", "warn", f"{evidence}: a loss of {margin:.1%} cannot be ruled out on {n} problems", fix
        )
    return Finding("accuracy", "ok", evidence)


def decide(findings: Sequence[Finding]) -> Verdict:
    """Released, released with a warning (something warned or was not measured), or refused with its reasons by name."""
    failed = [finding for finding in findings if finding.status == "fail"]
    if failed:
        reasons = list(dict.fromkeys(REASONS[finding.name] for finding in failed))
        return Verdict("refused", reasons, list(findings))
    weak = [finding.name for finding in findings if finding.status != "ok"]
    if weak:
        return Verdict("released_with_warning", weak, list(findings))
    return Verdict("released", [], list(findings))


def served_text(rendered: str, bos_text: str, adds_bos: bool) -> str:
    """What a llama.cpp server tokenizes: it drops a written BOS when it is going to add one itself."""
    return rendered.removeprefix(bos_text) if adds_bos and bos_text else rendered


def _leading(ids: Sequence[int], tokens: set[int]) -> int:
    count = 0
    for token in ids:
        if token not in tokens:
            break
        count += 1
    return count


def _first_difference(expected: str, found: str) -> str:
    at = next(
        (i for i, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b), min(len(expected), len(found))
    )
    return f"differs at character {at}: training {expected[at : at + 40]!r}, the file {found[at : at + 40]!r}"
