"""Gather what a report shows, from the run's record and its artifacts. Every part may be missing: a run can end anywhere."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from artifacts.manifest import Manifest
from artifacts.store import Store
from pipeline_config.training import GateSettings
from tasks.errors import PipelineError
from tasks.evaluate.scores import compare
from tasks.format_gate.measure import decide

MAX_SAMPLES = 6
MODELS = (("evaluate_base", "base"), ("evaluate_sft", "SFT"), ("evaluate_grpo", "GRPO"))


def read_jsonl(path: Path, limit: int = 200_000) -> list[dict[str, Any]]:
    """Rows of a JSON lines file; a half-written last line is left out, a missing file is no rows."""
    rows: list[dict[str, Any]] = []
    if not path.is_file():
        return rows
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict):
                rows.append(row)
            if len(rows) >= limit:
                break
    return rows


def series(rows: Iterable[dict[str, Any]], key: str) -> list[tuple[float, float]]:
    """(step, value) points of one metric, without the gaps."""
    return [(float(row["step"]), float(row[key])) for row in rows if _number(row.get("step")) and _number(row.get(key))]


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def collect(record: dict[str, Any], store: Store, work: Path | None = None) -> dict[str, Any]:
    """Everything the template needs, as plain data.

    Args:
        record: the run's record as stored under `runs/`.
        work: folder of work directories; rows of a stage that did not finish are read there.
    """
    manifests = _manifests(record, store)
    folders = {name: store.local_folder(manifest) for name, manifest in manifests.items()}

    def rows(stage: str, name: str) -> list[dict[str, Any]]:
        folder = folders.get(stage) or _work_folder(record, work, stage)
        return read_jsonl(folder / name) if folder else []

    items = {name: read_jsonl(folders[name] / "items.jsonl") for name, _ in MODELS if name in folders}
    gate = dict(manifests["format_gate"].metrics) if "format_gate" in manifests else None
    return {
        "record": record,
        "stages": [
            _stage_row(item, manifests.get(item["stage"]), folders.get(item["stage"])) for item in record["stages"]
        ],
        "scores": [{"name": label, **manifests[name].metrics} for name, label in MODELS if name in manifests],
        "comparisons": _comparisons(items),
        "flipped": _flipped(items.get("evaluate_sft", []), items.get("evaluate_grpo", [])),
        "gate": gate,
        "gate_verdict": _gate_verdict(gate, record),
        "dataset": _json(folders["dataset"] / "stats.json") if "dataset" in folders else None,
        "export": _formats(manifests["export"]) if "export" in manifests else {},
        "files": _files(folders, manifests),
        "curves": _curves(rows("sft", "metrics.jsonl"), rows("grpo", "metrics.jsonl")),
        "rollouts": _spread(rows("grpo", "rollouts.jsonl")),
        "gate_samples": read_jsonl(folders["format_gate"] / "samples.jsonl")[:MAX_SAMPLES]
        if "format_gate" in folders
        else [],
        "notes": [(name, note) for name, m in manifests.items() for note in m.notes],
        "lineage": [
            {
                "stage": name,
                "fingerprint": m.fingerprint,
                "content_digest": m.content_digest,
                "parents": sorted(m.parents),
                "versions": m.library_versions,
                "git_revision": m.git_revision,
                "changed": _names(m.effective_config.get("changed_by_the_trainer")),
            }
            for name, m in manifests.items()
        ],
    }


def _manifests(record: dict[str, Any], store: Store) -> dict[str, Manifest]:
    found = {}
    for item in record["stages"]:
        if "fingerprint" not in item:
            continue
        try:
            manifest = store.lookup(item["stage"], item["fingerprint"])
            if manifest is not None and not store.verify(manifest):
                found[item["stage"]] = manifest
        except PipelineError:
            # The report is made of what is there; a damaged artifact is the store's business.
            continue
    return found


def _work_folder(record: dict[str, Any], work: Path | None, stage: str) -> Path | None:
    """The newest work directory of a stage that was running when the run ended."""
    running = any(item["stage"] == stage and "fingerprint" not in item for item in record["stages"])
    if work is None or not running or not work.is_dir():
        return None
    folders = sorted(work.glob(f"{stage}-*"), key=lambda path: path.stat().st_mtime)
    return folders[-1] if folders else None


def _stage_row(item: dict[str, Any], manifest: Manifest | None, folder: Path | None) -> dict[str, Any]:
    return {
        **item,
        "size_mb": manifest.size_bytes / 1e6 if manifest else None,
        "folder": str(folder) if folder else None,
    }


def _comparisons(items: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    pairs = [("evaluate_base", "evaluate_sft", "base → SFT"), ("evaluate_sft", "evaluate_grpo", "SFT → GRPO")]
    pairs.append(("evaluate_base", "evaluate_grpo", "base → GRPO"))
    return [
        {"name": label, **compare(items[before], items[after])}
        for before, after, label in pairs
        if items.get(before) and items.get(after)
    ]


def _flipped(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    old = {item["id"]: item for item in before}
    pairs = [(old[item["id"]], item) for item in after if item["id"] in old]

    def shown(wanted: tuple[bool, bool]) -> list[dict[str, Any]]:
        chosen = [(a, b) for a, b in pairs if (bool(a["right"]), bool(b["right"])) == wanted][:MAX_SAMPLES]
        return [
            {"question": a["question"], "answer": a["answer"], "before": a["completion"], "after": b["completion"]}
            for a, b in chosen
        ]

    return {"gained": shown((False, True)), "lost": shown((True, False))}


def _gate_verdict(gate: dict[str, Any] | None, record: dict[str, Any]) -> tuple[str, str, str] | None:
    return decide(gate, GateSettings.model_validate(record["config"]["gate"])) if gate else None


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _files(folders: dict[str, Path], manifests: dict[str, Manifest]) -> list[dict[str, Any]]:
    """What a user takes away: GGUF files and the Modelfile, weights and adapter of the trained model."""
    return [
        {"path": str(folders[stage] / entry.path), "mb": entry.size / 1e6, "stage": stage}
        for stage, endings in (("export", (".gguf", "Modelfile")), ("grpo", (".safetensors",)))
        for entry in (manifests[stage].files if stage in manifests else ())
        if entry.path.endswith(endings)
    ]


def _names(changed: Any) -> list[str]:
    return sorted(changed) if isinstance(changed, dict) else []


def _formats(manifest: Manifest) -> dict[str, Any]:
    """What the export stage measured of each GGUF file."""
    return {name: item for name, item in manifest.metrics.items() if isinstance(item, dict) and "verdict" in item}


def _spread(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A few rollouts, evenly over the run."""
    if len(rows) <= MAX_SAMPLES:
        return rows
    return [rows[round(i * (len(rows) - 1) / (MAX_SAMPLES - 1))] for i in range(MAX_SAMPLES)]


def _curves(sft: list[dict[str, Any]], grpo: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Charts in reading order: title key and named series; charts without points are left out."""
    components = sorted({key for row in grpo for key in row if key.startswith("rewards/") and key.endswith("/mean")})
    outcomes = sorted({key for row in grpo for key in row if key.startswith("outcomes/")})
    wanted: list[tuple[str, list[dict[str, Any]], list[tuple[str, str]]]] = [
        ("reward", grpo, [("reward", "reward")]),
        ("components", grpo, [(key.split("/")[1], key) for key in components] if len(components) > 1 else []),
        ("outcomes", grpo, [(key.removeprefix("outcomes/"), key) for key in outcomes]),
        ("dead_groups", grpo, [("frac_reward_zero_std", "frac_reward_zero_std")]),
        ("kl", grpo, [("kl", "kl")]),
        ("entropy", grpo, [("entropy", "entropy")]),
        ("length", grpo, [("mean", "completions/mean_length"), ("max", "completions/max_length")]),
        ("truncation", grpo, [("clipped_ratio", "completions/clipped_ratio")]),
        ("grad_norm", grpo, [("grad_norm", "grad_norm")]),
        ("sft_loss", sft, [("loss", "loss")]),
    ]
    charts = []
    for title, rows, names in wanted:
        lines = [(label, series(rows, key)) for label, key in names]
        lines = [(label, points) for label, points in lines if len(points) >= 2 and _varies_or_only(points, len(lines))]
        if lines:
            charts.append({"title": title, "lines": lines})
    return charts


def _varies_or_only(points: list[tuple[float, float]], lines: int) -> bool:
    """Leave out lines that are zero throughout, when there are others to show."""
    return lines == 1 or any(value != 0 for _, value in points)
