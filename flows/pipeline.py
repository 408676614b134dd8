"""The Prefect flow `grpo-pipeline`: the order of the stages, and what is kept of a run.

prefect deployment run grpo-pipeline/full -p profile=tiny
grpo-pipeline run --profile tiny
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from prefect import flow, get_run_logger
from prefect.runtime import flow_run

from flows.carry_out import Choice, carry_out
from flows.quiet import calm_tracebacks
from flows.stage_task import run_stage
from pipeline_config.contract import ContractConfig
from pipeline_config.data import DataConfig
from pipeline_config.evaluation import EvaluationConfig
from pipeline_config.export import ExportConfig
from pipeline_config.loading import load_config
from pipeline_config.model import ModelConfig
from pipeline_config.pipeline import PipelineConfig
from pipeline_config.run import RunConfig
from pipeline_config.training import GateSettings, GRPOSettings, SFTSettings, VLLMSettings
from tasks.errors import PipelineError


@flow(name="grpo-pipeline")
def grpo_pipeline(
    profile: str = "smollm2-135m",
    model: ModelConfig | None = None,
    contract: ContractConfig | None = None,
    data: DataConfig | None = None,
    sft: SFTSettings | None = None,
    gate: GateSettings | None = None,
    grpo: GRPOSettings | None = None,
    evaluation: EvaluationConfig | None = None,
    export: ExportConfig | None = None,
    vllm: VLLMSettings | None = None,
    run: RunConfig | None = None,
    overrides: list[str] | None = None,
    start_from: str | None = None,
    stop_after: str | None = None,
    force: list[str] | None = None,
    resume_from: str | None = None,
) -> dict[str, Any]:
    """Run the chain from a base model to a proven GGUF.

    Args:
        profile: a profile that ships with the project; everything else changes it.
        model, contract, data, sft, gate, grpo, evaluation, export, vllm, run: sections; only the keys that are given
            replace the profile's.
        overrides: `a.b=c` texts, applied last.
        start_from, stop_after, force, resume_from: which part of the chain runs; see `grpo-pipeline run --help`.

    Returns:
        `run_id`, `report` (path), and fingerprint by stage.
    """
    sections = {
        "model": model,
        "contract": contract,
        "data": data,
        "sft": sft,
        "gate": gate,
        "grpo": grpo,
        "evaluation": evaluation,
        "export": export,
        "vllm": vllm,
        "run": run,
    }
    given = {name: s.model_dump(exclude_unset=True, mode="json") for name, s in sections.items() if s is not None}
    config = load_config(profile, overrides=overrides or [], sections=given)
    skip_if_late(config)
    return run_under_prefect(config, Choice(start_from, stop_after, tuple(force or ()), resume_from))


def run_under_prefect(config: PipelineConfig, choice: Choice) -> dict[str, Any]:
    """Carry the chain out inside a flow run: every stage a task run, every line in the run's log."""
    logger = get_run_logger()
    calm_tracebacks()
    return carry_out(config, choice, run_stage, logger.info, logger.warning)


def skip_if_late(config: PipelineConfig) -> None:
    """A scheduled run that starts long after its time is not worth its GPU hours."""
    limit = config.run.max_lateness_s
    expected = flow_run.scheduled_start_time
    if limit is None or expected is None:
        return
    late = (datetime.now(UTC) - expected).total_seconds()
    if late > limit:
        raise TooLate(
            f"starts {late:.0f} s after its scheduled time, more than run.max_lateness_s = {limit:.0f}",
            where="flow run",
            fix="nothing; the next scheduled run will train",
            cause="too_late",
        )


class TooLate(PipelineError):
    """A scheduled run was started too late to be useful."""

    exit_code = 23
    default_cause = "too_late"
