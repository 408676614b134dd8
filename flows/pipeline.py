"""The Prefect flow `grpo-pipeline`: the order of the stages, and what is kept of a run.

prefect deployment run grpo-pipeline/full -p profile=tiny
grpo-pipeline run --profile tiny
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger
from prefect.context import FlowRunContext
from prefect.states import Completed, State

from flows.cancel import cancellable
from flows.carry_out import Choice, carry_out
from flows.form import (
    ContractPart,
    DataPart,
    EvaluationPart,
    ExportPart,
    GatePart,
    GRPOPart,
    ModelPart,
    ParallelPart,
    PassRatesPart,
    PreflightPart,
    ProfileName,
    RunPart,
    SFTPart,
    StageName,
    VLLMPart,
    given_keys,
)
from flows.notify import announced
from flows.quiet import calm_tracebacks
from flows.record import RunRecord
from flows.report import report_path
from flows.stage_task import run_stage
from pipeline_config.loading import load_config
from pipeline_config.pipeline import PipelineConfig


@flow(name="grpo-pipeline")
def grpo_pipeline(
    profile: ProfileName = "smollm2-135m",
    model: ModelPart | None = None,
    contract: ContractPart | None = None,
    data: DataPart | None = None,
    preflight: PreflightPart | None = None,
    sft: SFTPart | None = None,
    gate: GatePart | None = None,
    pass_rates: PassRatesPart | None = None,
    grpo: GRPOPart | None = None,
    evaluation: EvaluationPart | None = None,
    export: ExportPart | None = None,
    vllm: VLLMPart | None = None,
    parallel: ParallelPart | None = None,
    run: RunPart | None = None,
    seed: int | None = None,
    overrides: list[str] | None = None,
    start_from: StageName | None = None,
    stop_after: StageName | None = None,
    force: list[StageName] | None = None,
    resume_from: str | None = None,
) -> dict[str, Any] | State:
    """Run the chain from a base model to a proven GGUF.

    Args:
        profile: A profile that ships with the project; every other parameter changes it.
        model: Base model. Only the keys that are given replace the profile's, here and in the other sections.
        contract: Tags and system prompt.
        data: Problems, golds and worked traces.
        preflight: What is checked before anything trains.
        sft: Supervised fine-tuning.
        gate: Format gate between SFT and GRPO.
        pass_rates: Which training prompts GRPO gets.
        grpo: Group relative policy optimization.
        evaluation: Held-out evaluation.
        export: GGUF export.
        vllm: Rollout engine on a GPU.
        parallel: Training on several processes.
        run: Where and how; changes no result.
        seed: Seed of data order, initialisation and sampling.
        overrides: Texts such as `grpo.beta=0.02`, applied last.
        start_from: Use what is stored for every stage before this one.
        stop_after: Last stage to run.
        force: Stages to make again although they are stored.
        resume_from: Use this artifact (manifest path, fingerprint, stage/prefix, run id) or the `latest` SFT model as it is.

    Returns:
        `run_id`, `report` (path), and fingerprint by stage; a state `Skipped` for a scheduled run that is too late.
    """
    sections = {
        "model": model,
        "contract": contract,
        "data": data,
        "preflight": preflight,
        "parallel": parallel,
        "sft": sft,
        "gate": gate,
        "pass_rates": pass_rates,
        "grpo": grpo,
        "evaluation": evaluation,
        "export": export,
        "vllm": vllm,
        "run": run,
        "seed": seed,
    }
    given = given_keys(sections)
    with announced():
        config = load_config(profile, overrides=overrides or [], sections=given)
    reason = too_late(config)
    if reason:
        return skipped(reason)
    return run_under_prefect(config, Choice(start_from, stop_after, tuple(force or ()), resume_from))


def run_under_prefect(config: PipelineConfig, choice: Choice) -> dict[str, Any] | State:
    """Carry the chain out inside a flow run: every stage a task run, every line in the run's log.

    Returns:
        What `carry_out` returns, or a state `Cancelled`.
    """
    logger = get_run_logger()
    calm_tracebacks()
    record = RunRecord.start(config, asdict(choice))
    with announced(record.run_id, report_path(Path(config.run.home).resolve(), record.run_id)):
        return cancellable(lambda: carry_out(config, choice, run_stage, logger.info, logger.warning, record))


def too_late(config: PipelineConfig) -> str:
    """Why this flow run is not worth its GPU hours any more; empty when it is.

    Only runs that a schedule made can be too late: who starts or retries one by hand wants it.
    """
    context, limit = FlowRunContext.get(), config.run.max_lateness_s
    run = context.flow_run if context else None
    if limit is None or run is None or not run.auto_scheduled or run.run_count > 1 or run.expected_start_time is None:
        return ""
    late = (datetime.now(UTC) - run.expected_start_time).total_seconds()
    if late <= limit:
        return ""
    return f"started {late:.0f} s after its scheduled time, more than run.max_lateness_s = {limit:.0f}"


def skipped(reason: str) -> State:
    """The end of a run that had good reason to do nothing: not a failure, and `Skipped` in every list of runs."""
    get_run_logger().warning("skipped: %s", reason)
    return Completed(name="Skipped", message=reason)
