"""TensorBoard and Weights & Biases through TRL's `report_to`, beside SwanLab: where they write and what a run is called.

No torch here: the flow asks whether the packages are there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipeline_config.pipeline import PipelineConfig
from tasks.errors import ConfigError
from tasks.process.context import StageContext
from tasks.training.swanlab_setup import group_of, run_id_of, stage_name

PROJECT = "grpo-pipeline"
STAGES = frozenset({"sft", "grpo"})
"""Stages that a TRL trainer runs."""


def check_reporters(config: PipelineConfig) -> None:
    """Raise before anything trains when a package is missing.

    Raises:
        ConfigError: naming the packages of `run.report_to` that are not installed.
    """
    missing = [name for name in config.run.report_to if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"needs the package {' and '.join(missing)}, which is not installed",
            where="run.report_to",
            fix=f"pip install 'grpo-pipeline[{','.join(missing)}]', or leave {', '.join(missing)} out of run.report_to",
        )


def set_environment(ctx: StageContext, environ: MutableMapping[str, str] = os.environ) -> None:
    """Tell the reporters of a training stage where to write and which run to go on with. What the user has set stays.

    W&B is offline unless `WANDB_MODE` says otherwise: online, its start waits for the service. Its run has the same id in every
    attempt, so that a retry goes on with the same curve.
    """
    wanted = ctx.config.run.report_to if ctx.stage in STAGES else ()
    name, home = f"{stage_name(ctx)}-{ctx.fingerprint[:8]}", Path(ctx.config.run.home).resolve()
    if "tensorboard" in wanted:
        environ["TENSORBOARD_LOGGING_DIR"] = str(_events(ctx))
    if "wandb" in wanted:
        settings: Mapping[str, str] = {
            "WANDB_MODE": "offline",
            "WANDB_PROJECT": PROJECT,
            "WANDB_DIR": str(home),
            "WANDB_RUN_GROUP": group_of(ctx.config),
            "WANDB_JOB_TYPE": stage_name(ctx),
            "WANDB_NAME": name,
            "WANDB_RUN_ID": run_id_of(ctx),
            "WANDB_RESUME": "allow",
            "WANDB_SILENT": "true",
            "WANDB_CONSOLE": "off",
        }
        home.mkdir(parents=True, exist_ok=True)
        for key, value in settings.items():
            environ.setdefault(key, value)


def forget_after(ctx: StageContext, step: int) -> None:
    """Tell TensorBoard that what an earlier attempt logged after the checkpoint at `step` is void: it will be logged again."""
    events = _events(ctx)
    if "tensorboard" not in ctx.config.run.report_to or not events.is_dir() or int(os.environ.get("RANK", "0")):
        return
    from torch.utils.tensorboard import SummaryWriter

    writer: Any = SummaryWriter(log_dir=str(events), purge_step=step + 1)  # type: ignore[no-untyped-call]
    writer.close()


def _events(ctx: StageContext) -> Path:
    home = Path(ctx.config.run.home).resolve()
    return home / "tensorboard" / f"{stage_name(ctx)}-{ctx.fingerprint[:8]}"
