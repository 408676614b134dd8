"""Base model: build it, or find it and record its files. Runs in the stage process.

Output: `model/` for a built one, `reference.json` (names, sizes, sha256) for a local folder or a hub model.
"""

from __future__ import annotations

from pathlib import Path

from tasks.contract.checks import check_tags, check_template
from tasks.errors import ModelError
from tasks.models import model_folder, prepare_model
from tasks.process.context import StageContext, StageResult
from tasks.training.loading import check_context, load_tokenizer


def run(ctx: StageContext) -> StageResult:
    """Prepare the model and check at once that its tokenizer can carry the contract."""
    model = ctx.config.model
    prepared = prepare_model(
        model.source, ctx.out, revision=model.revision, seed=ctx.seed, trust_remote_code=model.trust_remote_code
    )
    folder = model_folder(Path(ctx.out), model.source, model.revision)
    check_context(folder, ctx.config)
    tokenizer = load_tokenizer(folder, ctx.config)
    findings = [
        *check_tags(tokenizer, ctx.config.contract),
        *check_template(tokenizer, ctx.config.contract, "What is 2 + 3?"),
    ]
    for finding in findings:
        ctx.log(f"{finding.status}: {finding.name}: {finding.evidence}")
        if finding.status == "fail":
            raise ModelError(finding.evidence, where=model.source, fix=finding.fix, cause=finding.name)
    return StageResult(
        metrics={},
        effective_config={"model": prepared},
        notes=[f"{f.name}: {f.evidence}" for f in findings if f.status == "warn"],
    )
