"""The model card: README.md of an exported model, in the form that model hubs read. Made from manifests; no torch.

Everything in it was measured or recorded by a stage; what is not known is left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from artifacts.manifest import Manifest
from artifacts.store import Store
from tasks.evaluate.scores import compare
from tasks.plan import lineage
from tasks.process.jsonio import read_rows

MODELS = (("evaluate_base", "base"), ("evaluate_sft", "SFT"), ("evaluate_grpo", "GRPO"))
SFT_SETTINGS = ("method", "learning_rate", "num_train_epochs", "max_steps", "per_device_train_batch_size", "max_length")
GRPO_SETTINGS = (
    "method",
    "learning_rate",
    "max_steps",
    "num_generations",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "max_completion_length",
    "temperature",
    "beta",
    "loss_type",
    "scale_rewards",
)


def related(export: Manifest, store: Store) -> dict[str, Manifest]:
    """The export, everything it was made from, and the evaluations of the models before it, by stage name."""
    found = lineage(export, store)
    for name, parent in (("evaluate_sft", "sft"), ("evaluate_base", "model")):
        if name in found or parent not in found or "evaluate_grpo" not in found:
            continue
        asked = {key: item for key, item in found["evaluate_grpo"].parents.items() if key != "grpo"}
        for manifest in store.list(name):
            same_model = manifest.parents.get(parent) == found[parent].as_parent()
            if same_model and {key: manifest.parents.get(key) for key in asked} == asked:
                found[name] = manifest  # the newest, as they are listed oldest first
    return found


def model_card(export: Manifest, store: Store, name: str, files: Sequence[Path], adapter: bool, merged: bool) -> str:
    """README.md of an exported model.

    Args:
        name: the model's name.
        files: GGUF files that stand beside the card, the recommended one first.
        adapter, merged: whether the folders `adapter/` and `merged/` stand beside it.
    """
    made = related(export, store)
    config: Any = export.config
    scores = _scores(made)
    proof = _json(store.local_folder(export) / "proof.json") or {}
    stats = _json(store.local_folder(made["dataset"]) / "stats.json") if "dataset" in made else None
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=False,  # noqa: S701 - Markdown; cells are cleaned by the filter below
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["cell"] = _cell
    environment.filters["percent"] = lambda value: f"{100 * float(value):.1f} %"
    return environment.get_template("card.md.jinja").render(
        header=_header(name, config, stats, scores),
        name=name,
        config=config,
        files=files,
        adapter=adapter,
        merged=merged,
        system=_system_message(config),
        sources=(stats or {}).get("sources", []),
        rows=(stats or {}).get("rows", {}),
        settings=[
            ("SFT", _chosen(config.get("sft") or {}, SFT_SETTINGS)),
            ("GRPO", _chosen(config.get("grpo") or {}, GRPO_SETTINGS)),
        ],
        rewards=(config.get("grpo") or {}).get("rewards") or {},
        scores=scores,
        comparisons=_comparisons(made, store),
        proof={key: item for key, item in proof.items() if any(file.name == item.get("file") for file in files)},
        metrics=export.metrics,
        parity=_parity(made),
        stages=sorted(made.values(), key=lambda manifest: manifest.finished_at),
        versions=_versions(made),
        export=export,
    )


def _header(name: str, config: Any, stats: Any, scores: Sequence[Mapping[str, Any]]) -> str:
    """The YAML that model hubs read."""
    source = str((config.get("model") or {}).get("source", ""))
    data: dict[str, Any] = {
        "pipeline_tag": "text-generation",
        "library_name": "transformers",
        "tags": ["gguf", "llama-cpp", "grpo", "reasoning", "math"],
    }
    if source.count("/") == 1 and not source.startswith((".", "/", "~")):
        data |= {"base_model": source, "base_model_relation": "finetune"}
    hubs = {
        item["name"].removeprefix("hub/")
        for item in (stats or {}).get("sources", [])
        if item["name"].startswith("hub/")
    }
    if hubs:
        data["datasets"] = sorted(hubs)
    results = [
        {
            "task": {"type": "text-generation"},
            "dataset": {"name": item["set"], "type": item["set"]},
            "metrics": [
                {
                    "type": "accuracy",
                    "name": f"strict accuracy, greedy, n = {item['strict']['n']}",
                    "value": round(100 * item["strict"]["rate"], 2),
                }
            ],
        }
        for item in scores
        if item["model"] == "GRPO"
    ]
    if results:
        data["model-index"] = [{"name": name, "results": results}]
    return str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True)).strip()


def _scores(made: Mapping[str, Manifest]) -> list[dict[str, Any]]:
    """One row a model and set: strict, lenient, format (rates with n and interval) and, if sampled, pass@1."""
    rows = []
    for stage, label in MODELS:
        metrics: Any = made[stage].metrics if stage in made else {}
        named = {"held_out": metrics, **(metrics.get("sets") or {})} if metrics else {}
        for name, item in named.items():
            if isinstance(item, dict) and isinstance(item.get("strict"), dict):
                kept = {key: item.get(key) for key in ("strict", "lenient", "format", "pass_at_1")}
                rows.append({"model": label, "set": name, **kept})
    return sorted(rows, key=lambda row: (row["set"] != "held_out", row["set"]))


def _comparisons(made: Mapping[str, Manifest], store: Store) -> list[dict[str, Any]]:
    """Paired comparisons on the held-out set."""
    items = {label: _rows(store.local_folder(made[stage]) / "items.jsonl") for stage, label in MODELS if stage in made}
    pairs = (("base", "SFT"), ("SFT", "GRPO"), ("base", "GRPO"))
    found = [
        {"name": f"{first} to {second}", **compare(items[first], items[second])}
        for first, second in pairs
        if items.get(first) and items.get(second)
    ]
    return [item for item in found if item["n"]]


def _parity(made: Mapping[str, Manifest]) -> list[dict[str, Any]]:
    """What the training stages measured of the merged weights against base plus adapter."""
    rows: list[dict[str, Any]] = []
    for name in ("sft", "grpo"):
        found: Any = made[name].metrics.get("merge") if name in made else None
        if isinstance(found, dict):
            rows.append({"stage": name, **found})
    return rows


def _versions(made: Mapping[str, Manifest]) -> dict[str, str]:
    found: dict[str, str] = {}
    for manifest in made.values():
        found |= {name: version for name, version in manifest.library_versions.items() if version != "absent"}
    return dict(sorted(found.items()))


def _system_message(config: Any) -> str:
    contract = config.get("contract") or {}
    text = str(contract.get("system_prompt", ""))
    for key in ("reasoning_start", "reasoning_end", "answer_start", "answer_end"):
        text = text.replace("{" + key + "}", str(contract.get(key, "")))
    return text


def _chosen(section: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    chosen = {key: section[key] for key in keys if key in section}
    if section.get("method") == "lora" and isinstance(section.get("lora"), dict):
        lora = section["lora"]
        chosen["lora"] = f"r = {lora.get('r')}, alpha = {lora.get('alpha')}"
    return chosen


def _cell(value: Any) -> str:
    """A text that keeps a Markdown table whole."""
    return " ".join(str(value).replace("|", "\\|").split())


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        return read_rows(path)
    except (OSError, ValueError):
        return []


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
