"""Export stage: merged 16-bit weights -> GGUF files, each proved through llama.cpp before it is released.

Runs in the stage process. Reads `model/` of the trained model's artifact, `eval.parquet` of the dataset and the greedy
answers of the evaluation. Output: one GGUF per format, Modelfile, contract.json, proof.json, samples.jsonl.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tasks.chat.choose import CONTRACT_FILE, SMALLEST_FIRST, contract_data
from tasks.contract.prompts import encode_prompt
from tasks.errors import ExportRefused, ModelError
from tasks.export import checks, convert
from tasks.export.modelfile import modelfile
from tasks.process.context import StageContext, StageResult
from tasks.process.jsonio import read_rows
from tasks.statistics import wilson
from tasks.training.loading import load_tokenizer

NAME = "model"


def run(ctx: StageContext) -> StageResult:
    """Write, prove and describe the GGUF files.

    Raises:
        ModelError: the model cannot be converted.
        StoreError: too little disk.
        ExportRefused: a file failed its proof and `export.on_refused` is "fail".
    """
    config, settings = ctx.config, ctx.config.export
    trained, before = model_folders(ctx)
    convert.check_folder(trained)
    parameters = convert.count_parameters(trained)
    convert.check_disk(ctx.out, convert.estimate_bytes(parameters, settings.formats))
    tokenizer = load_tokenizer(trained, config)
    problems = read_problems(ctx, tokenizer)
    max_tokens = settings.max_tokens or config.evaluation.max_new_tokens or config.grpo.max_completion_length
    ctx.log(f"exporting {parameters / 1e6:.0f} M parameters as {', '.join(settings.formats)}")
    files = write_files(ctx, trained)
    wide = {name: files[name] for name in ("f16", "bf16") if name in files}
    weights = {name: checks.trained_weights(trained, before, file, ctx.progress) for name, file in wide.items()}
    source = next(iter(wide))
    reference = make_reference(ctx, trained, before, parameters, tokenizer, problems)
    proofs: dict[str, checks.Proof] = {}
    for name in settings.formats:
        began = time.monotonic()
        proofs[name] = checks.prove(
            files[name],
            name,
            tokenizer=tokenizer,
            contract=config.contract,
            settings=settings,
            max_tokens=max_tokens,
            problems=_against_source(problems, proofs),
            reference=reference,
            source=None if name in wide else wide[source],
            weights=weights[name if name in wide else source],
            progress=ctx.progress,
        )
        _tell(ctx, files[name], proofs[name], time.monotonic() - began)
    _remove_intermediate(files, settings.formats)
    notes = write_outputs(ctx, tokenizer, files, proofs)
    metrics = {name: measure(files[name], proofs[name]) for name in settings.formats}
    refused = [name for name in settings.formats if proofs[name].verdict.name == "refused"]
    if refused and settings.on_refused == "fail":
        raise _refusal(refused, proofs)
    effective = {
        "max_tokens": max_tokens,
        "problems": len(problems),
        "reference_completions": len(reference.starts) if reference else 0,
    }
    return StageResult(metrics=metrics, effective_config=effective, notes=notes)


def model_folders(ctx: StageContext) -> tuple[Path, Path | None]:
    """(the trained model's folder, the one that training began from if it is at hand)."""
    stages = [name for name in ("grpo", "sft") if name in ctx.inputs]
    if not stages:
        raise ModelError(
            "the export got no trained model", fix="run the stages sft and grpo first", cause="incomplete_model"
        )
    folders = [ctx.inputs[name] / "model" for name in stages]
    return folders[0], folders[1] if len(folders) > 1 else None


def read_problems(ctx: StageContext, tokenizer: Any) -> list[checks.Problem]:
    """The held-out problems to ask, those first that the evaluation asked the 16-bit model."""
    settings = ctx.config.export
    rows = pq.read_table(ctx.inputs["dataset"] / "eval.parquet", columns=["id", "question", "answer"]).to_pylist()
    evaluated = {str(row["id"]): row for row in _evaluation_rows(ctx)}
    rows.sort(key=lambda row: str(row["id"]) not in evaluated)  # stable: the data set's order otherwise
    problems = []
    for row in rows[: max(settings.proof_problems, settings.parity_problems)]:
        seen = evaluated.get(str(row["id"]), {})
        prompt = encode_prompt(tokenizer, ctx.config.contract, row["question"])
        problems.append(
            checks.Problem(
                str(row["id"]), row["question"], str(row["answer"]), prompt, seen.get("right"), seen.get("completion")
            )
        )
    return problems[: settings.proof_problems]


def write_files(ctx: StageContext, trained: Path) -> dict[str, Path]:
    """Format -> GGUF file, with a 16-bit file to quantize from even when none is wanted."""
    settings = ctx.config.export
    wanted: list[str] = [name for name in settings.formats if name in convert.FROM_CONVERTER]
    quantized = [name for name in settings.formats if name not in convert.FROM_CONVERTER]
    if not wanted:
        wanted.append("f16")
    files = {name: ctx.out / f"{NAME}-{name}.gguf" for name in [*wanted, *quantized]}
    for done, (name, file) in enumerate(files.items()):
        ctx.progress(done, len(files), f"writing {file.name}")
        began = time.monotonic()
        if name in convert.FROM_CONVERTER:
            convert.convert(trained, file, name, f"{Path(ctx.config.model.source).name}-{trained.parent.name}")
        else:
            convert.quantize(files["f16" if "f16" in files else "bf16"], file, name, settings.threads)
        ctx.log(f"{file.name}: {file.stat().st_size / 1e6:.1f} MB in {time.monotonic() - began:.1f} s")
    ctx.progress(len(files), len(files), "files written")
    return files


def make_reference(
    ctx: StageContext,
    trained: Path,
    before: Path | None,
    parameters: int,
    tokenizer: Any,
    problems: Sequence[checks.Problem],
) -> checks.Reference | None:
    """Log-probabilities of the 16-bit models on the 16-bit model's own completions; None when there are none."""
    chosen = [p for p in problems if p.model_completion][: ctx.config.export.logprob_problems]
    sequences, starts = [], []
    for problem in chosen:
        completion = tokenizer(problem.model_completion, add_special_tokens=False)["input_ids"]
        if completion:
            sequences.append([*problem.prompt, *(int(token) for token in completion)])
            starts.append(len(problem.prompt))
    if not sequences:
        return None
    from tasks.export.reference import log_probabilities

    ctx.progress(0, 2, "reference log-probabilities")
    model = log_probabilities(trained, parameters, sequences, starts)
    other = log_probabilities(before, parameters, sequences, starts) if before and before.is_dir() else []
    ctx.progress(2, 2, "reference log-probabilities")
    return checks.Reference(sequences, starts, model, other)


def write_outputs(
    ctx: StageContext, tokenizer: Any, files: dict[str, Path], proofs: dict[str, checks.Proof]
) -> list[str]:
    """proof.json, samples.jsonl, contract.json and the Modelfile of the smallest released file; returns remarks for the
    report."""
    report = {
        name: {"file": files[name].name, "bytes": files[name].stat().st_size, **dataclasses.asdict(made.verdict)}
        for name, made in proofs.items()
    }
    (ctx.out / "proof.json").write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    with (ctx.out / "samples.jsonl").open("w", encoding="utf-8") as stream:
        for name, made in proofs.items():
            for answer in made.answers:
                stream.write(json.dumps({"format": name, **dataclasses.asdict(answer)}, ensure_ascii=False) + "\n")
    limits = contract_data(ctx.config.model_dump(mode="json"), ctx.config.export.max_tokens)
    text = json.dumps(limits, indent=1, ensure_ascii=False)
    (ctx.out / CONTRACT_FILE).write_text(text + "\n", encoding="utf-8")
    released = [name for name in SMALLEST_FIRST if name in proofs and proofs[name].verdict.name != "refused"]
    notes = [
        f"{name}: {made.verdict.name.replace('_', ' ')}"
        + (f" ({', '.join(made.verdict.reasons)})" if made.verdict.reasons else "")
        for name, made in proofs.items()
    ]
    if not released:
        return notes
    try:
        text, remark = modelfile(
            gguf_name=files[released[0]].name,
            render=lambda turns, asked: str(
                tokenizer.apply_chat_template(list(turns), tokenize=False, add_generation_prompt=asked)
            ),
            system=ctx.config.contract.system_message(),
            eos_text=tokenizer.eos_token,
            n_ctx=ctx.config.export.n_ctx or ctx.config.model.max_context,
        )
    except ValueError as error:
        return [*notes, f"no Modelfile: {error}"]
    (ctx.out / "Modelfile").write_text(text, encoding="utf-8")
    return [*notes, remark] if remark else notes


def measure(file: Path, made: checks.Proof) -> dict[str, Any]:
    """Numbers of one file for the manifest; accuracy with n and its 95 % Wilson interval."""
    n, right = len(made.answers), sum(answer.right for answer in made.answers)
    paired = [answer for answer in made.answers if answer.model_right is not None]
    numbers: dict[str, Any] = {
        "bytes": file.stat().st_size,
        "verdict": made.verdict.name,
        "reasons": made.verdict.reasons,
        "n": n,
    }
    if n:
        low, high = wilson(right, n)
        numbers |= {"right": right, "accuracy": right / n, "accuracy_low": low, "accuracy_high": high}
        numbers |= {"truncated": sum(answer.truncated for answer in made.answers)}
    if paired:
        flips = Counter((bool(answer.model_right), answer.right) for answer in paired)
        numbers |= {"paired": len(paired), "lost": flips[True, False], "gained": flips[False, True]}
        numbers |= {"model_accuracy": sum(bool(answer.model_right) for answer in paired) / len(paired)}
    return numbers


def _evaluation_rows(ctx: StageContext) -> list[dict[str, Any]]:
    """The 16-bit model's greedy answers, or none."""
    if "evaluate_grpo" not in ctx.inputs:
        return []
    return read_rows(ctx.inputs["evaluate_grpo"] / "items.jsonl")


def _against_source(problems: list[checks.Problem], proofs: dict[str, checks.Proof]) -> list[checks.Problem]:
    """Without an evaluation the later files are compared with the first one's answers."""
    answers = {answer.id: answer for made in list(proofs.values())[:1] for answer in made.answers}
    if any(problem.model_right is not None for problem in problems) or not answers:
        return problems
    return [dataclasses.replace(problem, model_right=answers[problem.id].right) for problem in problems]


def _remove_intermediate(files: dict[str, Path], wanted: Sequence[str]) -> None:
    for name in files.keys() - set(wanted):
        files[name].unlink()


def _tell(ctx: StageContext, file: Path, made: checks.Proof, seconds: float) -> None:
    verdict = made.verdict
    reasons = f" ({', '.join(verdict.reasons)})" if verdict.reasons else ""
    ctx.log(f"{file.name}: {verdict.name.replace('_', ' ')}{reasons} in {seconds:.1f} s")
    for finding in verdict.findings:
        ctx.log(f"  {finding.status:<12} {finding.name}: {finding.evidence}")


def _refusal(refused: list[str], proofs: dict[str, checks.Proof]) -> ExportRefused:
    first = proofs[refused[0]].verdict
    failed = next(finding for finding in first.findings if finding.status == "fail")
    named = "; ".join(f"{name}: {', '.join(proofs[name].verdict.reasons)}" for name in refused)
    return ExportRefused(
        f"refused {named}. {failed.evidence}", where=f"export {refused[0]}", fix=failed.fix, cause=first.reasons[0]
    )
