"""When the preflight looks again: for what a check depends on, and for nothing else."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

import tasks.terms
from artifacts.manifest import FileEntry, Manifest, ManifestDraft, complete
from pipeline_config.loading import load_config
from tasks.chain import CHAIN, NAMES, PREFLIGHT
from tasks.stage import all_terms

FILES = {
    "model": ["model/config.json", "model/model.safetensors", "stage.log"],
    "dataset": ["sft.parquet", "train.parquet", "gate.parquet", "eval.parquet", "stats.json", "stage.log"],
}


def manifest(stage: str, **changed: str) -> Manifest:
    now = datetime(2026, 5, 1, tzinfo=UTC)
    draft = ManifestDraft(
        stage=stage, stage_version=1, fingerprint="0" * 64, terms={}, started_at=now, finished_at=now, duration_s=1.0
    )
    digests = {name: changed.get(name, "1") * 64 for name in FILES[stage]}
    return complete(draft, [FileEntry(path=name, size=1, sha256=digest) for name, digest in digests.items()])


PARENTS = {name: manifest(name) for name in FILES}


def terms(*overrides: str, parents: dict[str, Manifest] = PARENTS) -> dict[str, Any]:
    return all_terms(PREFLIGHT, load_config("tiny", overrides=list(overrides)), parents)


def test_it_comes_before_everything_that_trains_and_nothing_reads_it() -> None:
    assert NAMES.index("dataset") < NAMES.index("preflight") < NAMES.index("sft")
    assert not any("preflight" in stage.parents for stage in CHAIN)
    assert not PREFLIGHT.computes  # holds no GPU


@pytest.mark.parametrize(
    "override",
    [
        "grpo.num_generations=16",
        "grpo.per_device_train_batch_size=64",
        "grpo.gradient_accumulation_steps=2",
        "grpo.loss_type=grpo",
        "grpo.top_p=0.9",
        "grpo.max_completion_length=50",
        "grpo.beta=0.1",  # a reference model takes memory
        "grpo.optim=adamw_torch_fused",
        "grpo.rewards.format_weight=0.1",
        "sft.max_length=100",
        "sft.method=lora",
        "evaluation.max_new_tokens=70",
        "export.formats=[f16]",
        "preflight.reward_audit=warn",
        "model.max_context=300",
        "contract.answer_end=</ANSWER>",
        "run.device=auto",
    ],
)
def test_what_it_depends_on(override: str) -> None:
    assert terms(override) != terms()


@pytest.mark.parametrize(
    "override",
    [
        "grpo.learning_rate=1e-3",
        "grpo.max_steps=7",
        "grpo.temperature=0.9",
        "grpo.epsilon_high=0.3",
        "grpo.save_steps=7",
        "grpo.watchdog=warn",
        "grpo.rewards.timeout_s=3",
        "sft.learning_rate=2e-3",
        "sft.num_train_epochs=9",
        "sft.lora.r=8",
        "gate.prompts=20",
        "evaluation.problems=10",
        "evaluation.batch_size=3",
        "vllm.gpu_memory_utilization=0.5",  # the CPU computes
        "run.threads=1",
    ],
)
def test_what_it_does_not_depend_on(override: str) -> None:
    assert terms(override) == terms()


@pytest.mark.parametrize(
    ("stage", "file", "counts"),
    [
        ("model", "model/config.json", True),
        ("model", "stage.log", False),
        *[("dataset", f"{name}.parquet", True) for name in ("sft", "train", "gate", "eval")],
        ("dataset", "stats.json", False),
        ("dataset", "stage.log", False),
    ],
)
def test_which_files_it_depends_on(stage: str, file: str, counts: bool) -> None:
    changed = {**PARENTS, stage: manifest(stage, **{file: "2"})}
    assert (terms(parents=changed) != terms()) == counts


def test_another_gpu_has_other_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    for total in ("24576", "81920"):
        gpus = [{"index": "0", "uuid": "GPU-1", "used": "0", "total": total}]
        monkeypatch.setattr(tasks.terms, "visible_gpus", lambda gpus=gpus: gpus)
        seen.append(terms("run.device=auto"))
    assert seen[0]["gpu_mib"] == ["24576"] and seen[0] != seen[1]
    assert terms("run.device=auto", "vllm.gpu_memory_utilization=0.5") != seen[1]
