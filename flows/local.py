"""Run the chain from the command line: under a local Prefect server, or directly when there is nothing to carry out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from artifacts.manifest import Manifest
from flows.carry_out import Choice, carry_out
from flows.patience import patiently
from pipeline_config.pipeline import PipelineConfig
from tasks.errors import Interrupted
from tasks.execution import execute
from tasks.plan import Step
from tasks.stage import Log, Outcome, Settings, Stage


def run_local(config: PipelineConfig, choice: Choice, steps: list[Step], log: Log) -> dict[str, Any]:
    """Run here and return what `carry_out` returns.

    Starting a Prefect server takes 10 to 30 s; a run whose every stage is stored, or that a stored gate refuses, does not need it.
    """
    if not any(step.action == "run" for step in steps):

        def stage(stage: Stage, settings: Settings, parents: Mapping[str, Manifest], *, force: bool) -> Outcome:
            return patiently(lambda: execute(stage, settings, parents, force=force), config.run, log)

        return carry_out(config, choice, stage, log, log)
    from prefect import State, flow
    from prefect.exceptions import CancelledRun

    from flows.pipeline import run_under_prefect
    from flows.server import prefect_server

    @flow(name="grpo-pipeline", validate_parameters=False)
    def local_run(config: dict[str, Any], choice: dict[str, Any]) -> dict[str, Any] | State:
        return run_under_prefect(PipelineConfig.model_validate(config), Choice(**choice))

    with prefect_server(Path(config.run.home).resolve() / "prefect-server.log", log) as own:
        data = config.model_dump(mode="json")
        if own and config.run.gpu_limit:
            log("run.gpu_limit is not used: this run has a Prefect server of its own")
            data["run"]["gpu_limit"] = None
        try:
            # A state that the flow returns is raised or unpacked by Prefect.
            result = cast(dict[str, Any], local_run(data, vars(choice)))
        except CancelledRun:
            raise Interrupted(
                "the run was cancelled in Prefect", fix="run it again: it resumes", cause="cancelled"
            ) from None
    return result
