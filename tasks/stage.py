"""A stage: what it reads, what its result depends on, and what is stored of it. `tasks.execution` carries it out.

Neither imports torch or Prefect, so a stage runs and is tested without both.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from artifacts.fingerprint import changed_terms, fingerprint
from artifacts.manifest import Manifest
from artifacts.store import Store
from pipeline_config.pipeline import PipelineConfig
from tasks.errors import StoreError

ROOT = Path(__file__).resolve().parents[1]
NEIGHBOURS = 50

Terms = Callable[[PipelineConfig, Mapping[str, Manifest]], dict[str, Any]]
Log = Callable[[str], None]


@dataclass(frozen=True)
class Stage:
    """One step of the chain.

    Attributes:
        name: of the instance and of its folder in the store, such as `evaluate_sft`.
        package: `tasks.<package>.entry` does the work.
        version: raised by hand when the code changes the result.
        parents: names of the stages whose artifacts it reads; the input has the same name.
        terms: the part of the configuration, and of its parents' files, that its result depends on.
        libraries: distributions whose version is a term.
        computes: needs the GPU, when there is one.
        backend: which library trains; read by the stage process before its first import.
        earlier: given the terms and what is stored of this stage, earlier artifacts that parts of the result may be
            taken from, by the name under which the stage process finds them among its inputs. A forced stage gets none.
        options: what this instance does otherwise than the configuration says, for its entry; part of the fingerprint.
    """

    name: str
    package: str
    version: int
    parents: tuple[str, ...]
    terms: Terms
    libraries: tuple[str, ...] = ()
    computes: bool = True
    backend: Callable[[PipelineConfig], str] = field(default=lambda config: "none")
    earlier: Callable[[Mapping[str, Any], Sequence[Manifest]], dict[str, Manifest]] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Settings:
    """Where and how stages of one run are carried out.

    Attributes:
        run_id: names the run in logs; a forced stage starts over once per run, not once per retry.
        on_progress: called with (done, total, label) every few seconds.
        gpu_slots: entered by a stage that has this many GPUs, before it starts: a limit beyond this machine.
    """

    config: PipelineConfig
    store: Store
    run_id: str
    log: Log = print
    warn: Log = print
    on_progress: Callable[[float, float, str], None] = field(default=lambda done, total, label: None)
    gpu_slots: Callable[[int], AbstractContextManager[None]] = field(default=lambda gpus: nullcontext())

    @property
    def home(self) -> Path:
        return Path(self.config.run.home).resolve()


@dataclass(frozen=True)
class Outcome:
    """A stage's manifest, and whether it was there already."""

    manifest: Manifest
    reused: bool
    reason: str


@cache
def library_versions(names: tuple[str, ...]) -> dict[str, str]:
    """Installed versions by distribution name; `absent` when not installed. Reads metadata only."""
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "absent"
    return found


@cache
def git_revision() -> str | None:
    """Commit of the project's checkout, if it is one."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def all_terms(stage: Stage, config: PipelineConfig, parents: Mapping[str, Manifest]) -> dict[str, Any]:
    """Everything that the result of `stage` depends on; its fingerprint is the digest of this."""
    return {
        "stage": stage.name,
        "version": stage.version,
        "seed": config.seed,
        "libraries": library_versions(stage.libraries),
        **({"options": dict(stage.options)} if stage.options else {}),
        **stage.terms(config, {name: parents[name] for name in stage.parents}),
    }


def file_digest(manifest: Manifest, path: str) -> str:
    """sha256 of one file of an artifact: a stage that reads only it does not depend on the others."""
    for entry in manifest.files:
        if entry.path == path:
            return entry.sha256
    raise StoreError(f"has no file {path}", where=f"artifact {manifest.stage}/{manifest.fingerprint[:16]}")


def folder_digest(manifest: Manifest, folder: str) -> str:
    """Digest over the files below one folder of an artifact."""
    lines = [f"{entry.sha256}  {entry.path}" for entry in manifest.files if entry.path.startswith(folder + "/")]
    if not lines:
        raise StoreError(f"has no folder {folder}", where=f"artifact {manifest.stage}/{manifest.fingerprint[:16]}")
    return fingerprint({"files": lines})


def work_name(stage: Stage, key: str) -> str:
    """Name of the work directory, and of its lock, for the fingerprint `key`."""
    return f"{stage.name}-{key[:16]}"


def stored(stage: Stage, key: str, store: Store) -> tuple[Manifest | None, str]:
    """The stored artifact, and what is wrong with its files (empty: nothing)."""
    manifest = store.lookup(stage.name, key)
    return manifest, "; ".join(store.verify(manifest, deep=True)[:5]) if manifest else ""


def why(stage: Stage, terms: Mapping[str, Any], store: Store) -> str:
    """What changed against the most similar stored artifact of this stage."""
    recent = sorted(store.list(stage.name), key=lambda m: m.finished_at, reverse=True)[:NEIGHBOURS]
    if not recent:
        return "nothing stored yet"
    changes = min((changed_terms(manifest.terms, terms) for manifest in recent), key=len)
    if not changes:
        return "the stored artifact was removed or damaged"
    shown = ", ".join(changes[:4])
    return shown + (f" and {len(changes) - 4} more" if len(changes) > 4 else "")
