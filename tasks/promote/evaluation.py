"""Score a model of earlier days under today's frozen spec, by the evaluation stage itself and with its cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pydantic import ValidationError

from artifacts.manifest import Manifest
from pipeline_config.pipeline import PipelineConfig
from tasks.chain import EVALUATE_GRPO
from tasks.errors import ConfigError
from tasks.execution import execute
from tasks.promote.versions import artifact
from tasks.stage import Outcome, Settings

RunStage = Callable[..., Outcome]
"""`tasks.execution.execute`, or the Prefect task around it (`flows.stage_task.run_stage`)."""


def evaluator(settings: Settings, run_stage: RunStage = execute) -> Callable[[Manifest, Manifest], Manifest]:
    """(model, evaluation) -> the evaluation of `model` on the problems and settings of `evaluation`.

    Args:
        settings: where and how stages run; its `run` section is used, all else is the evaluation's own configuration.
        run_stage: how the stage is carried out.
    """

    def evaluate(model: Manifest, like: Manifest) -> Manifest:
        try:
            recorded = PipelineConfig.model_validate(like.config)
        except ValidationError as error:
            raise ConfigError(
                f"the configuration of the evaluation is not of this version of the pipeline: {error.errors()[0]['msg']}",
                where=f"{like.stage}/{like.fingerprint[:16]}",
                fix="run the pipeline again, so that the new model is evaluated by this version",
            ) from error
        config = recorded.model_copy(update={"run": settings.config.run})
        here = replace(settings, config=config)
        parents = {
            name: model if name == "grpo" else artifact(settings.store, like.parents[name])
            for name in EVALUATE_GRPO.parents
        }
        settings.log(f"the score of grpo/{model.fingerprint[:16]} is of another spec; it is scored under the new one")
        return run_stage(EVALUATE_GRPO, here, parents, force=False).manifest

    return evaluate
