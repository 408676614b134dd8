"""The dataset stage, run in the stage process: sft, train, gate and eval.parquet, and stats.json."""

from __future__ import annotations

from typing import Any

from pipeline_config.pipeline import PipelineConfig
from tasks.dataset.build import Built, build
from tasks.dataset.report import ROLES
from tasks.dataset.ruler import limits_of, ruler_for
from tasks.dataset.tables import write
from tasks.models import model_folder
from tasks.process.context import StageContext, StageResult
from tasks.training.loading import load_tokenizer


def run(ctx: StageContext) -> StageResult:
    """Build the tables with the tokenizer of the base model and its trained template.

    Raises:
        DataError: see `tasks.dataset.build.build`.
    """
    config: PipelineConfig = ctx.config
    folder = model_folder(ctx.inputs["model"], config.model.source, config.model.revision)
    tokenizer = load_tokenizer(folder, config)

    def progress(done: int, total: int) -> None:
        ctx.progress(done, total, "collecting problems")

    built = build(config.data, ruler_for(tokenizer, config.contract), limits_of(config), progress)
    write(built, ctx.out)
    rows = built.stats["rows"]
    ctx.log("rows: " + ", ".join(f"{role} {rows[role]}" for role in ROLES))
    for reason, count in built.stats["dropped"].items():
        ctx.log(f"dropped: {reason} {count}")
    metrics: dict[str, Any] = {f"rows/{role}": rows[role] for role in ROLES}
    metrics |= {f"dropped/{reason}": count for reason, count in built.stats["dropped"].items()}
    for role in ("train", "gate", "eval"):
        metrics[f"longest_prompt/{role}"] = built.stats["prompt_tokens"][role]["max"]
    return StageResult(metrics=metrics, effective_config={}, notes=notes_of(built))


def notes_of(built: Built) -> list[str]:
    """Remarks for the report."""
    notes = []
    for role in ("train", "eval"):
        found, rows = built.stats["gold_in_question"][role], built.stats["rows"][role]
        if found:
            notes.append(f"In {found} of {rows} {role} problems the answer already stands in the question.")
    return notes
