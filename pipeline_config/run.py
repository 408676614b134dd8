"""How a run is carried out. Nothing here changes a result, so nothing here is part of a fingerprint (but the back end and the device)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipeline_config.base import LocalPath, SecretFreeUrl, Section


class RunConfig(Section):
    """Where artifacts go, which back end trains, and how long a stage may take."""

    home: LocalPath = Field("grpo-runs", min_length=1, max_length=1024)
    """Local folder for work directories, locks, reports and, unless `store` says otherwise, the artifact store."""
    store: SecretFreeUrl | None = Field(None, max_length=1024)
    """Artifact store: a folder or any fsspec URL such as `s3://bucket/prefix`. Unset means `<home>/store`."""
    backend: Literal["auto", "trl", "unsloth"] = "auto"
    """Training back end; `auto` is trl, on the CPU and the GPU. `unsloth` trains LoRA and 4-bit QLoRA adapters on a GPU."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where stages compute."""
    threads: int | None = Field(None, ge=1, le=1024)
    """CPU threads of a stage; unset means all cores."""
    min_free_gb: float = Field(2.0, ge=0.0, le=100_000.0)
    """A run does not start with less free disk under `home`."""
    stage_timeout_s: float = Field(7 * 86_400.0, gt=0.0)
    """Longest time one attempt of a stage may take."""
    stall_timeout_s: float = Field(3600.0, gt=0.0)
    """A stage without a sign of life for this long is ended and retried."""
    retries: int = Field(2, ge=0, le=100)
    """Further attempts after an error that can go away; each resumes from the newest complete checkpoint."""
    retry_delay_s: float = Field(10.0, ge=0.0, le=86_400.0)
    """Pause before the first retry; each further one is five times as long, an hour at most."""
    grace_s: float = Field(25.0, ge=0.1, le=28.0)
    """Time a stage gets to save after SIGTERM; Prefect kills a cancelled run after 30 s."""
    gpu_limit: str | None = Field(None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")
    """A Prefect global concurrency limit of which a stage takes a slot per GPU: for a limit over several hosts. Not used by a
    run that starts a Prefect server of its own. On one host the lock of each GPU is enough."""
    tracking: Literal["off", "local", "offline", "cloud"] = "local"
    """SwanLab mode; metrics.jsonl in the artifact is written in any case."""
    report_to: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """Further trackers of SFT and GRPO, through TRL. Each needs its package (`grpo-pipeline[tensorboard]`, `[wandb]`)."""
    language: Literal["en", "zh"] = "en"
    """Language of the report."""
    max_lateness_s: float | None = Field(None, gt=0.0)
    """A run that a schedule made and that starts later than this ends as `Skipped`; runs started by hand do not."""
