"""Artifacts of the whole chain as a run would leave them, with a few bytes in place of weights."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from artifacts.fingerprint import fingerprint
from artifacts.manifest import Manifest, ManifestDraft
from artifacts.store import Store, open_store
from pipeline_config.loading import load_config
from pipeline_config.pipeline import PipelineConfig
from tasks.chain import GATE, stages_for
from tasks.sft_rounds import sft_round
from tasks.stage import all_terms

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # each worker has a core

# How long an example takes depends on the machine and on what else it does.
settings.register_profile("no_deadline", deadline=None)
settings.load_profile("no_deadline")

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
WEIGHTS = ("model/config.json", "model/model.safetensors", "adapter/adapter_model.safetensors")
FILES = {
    "model": ("model/config.json", "model/model.safetensors"),
    "dataset": ("sft.parquet", "train.parquet", "gate.parquet", "eval.parquet", "stats.json"),
    "evaluation_sets": ("sets/held_out.parquet", "overlap/held_out.jsonl", "sets.json"),
    "sft": (*WEIGHTS, "metrics.jsonl"),
    "format_gate": ("gate.json", "samples.jsonl"),
    "pass_rates": ("rates.parquet", "pass_rates.json"),
    "selection": ("train.parquet", "selection.parquet", "selection.json"),
    "grpo": (*WEIGHTS, "metrics.jsonl", "rollouts.jsonl"),
    "evaluate_base": ("items.jsonl", "scores.json"),
    "evaluate_sft": ("items.jsonl", "scores.json"),
    "evaluate_grpo": ("items.jsonl", "scores.json"),
    "export": ("model-f16.gguf", "Modelfile", "proof.json"),
}

DISK_CALLS = ["link", "rename", "replace", "fsync", "unlink", "rmdir", "ftruncate"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The end-to-end tests, one long file, come first: the other process has the rest done meanwhile."""
    items.sort(key=lambda item: "e2e" not in item.path.parts)


MakeChain = Callable[..., dict[str, Manifest]]


def build_chain(
    store: Store,
    folder: Path,
    config: PipelineConfig,
    *,
    until: str = "export",
    content: Mapping[str, str] | None = None,
    metrics: Mapping[str, Any] | None = None,
    notes: Mapping[str, list[str]] | None = None,
    effective: Mapping[str, Any] | None = None,
    hardware: Mapping[str, Any] | None = None,
    mark: str = "",
    day: int = 0,
) -> dict[str, Manifest]:
    """Store the artifacts of the chain up to the stage `until` and return their manifests.

    A file's content is its name, or what `content` says ("sft/metrics.jsonl" -> text). `mark` is added to every file, as
    if everything had come out differently. `metrics`, `notes` and `effective` are by stage.
    """
    made: dict[str, Manifest] = {}
    for hour, stage in enumerate(stages_for(config)):
        terms = all_terms(stage, config, made)
        out = folder / f"out-{stage.name}"
        given = [path.partition("/")[2] for path in content or () if path.startswith(f"{stage.name}/")]
        for name in dict.fromkeys((*FILES.get(stage.name, ()), "stage.log", *given)):
            path = out / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text((content or {}).get(f"{stage.name}/{name}", f"{stage.name} {name}") + mark)
        finished = NOON + timedelta(days=day, hours=hour)
        draft = ManifestDraft(
            stage=stage.name,
            stage_version=stage.version,
            fingerprint=fingerprint(terms),
            terms=terms,
            metrics=(metrics or {}).get(stage.name, {}),
            config=config.model_dump(mode="json"),
            notes=(notes or {}).get(stage.name, []),
            effective_config=(effective or {}).get(stage.name, {}),
            hardware=dict(hardware or {}),
            parents={name: made[name].as_parent() for name in stage.parents},
            started_at=finished - timedelta(seconds=60),
            finished_at=finished,
            duration_s=60.0,
        )
        made[stage.name] = store.commit(draft, out)
        if stage.name == until:
            break
    return made


def build_round(
    store: Store, folder: Path, config: PipelineConfig, made: Mapping[str, Manifest], number: int, steps: int, gate: Any
) -> dict[str, Manifest]:
    """Store a further SFT round after `made`, and the gate's look at it; returns the manifests that then count."""
    known = dict(made)
    for stage, metrics in ((sft_round(number, steps), {"steps": steps}), (GATE, gate)):
        terms = all_terms(stage, config, known)
        out = folder / f"out-{stage.name}-{number}"
        for name in (*FILES[stage.name], "stage.log"):
            path = out / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{stage.name} {name} round {number}")
        finished = NOON + timedelta(days=9, hours=number)
        draft = ManifestDraft(
            stage=stage.name,
            stage_version=stage.version,
            fingerprint=fingerprint(terms),
            terms=terms,
            metrics=metrics,
            parents={name: known[name].as_parent() for name in stage.parents},
            started_at=finished - timedelta(seconds=60),
            finished_at=finished,
            duration_s=60.0,
        )
        known[stage.name] = store.commit(draft, out)
    return known


@pytest.fixture
def store_round(chain_store: Store, tmp_path: Path) -> Callable[..., dict[str, Manifest]]:
    """`build_round` into `chain_store`."""
    return partial(build_round, chain_store, tmp_path)


@pytest.fixture
def chain_store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "home" / "store"))


@pytest.fixture
def make_chain(chain_store: Store, tmp_path: Path) -> MakeChain:
    """`build_chain` into `chain_store`."""
    return partial(build_chain, chain_store, tmp_path)


@pytest.fixture(scope="session")
def tiny_chain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Manifest]:
    """Manifests of a whole chain of the profile `tiny`, with the stages that choose problems."""
    folder = tmp_path_factory.mktemp("tiny-chain")
    config = load_config("tiny", overrides=["pass_rates.enabled=on"])
    return build_chain(open_store(str(folder / "store")), folder, config)


@pytest.fixture
def run_until_call() -> Callable[[int, Callable[[], object]], bool]:
    """`run_until_call(n, work)` kills `work` before its n-th change to the disk."""
    return _run_until_call


def _run_until_call(number: int, work: Callable[[], object]) -> bool:
    """Run `work` in a forked process that is killed (-9) just before its `number`-th change to the disk.

    Returns:
        whether `work` ended before that.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        left = number

        def counted(original: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                nonlocal left
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return original(*args, **kwargs)

            return call

        try:
            for name in DISK_CALLS:
                setattr(os, name, counted(getattr(os, name)))
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    status = os.waitpid(pid, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return not os.WIFSIGNALED(status)
