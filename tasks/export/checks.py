"""Run the release test on one GGUF file: gather what `proof.py` compares."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from llama_cpp.llama_chat_format import Jinja2ChatFormatter

from pipeline_config.contract import ContractConfig
from pipeline_config.export import ExportConfig
from tasks.contract.grading import grade
from tasks.contract.prompts import messages, render_prompt, turn_end_id
from tasks.errors import ModelError
from tasks.export import proof
from tasks.export.llama import LlamaFile
from tasks.export.tensors import compare_tensors
from tasks.export.weights import compare_weights
from tasks.findings import Finding

Progress = Callable[[float, float, str], None]


@dataclass(frozen=True)
class Problem:
    """A held-out problem and the 16-bit model's greedy answer to it, if the evaluation asked."""

    id: str
    question: str
    answer: str
    prompt: list[int]
    """Token ids of the prompt as training and evaluation use them."""
    model_right: bool | None = None
    model_completion: str | None = None


@dataclass(frozen=True)
class Reference:
    """Log-probabilities of the trained 16-bit model, and of the one that training began from, on the same tokens."""

    sequences: list[list[int]]
    starts: list[int]
    model: list[list[float]]
    before_training: list[list[float]]


@dataclass(frozen=True)
class Answer:
    """One answer of a file."""

    id: str
    question: str
    answer: str
    completion: str
    right: bool
    truncated: bool
    model_right: bool | None


@dataclass(frozen=True)
class Proof:
    """What the release test found about a file, and its answers."""

    verdict: proof.Verdict
    answers: list[Answer]


def prove(
    file: Path,
    quantization: str,
    *,
    tokenizer: Any,
    contract: ContractConfig,
    settings: ExportConfig,
    max_tokens: int,
    problems: Sequence[Problem],
    reference: Reference | None,
    source: Path | None,
    weights: Finding | None = None,
    progress: Progress = lambda done, total, label: None,
) -> Proof:
    """Test one file.

    Args:
        file: the GGUF file.
        quantization: its format, which names tolerances.
        tokenizer: training's, with the trained chat template.
        max_tokens: longest completion.
        problems: asked through llama.cpp; the first `settings.parity_problems` also check text and ids.
        reference: None skips the log-probabilities.
        source: the 16-bit file that this one was quantized from; None skips the comparison of tensors.
        weights: what `trained_weights` found about the 16-bit file: this one, or the one it was quantized from.
        progress: called with (done, total, label).
    """
    label = f"proving {file.name}"
    longest = max((len(problem.prompt) for problem in problems), default=0) + max_tokens
    if reference:
        longest = max(longest, *(len(ids) for ids in reference.sequences))
    n_ctx = -(-(longest + 8) // 64) * 64
    try:
        findings = ([weights] if weights else []) + _tensors(source, file, progress, label)
        with LlamaFile(file, n_ctx=n_ctx, parallel=settings.parallel, threads=settings.threads) as llama:
            findings = check_questions(llama, tokenizer, contract, problems[: settings.parity_problems]) + findings
            if reference:
                # One finding for a 16-bit file, two for a quantized one.
                shown = {finding.name for finding in findings if finding.status == "ok"}
                proven = "weights" in shown and (source is None or "tensors" in shown)
                findings.append(_log_probabilities(llama, quantization, reference, proven))
            if any(finding.status == "fail" for finding in findings):
                # Asking problems with the wrong prompt or the wrong weights would only cost time.
                return Proof(proof.decide(findings), [])
            answers = _ask(llama, tokenizer, contract, problems, max_tokens, progress, label)
    except ModelError as error:
        if error.cause != "corrupt_file":
            raise
        return Proof(proof.decide([Finding("load", "fail", error.message, error.fix)]), [])
    paired = [answer for answer in answers if answer.model_right is not None]
    findings.append(
        proof.check_accuracy(
            [bool(answer.model_right) for answer in paired],
            [answer.right for answer in paired],
            settings.alpha,
            settings.margin,
        )
    )
    return Proof(proof.decide(findings), answers)


def special_tokens(tokenizer: Any) -> proof.SpecialTokens:
    """BOS and EOS of a transformers tokenizer.

    Prompts are tokenized without added tokens, so a BOS is there only if the chat template writes it.
    """
    return proof.SpecialTokens(tokenizer.bos_token_id, turn_end_id(tokenizer), adds_bos=False)


def trained_weights(
    folder: Path, before: Path | None, file: Path, progress: Progress = lambda done, total, label: None
) -> Finding:
    """Whether a 16-bit file holds the weights of the trained model's folder.

    Args:
        folder: merged weights of the trained model.
        before: those that training began from, if at hand.
    """
    label = f"proving {file.name}: weights"
    try:
        return proof.check_weights(
            compare_weights(folder, file, before, lambda done, total: progress(done, total, label))
        )
    except _UNREADABLE as error:
        return Finding("load", "fail", f"the file's header or tensors cannot be read: {error}", "export again")


_UNREADABLE = (ValueError, OSError, IndexError, KeyError, struct.error)


def _tensors(source: Path | None, file: Path, progress: Progress, label: str) -> list[Finding]:
    if source is None:
        return []
    try:
        errors = compare_tensors(source, file, lambda done, total: progress(done, total, f"{label}: tensors"))
    except _UNREADABLE as error:
        raise ModelError(
            f"the file's header or tensors cannot be read: {error}",
            where=str(file),
            fix="export again",
            cause="corrupt_file",
        ) from error
    return [proof.check_tensors(errors)]


def check_questions(
    llama: LlamaFile, tokenizer: Any, contract: ContractConfig, problems: Sequence[Problem]
) -> list[Finding]:
    """Template, EOS, BOS and token ids: the file is asked the question that training asked."""
    training = special_tokens(tokenizer)
    bos, eos = llama.special_ids()
    file = proof.SpecialTokens(bos if bos >= 0 else None, eos if eos >= 0 else None, llama.adds_bos())
    bos_text, eos_text = llama.piece(bos), llama.piece(eos)
    template = llama.chat_template()
    expected = [render_prompt(tokenizer, contract, problem.question) for problem in problems]
    rendered: list[str] = []
    try:
        formatter = Jinja2ChatFormatter(template, eos_token=eos_text, bos_token=bos_text)
        rendered = [formatter(messages=messages(contract, problem.question)).prompt for problem in problems]
        # A BOS too many or too few has its own name here too.
        training_bos = str(tokenizer.bos_token or "")
        template_finding = proof.check_template(
            [_without(text, training_bos) for text in expected], [_without(text, bos_text) for text in rendered]
        )
    except (TemplateError, ValueError, TypeError) as error:
        template_finding = Finding(
            "template", "fail", f"the file's chat template does not render: {error}", "export again"
        )
    labels = [f"the prompt of problem {problem.id}" for problem in problems] + [
        f"the tag {tag}" for tag in contract.tags
    ]
    training_ids = [problem.prompt for problem in problems]
    tags = [[int(i) for i in tokenizer(tag, add_special_tokens=False)["input_ids"]] for tag in contract.tags]
    file_tags = [llama.tokenize(tag) for tag in contract.tags]
    findings = [template_finding, proof.check_eos(training, file, llama.is_end(training.eos or 0))]
    if problems:
        # As a server would feed it: the file's own template, and what llama.cpp adds by itself.
        own = rendered[0] if rendered else expected[0]
        served = llama.tokenize(proof.served_text(own, bos_text, file.adds_bos), add_special=True)
        findings.append(proof.check_bos(training, file, training_ids[0], served))
    # A BOS too many or too few has its own name, so the ids are compared without it.
    plain = [llama.tokenize(text) for text in expected]
    findings.append(proof.check_tokens(labels, [*training_ids, *tags], [*plain, *file_tags]))
    return findings


def _without(text: str, bos: str) -> str:
    """The text without the BOS that it begins with, however often."""
    while bos and text.startswith(bos):
        text = text.removeprefix(bos)
    return text


def _log_probabilities(llama: LlamaFile, quantization: str, reference: Reference, proven: bool) -> Finding:
    found = [
        [float(value) for value in llama.log_probabilities(ids, start)]
        for ids, start in zip(reference.sequences, reference.starts, strict=True)
    ]
    return proof.check_log_probabilities(
        quantization, reference.model, found, reference.before_training, holds_the_weights=proven
    )


def _ask(
    llama: LlamaFile,
    tokenizer: Any,
    contract: ContractConfig,
    problems: Sequence[Problem],
    max_tokens: int,
    progress: Progress,
    label: str,
) -> list[Answer]:
    prompts = [problem.prompt for problem in problems]
    completions = llama.complete(prompts, max_tokens, lambda done: progress(done, len(prompts), f"{label}: problems"))
    answers = []
    for problem, completion in zip(problems, completions, strict=True):
        text = tokenizer.decode(completion.ids, skip_special_tokens=True)
        mark = grade(text, problem.answer, contract, truncated=completion.truncated)
        answers.append(
            Answer(
                problem.id,
                problem.question,
                problem.answer,
                text,
                mark.right,
                completion.truncated,
                problem.model_right,
            )
        )
    return answers
