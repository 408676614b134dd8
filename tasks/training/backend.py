"""Which back end trains: `trl` anywhere, `unsloth` for adapters on a GPU. No torch here: the flow asks too."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal

from pipeline_config.pipeline import PipelineConfig
from pipeline_config.training import Optimization
from tasks.errors import ConfigError
from tasks.process.gpu import visible_gpus

Backend = Literal["trl", "unsloth"]


def backend_of(config: PipelineConfig, settings: Optimization) -> Backend:
    """The back end for one training stage.

    `auto` takes unsloth where it can do the work: a GPU, unsloth installed, and an adapter to train. Full fine-tuning
    goes through trl, since unsloth's shared-weight rollouts are made for adapters.

    Raises:
        ConfigError: unsloth was asked for and cannot be used.
    """
    asked = config.run.backend
    if asked == "trl":
        return "trl"
    missing = []
    if config.run.device == "cpu" or not visible_gpus():
        missing.append("a GPU")
    if find_spec("unsloth") is None:
        missing.append("the package unsloth")
    if settings.method != "lora":
        missing.append("method: lora")
    if not missing:
        return "unsloth"
    if asked == "unsloth":
        raise ConfigError(
            f"unsloth needs {' and '.join(missing)}",
            where="run.backend",
            fix="set run.backend=auto to use trl where unsloth cannot work",
        )
    return "trl"
