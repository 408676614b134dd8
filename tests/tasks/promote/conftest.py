"""Versions as a run leaves them: dataset, model, evaluation and export artifacts with a few bytes in place of weights."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from artifacts.fingerprint import fingerprint
from artifacts.manifest import Manifest, ManifestDraft
from artifacts.store import Store, open_store
from pipeline_config.loading import load_config

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
CONFIG = load_config("tiny").model_dump(mode="json")
_counter = itertools.count()

MakeVersion = Callable[..., Manifest]


def stored_version(
    store: Store,
    scratch: Path,
    mark: str,
    right: Sequence[bool],
    *,
    spec: str = "spec",
    verdict: str = "released",
    weights: str = "",
    named: Mapping[str, tuple[str, Sequence[bool]]] | None = None,
) -> Manifest:
    """Store a version whose model answered problem i rightly if `right[i]`; returns its export artifact.

    `spec` is the digest of the held-out set's frozen spec, "" for none. `named` adds further evaluation sets: name -> (digest of its spec, verdicts).
    """

    def items(verdicts: Sequence[bool]) -> str:
        return "".join(json.dumps({"id": str(i), "right": value}) + "\n" for i, value in enumerate(verdicts))

    def commit(stage: str, files: dict[str, str], parents: dict[str, Manifest], **fields: Any) -> Manifest:
        out = scratch / f"out-{next(_counter)}"
        out.mkdir(parents=True)
        for name, text in files.items():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            (out / name).write_text(text)
        terms = fields.pop("terms", {"mark": mark if stage != "dataset" else ""}) | {"stage": stage}
        draft = ManifestDraft(
            stage=stage,
            stage_version=1,
            fingerprint=fingerprint(terms),
            terms=terms,
            parents={name: parent.as_parent() for name, parent in parents.items()},
            config=CONFIG,
            started_at=NOON,
            finished_at=NOON,
            duration_s=1.0,
            **fields,
        )
        return store.commit(draft, out)

    dataset = commit("dataset", {"eval.parquet": "problems"}, {})
    model = commit("grpo", {"model.safetensors": weights or f"weights {mark}"}, {"dataset": dataset})
    scores = {name: {"spec": {"greedy_digest": digest}} for name, (digest, _) in (named or {}).items()}
    written = {"spec": {"greedy_digest": spec}, "sets": scores} if spec else {}
    files = {"items.jsonl": items(right), "scores.json": json.dumps(written)}
    files |= {f"sets/{name}/items.jsonl": items(verdicts) for name, (_, verdicts) in (named or {}).items()}
    evaluation = commit(
        "evaluate_grpo",
        files,
        {"grpo": model, "dataset": dataset},
    )
    return commit(
        "export",
        {"model-f16.gguf": f"gguf {mark}"},
        {"grpo": model, "dataset": dataset, "evaluate_grpo": evaluation},
        metrics={"f16": {"verdict": verdict}},
    )


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def version(store: Store, tmp_path: Path) -> MakeVersion:
    """`version("a", [True, False, ...])` into `store`."""

    def make(mark: str, right: Sequence[bool], **more: Any) -> Manifest:
        return stored_version(store, tmp_path, mark, right, **more)

    return make


@pytest.fixture
def make_version() -> MakeVersion:
    """`make_version(store, scratch, mark, right, ...)` into any store."""
    return stored_version
