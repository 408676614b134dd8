"""How a stage is carried out and cached.

fingerprint -> stored already? verify and return -> else lock, run in a process of its own, store, return
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from artifacts.faults import translated
from artifacts.fingerprint import fingerprint
from artifacts.locks import file_lock
from artifacts.manifest import Manifest, ManifestDraft
from artifacts.store import Store
from pipeline_config.pipeline import PipelineConfig
from tasks.errors import OutOfMemory, StartAgain
from tasks.process import step_down
from tasks.process.context import StageSpec, last_activity, read_progress, write_spec
from tasks.process.gpu import Held, take_gpu
from tasks.process.launch import run_supervised, stage_argv
from tasks.process.outcome import read_result
from tasks.process.ranks import SEVERAL
from tasks.stage import (
    ROOT,
    Outcome,
    Settings,
    Stage,
    all_terms,
    git_revision,
    library_versions,
    stored,
    why,
    work_name,
)
from tasks.training.unsloth import BACKEND_VARIABLE
from tasks.work_dir import count_attempt, finished, mark_finished, prepare


def execute(stage: Stage, settings: Settings, parents: Mapping[str, Manifest], *, force: bool = False) -> Outcome:
    """Return the stage's artifact, making it if need be.

    Raises:
        PipelineError: what the stage process reported; `retryable` ones may be tried again and resume.
    """
    terms = all_terms(stage, settings.config, parents)
    key = fingerprint(terms)
    found, damage = stored(stage, key, settings.store)
    if found and not damage and not force:
        return Outcome(found, True, "unchanged")
    work = settings.home / "work" / work_name(stage, key)
    with ExitStack() as stack:
        # One for the work directory, one for the artifact: runs can share a home or a store without the other.
        locks = (settings.home / "locks" / f"{work.name}.lock", settings.store.lock_path(stage.name, key))
        held = Held(
            tuple(
                stack.enter_context(file_lock(path, on_wait=lambda text: settings.log(f"{stage.name}: {text}")))
                for path in locks
            )
        )
        found, damage = stored(stage, key, settings.store)
        if found and not damage and not force:
            return Outcome(found, True, "made by another run meanwhile")
        reason = "forced" if force else why(stage, terms, settings.store)
        if found and damage:
            # Not before the lock: meanwhile another run may have made it again.
            reason = f"the stored artifact is damaged: {damage}"
            settings.store.invalidate(found, damage)
        say = settings.warn if damage else settings.log
        say(f"{stage.name}: runs ({reason})")
        if stage.computes and settings.config.run.device != "cpu":
            gpu = take_gpu(
                stack,
                lambda text: settings.log(f"{stage.name}: {text}"),
                count=settings.config.parallel.processes if stage.package in SEVERAL else 1,
            )
            stack.enter_context(settings.gpu_slots(len(gpu.gpus)))
            held = Held((*held.descriptors, *gpu.descriptors), gpu.environment, gpu.gpus)
        manifest = _make(stage, settings, parents, terms, key, work, held, force=force)
    return Outcome(manifest, False, reason)


def _make(
    stage: Stage,
    settings: Settings,
    parents: Mapping[str, Manifest],
    terms: dict[str, Any],
    key: str,
    work: Path,
    held: Held,
    *,
    force: bool,
) -> Manifest:
    prepare(work, settings.run_id, start_over=force)
    earlier = {} if force else _earlier(stage, terms, settings.store)
    draft = finished(work)
    while draft is None:
        try:
            draft = _run_process(stage, settings, parents, terms, key, work, held, earlier)
        except StartAgain as again:
            # The stage bounds how often: each time it has written down one more change to its settings.
            settings.warn(f"{stage.name}: {again.message}")
        except OutOfMemory as error:
            step = step_down.take(work, stage.package, settings.config, error)
            if step is None:
                raise
            settings.warn(f"{stage.name}: out of memory ({step.because}); once more with {step.sentence()}")
    manifest = settings.store.commit(draft, work / "out", replace=force)
    shutil.rmtree(work, ignore_errors=True)
    return manifest


def _earlier(stage: Stage, terms: Mapping[str, Any], store: Store) -> dict[str, Manifest]:
    """Whole earlier artifacts that the stage may take parts from; a damaged one is as good as none."""
    found = stage.earlier(terms, list(store.list(stage.name))) if stage.earlier else {}
    whole = {key: not store.verify(m, deep=True) for key, m in {m.fingerprint: m for m in found.values()}.items()}
    return {name: manifest for name, manifest in found.items() if whole[manifest.fingerprint]}


def _run_process(
    stage: Stage,
    settings: Settings,
    parents: Mapping[str, Manifest],
    terms: dict[str, Any],
    key: str,
    work: Path,
    held: Held,
    earlier: Mapping[str, Manifest],
) -> ManifestDraft:
    """Run the stage's process once, and describe what it left in out/."""
    config = settings.config
    steps = step_down.load_steps(work)
    used = {name: parents[name] for name in stage.parents} | dict(earlier)
    inputs = {name: str(settings.store.local_folder(manifest)) for name, manifest in used.items()}
    asked = step_down.stepped_down(config, steps) if steps else config
    with translated(str(work), "write the work directory"):
        attempts = count_attempt(work)
        spec = write_spec(
            StageSpec(
                stage=stage.package,
                fingerprint=key,
                config=asked.model_dump(mode="json"),
                inputs=inputs,
                work_dir=work,
                seed=config.seed,
                attempt=attempts,
                options=dict(stage.options),
            )
        )
    started = datetime.now(UTC)
    clock = time.monotonic()
    ended = run_supervised(
        stage_argv(spec),
        cwd=Path.cwd(),
        env={**_environment(stage, config, work), **held.environment},
        log_path=work / "stage.log",
        on_line=lambda line: settings.log(f"{stage.name} | {line}"),
        on_poll=_progress_reader(work, settings),
        timeout_s=config.run.stage_timeout_s,
        stall_s=config.run.stall_timeout_s,
        activity=lambda: last_activity(work),
        grace_s=config.run.grace_s,
        inherit_fds=held.descriptors,
    )
    result = read_result(ended, work)
    with translated(str(work), "write the work directory"):
        for extra in ("metrics.jsonl", "stage.log"):
            if (work / extra).exists():
                shutil.copyfile(work / extra, work / "out" / extra)
    metrics = dict(result.metrics)
    taken = {"memory_steps": [asdict(step) for step in steps]} if steps else {}
    draft = ManifestDraft(
        stage=stage.name,
        stage_version=stage.version,
        fingerprint=key,
        terms=terms,
        metrics=metrics,
        config=config.model_dump(mode="json"),
        effective_config={**result.effective_config, **taken},
        parents={name: parents[name].as_parent() for name in stage.parents},
        library_versions=library_versions(stage.libraries),
        git_revision=git_revision(),
        hardware=held.hardware(),
        attempt=attempts,
        started_at=started,
        finished_at=datetime.now(UTC),
        duration_s=time.monotonic() - clock,
        notes=[*(f"out of memory: {step.sentence()}, the same optimization" for step in steps), *result.notes],
        resumed_from_step=metrics.pop("resumed_from_step", None),
    )
    with translated(str(work), "write the work directory"):
        mark_finished(work, draft)
    return draft


def _environment(stage: Stage, config: PipelineConfig, work: Path) -> dict[str, str]:
    """The stage's environment: ours, plus what makes it repeatable and quiet."""
    env = dict(os.environ)
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH", "")]))
    env["TOKENIZERS_PARALLELISM"] = "false"
    env["PYTHONUNBUFFERED"] = "1"
    env.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    env.setdefault("DO_NOT_TRACK", "1")
    env.setdefault("VLLM_LOGGING_LEVEL", "WARNING")  # it has a line for every push of the weights
    env.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    env[BACKEND_VARIABLE] = stage.backend(config)
    # Unsloth writes patched trainers here; a folder shared between processes or versions is a known race.
    env["UNSLOTH_COMPILE_LOCATION"] = str(work / "unsloth_compiled_cache")
    if config.run.threads:
        env["OMP_NUM_THREADS"] = str(config.run.threads)
    if config.run.device == "cpu":
        env["CUDA_VISIBLE_DEVICES"] = ""
    return env


def _progress_reader(work: Path, settings: Settings) -> Callable[[], None]:
    last: Any = None

    def read() -> None:
        nonlocal last
        progress = read_progress(work)
        if progress is not None and progress != last:
            last = progress
            settings.on_progress(float(progress["done"]), float(progress["total"]), str(progress["label"]))

    return read
