"""What `ops check` looks at on this machine, which should be the worker's: store, disk, GPUs, hub."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import httpx

from artifacts.locks import lock_holder
from pipeline_config.pipeline import PipelineConfig
from pipeline_config.sources import HubSource
from tasks.errors import PipelineError
from tasks.findings import Finding
from tasks.process.gpu import gpu_processes, lock_for_all_users, visible_gpus
from tasks.process.secrets import hide
from tasks.storage import store_of

REACH_S = 5.0
ROOM = 3
"""Less free disk than this many times `run.min_free_gb` is a warning."""


def check_host(config: PipelineConfig) -> list[Finding]:
    """Findings on this machine, for runs of this configuration."""
    return [_store(config), _disk(config), *_gpus(config), _hub(config)]


def _store(config: PipelineConfig) -> Finding:
    try:
        store = store_of(config)
        store.check_writable()
    except PipelineError as error:
        return Finding("store", "fail", f"{error.where}: {error.message}", error.fix or "check run.store and run.home")
    return Finding("store", "ok", f"{store.url} can be written, read and locked")


def _disk(config: PipelineConfig) -> Finding:
    home = Path(config.run.home).resolve()
    there = next(folder for folder in (home, *home.parents) if folder.exists())
    free, need = shutil.disk_usage(there).free / 1e9, config.run.min_free_gb
    evidence = f"{free:.1f} GB free under {home}; run.min_free_gb is {need:g}"
    fix = "free disk space (`grpo-pipeline artifacts gc`), or choose another run.home"
    if not os.access(there, os.W_OK):
        return Finding("disk", "fail", f"{there} cannot be written", "choose another run.home")
    if free < need:
        return Finding("disk", "fail", evidence, fix)
    return Finding("disk", "warn", evidence, fix) if free < ROOM * need else Finding("disk", "ok", evidence)


def _gpus(config: PipelineConfig) -> list[Finding]:
    if config.run.device == "cpu":
        return [Finding("gpu", "ok", "run.device is cpu: none is needed")]
    gpus = visible_gpus()
    if not gpus and shutil.which("nvidia-smi") is None:
        wanted = config.run.device == "cuda"
        fix = (
            "run this on the worker's host; install the driver"
            if wanted
            else "set run.device=cpu to say that none is used"
        )
        return [Finding("gpu", "fail" if wanted else "not_measured", "there is no nvidia-smi here", fix)]
    if not gpus:
        return [Finding("gpu", "fail", "nvidia-smi lists no visible GPU", "check the driver and CUDA_VISIBLE_DEVICES")]
    return [_gpu(gpu) for gpu in gpus]


def _gpu(gpu: dict[str, str]) -> Finding:
    """A stage of ours that holds it is fine; memory that others hold is not."""
    name = f"gpu.{gpu['index']}"
    try:
        holder = lock_holder(lock_for_all_users(gpu["uuid"]))
    except PipelineError as error:
        return Finding(name, "fail", f"{error.where}: {error.message}", error.fix)
    memory = f"{gpu['used']} of {gpu['total']} MiB in use"
    if holder:
        return Finding(name, "ok", f"{memory}; a stage holds it: {holder}")
    others = gpu_processes(gpu["uuid"])
    if others:
        fix = "end that process, or keep it off this GPU: a stage may run out of memory beside it"
        return Finding(name, "warn", f"{memory} by {'; '.join(others)}", fix)
    return Finding(name, "ok", f"free, {memory}")


def _hub(config: PipelineConfig) -> Finding:
    wanted = _wanted(config)
    if not wanted:
        return Finding("hub", "ok", "not needed: model and data are local")
    from huggingface_hub import constants

    names = ", ".join(wanted)
    if constants.HF_HUB_OFFLINE:
        return Finding("hub", "ok", f"offline by choice (HF_HUB_OFFLINE); {names} must be in the local cache")
    place = hide(constants.ENDPOINT, ())
    try:
        httpx.head(constants.ENDPOINT, timeout=REACH_S, follow_redirects=True)
    except httpx.HTTPError as error:
        fix = "check the network or HF_ENDPOINT; with everything in the local cache set HF_HUB_OFFLINE=1"
        return Finding("hub", "fail", f"{place} does not answer ({type(error).__name__}); needed for {names}", fix)
    return Finding("hub", "ok", f"{place} answers; needed for {names}")


def _wanted(config: PipelineConfig) -> list[str]:
    """What comes from the hub: the model and data sets that are not local folders."""
    source, data = config.model.source, config.data
    sets = [one.source for one in config.evaluation.sets]
    model = [] if source == "tiny" or source.startswith("package:") or Path(source).is_dir() else [source]
    found = [
        item.dataset
        for item in (*data.train, *data.sft_sources, *data.eval_sources, *sets)
        if isinstance(item, HubSource) and not Path(item.dataset).is_dir()
    ]
    return list(dict.fromkeys([*model, *found]))
