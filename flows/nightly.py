"""The Prefect flow `grpo-nightly`: retrain on a schedule, and promote only what is better.

prefect deployment run grpo-nightly/nightly -p profile=tiny
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from prefect import flow, get_run_logger
from prefect.context import FlowRunContext
from prefect.states import Completed, State

from flows.cancel import cancellable
from flows.carry_out import Choice
from flows.form import (
    DataPart,
    EvaluationPart,
    GatePart,
    GRPOPart,
    ModelPart,
    ProfileName,
    PromotionPart,
    RunPart,
    SFTPart,
    StageName,
    given_keys,
)
from flows.notify import announce, announced
from flows.patience import patiently
from flows.pipeline import skipped, too_late
from flows.quiet import calm_tracebacks
from flows.record import RunRecord
from flows.report import report_path
from flows.retrain import Night, retrain
from flows.revisions import pin_revisions
from flows.stage_task import run_stage
from pipeline_config.loading import load_config

NAMES = {"nothing_new": "NothingNew", "promoted": "Promoted", "not_promoted": "NotPromoted"}


@flow(name="grpo-nightly")
def nightly(
    profile: ProfileName = "smollm2-135m",
    window: str | None = None,
    model: ModelPart | None = None,
    data: DataPart | None = None,
    sft: SFTPart | None = None,
    gate: GatePart | None = None,
    grpo: GRPOPart | None = None,
    evaluation: EvaluationPart | None = None,
    promotion: PromotionPart | None = None,
    run: RunPart | None = None,
    overrides: list[str] | None = None,
    force: list[StageName] | None = None,
) -> State:
    """Train on what is new, evaluate against production on the same problems, and promote the model if it is better.

    Args:
        profile: A profile that ships with the project; every other parameter changes it.
        window: Replaces `{window}` in url, revision and split of the training data; the date of the schedule (UTC) if not given.
        model: Base model. Only the keys that are given replace the profile's, here and in the other sections.
        data: Problems, golds and worked traces.
        sft: Supervised fine-tuning.
        gate: Format gate between SFT and GRPO.
        grpo: Group relative policy optimization.
        evaluation: Held-out evaluation, on which the new model and production are compared.
        promotion: When the new model replaces the one in production.
        run: Where and how; run.max_lateness_s skips a run that starts too late.
        overrides: Texts such as `export.formats=[f16]` or `seed=1`, applied last.
        force: Stages to make again although nothing is new.

    Returns:
        A state named `Promoted`, `NotPromoted`, `NothingNew`, `Skipped` or `Cancelled`, with the reason as its message.
    """
    calm_tracebacks()
    logger = get_run_logger()
    sections = {
        "model": model,
        "data": {**(data or {}), "window": window or (data or {}).get("window") or scheduled_date()},
        "sft": sft,
        "gate": gate,
        "grpo": grpo,
        "evaluation": evaluation,
        "promotion": promotion,
        "run": run,
    }
    with announced():
        config = load_config(profile, overrides=overrides or [], sections=given_keys(sections))
    reason = too_late(config)
    if reason:
        return skipped(reason)
    choice = Choice(force=tuple(force or ()))
    record = RunRecord.start(config, asdict(choice))
    with announced(record.run_id, report_path(Path(config.run.home).resolve(), record.run_id)):

        def night_shift() -> Night:
            pinned = patiently(lambda: pin_revisions(config, logger.info), config.run, logger.warning)
            return retrain(pinned, choice, run_stage, logger.info, logger.warning, record)

        night = cancellable(night_shift)
    if isinstance(night, State):
        return night
    logger.info("%s: %s", night.outcome.replace("_", " "), night.text)
    tell(night)
    return Completed(name=NAMES[night.outcome], message=night.text)


def tell(night: Night) -> None:
    """Announce a decision; a night without one is no news."""
    kind = {"promoted": "promoted", "not_promoted": "not-promoted"}.get(night.outcome)
    if kind:
        announce(kind, night.text, run=night.run_id or "", report=night.report)


def scheduled_date() -> str:
    """Date (UTC) for which this flow run was scheduled; today outside of one."""
    context = FlowRunContext.get()
    expected = context.flow_run.expected_start_time if context and context.flow_run else None
    return f"{expected or datetime.now(UTC):%Y-%m-%d}"
