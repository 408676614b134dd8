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

    `auto` is trl: it was run on a GPU through the whole chain, unsloth here was not yet. Unsloth trains adapters only, since
    its shared-weight rollouts are made for them.

    Raises:
        ConfigError: unsloth was asked for and cannot be used, or 4-bit weights were asked for without it.
    """
    if config.run.backend != "unsloth":
        if config.model.load_in_4bit:
            raise ConfigError(
                "only the unsloth back end trains over 4-bit weights",
                where="model.load_in_4bit",
                fix="set run.backend=unsloth, or model.load_in_4bit=false",
            )
        return "trl"
    missing = []
    if config.run.device == "cpu" or not visible_gpus():
        missing.append("a GPU")
    if find_spec("unsloth") is None:
        missing.append("the package unsloth")
    if settings.method != "lora":
        missing.append("method: lora")
    if missing:
        raise ConfigError(
            f"unsloth needs {' and '.join(missing)}",
            where="run.backend",
            fix="set run.backend=auto to train with trl",
        )
    return "unsloth"
