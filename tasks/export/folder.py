"""A folder ready to use or to upload: GGUF files, Modelfile, merged weights, adapter, model card. No torch."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
from pathlib import Path
from typing import Any

import yaml

from artifacts.faults import translated
from artifacts.manifest import Manifest
from artifacts.store import Store
from tasks.chat.choose import CONTRACT_FILE, SMALLEST_FIRST, contract_data
from tasks.errors import ConfigError, StoreError
from tasks.export.card import model_card

_LARGE = (".gguf", ".safetensors")


def write_folder(
    store: Store, export: Manifest, out: Path, name: str, *, weights: bool = True, refused: bool = False
) -> list[Path]:
    """Write the folder, all at once or not at all.

    Large files are hard links into the store where both are on one file system (no disk is used twice), else copies.

    Args:
        export: the export artifact.
        out: a folder that does not exist yet.
        name: the model's name, for the card.
        weights: also the merged 16-bit weights and, if one was trained, the LoRA adapter.
        refused: also GGUF files that failed their proof.

    Returns:
        Its files, sorted.

    Raises:
        ConfigError: `out` exists, or no file was released.
        StoreError: an artifact is gone, or the disk is full.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError("exists already and is not an empty folder", where=str(out), fix="name a new folder")
    files = store.local_folder(export)
    chosen = _gguf_files(export, files, refused)
    model = _model(store, export) if weights else None
    aside = out.with_name(f".{out.name}-{secrets.token_hex(4)}.partial")
    with translated(str(out), "write the folder"):
        try:
            aside.mkdir(parents=True)
            for path in (*chosen, files / "Modelfile", files / "proof.json"):
                if path.is_file():
                    _put(path, aside / path.name)
            adapter = _put_tree(model, "adapter", aside / "adapter") if model else False
            if adapter:
                _without_places(aside / "adapter")
            merged = _put_tree(model, "model", aside / "merged") if model else False
            (aside / CONTRACT_FILE).write_text(
                json.dumps(contract_data(export.config), indent=1, ensure_ascii=False) + "\n"
            )
            (aside / "config.yaml").write_text(_config_text(export), encoding="utf-8")
            card = model_card(export, store, name, [aside / path.name for path in chosen], adapter, merged)
            (aside / "README.md").write_text(card, encoding="utf-8")
            if out.exists():
                out.rmdir()
            os.rename(aside, out)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return sorted(path for path in out.rglob("*") if path.is_file())


def _config_text(export: Manifest) -> str:
    """The run's configuration without the places on this machine that it was carried out in."""
    config: dict[str, Any] = dict(export.config)
    if isinstance(config.get("run"), dict):
        config["run"] = {key: value for key, value in config["run"].items() if key not in ("home", "store")}
    return str(yaml.safe_dump(config, sort_keys=False, allow_unicode=True))


def _gguf_files(export: Manifest, files: Path, refused: bool) -> list[Path]:
    """The GGUF files to hand out, the smallest format first."""
    verdicts = {
        name: item.get("verdict") for name in SMALLEST_FIRST if isinstance(item := export.metrics.get(name), dict)
    }
    names = [name for name, verdict in verdicts.items() if refused or verdict != "refused"]
    found = [path for name in names for path in sorted(files.glob(f"*-{name}.gguf"))]
    if not found:
        raise ConfigError(
            "no GGUF file of this export was released",
            where=f"export/{export.fingerprint[:16]}",
            fix="see its proof.json, or take the refused ones with --refused",
            cause="export_refused",
        )
    return found


def _model(store: Store, export: Manifest) -> Path:
    parent = export.parents.get("grpo") or export.parents.get("sft")
    manifest = store.lookup(parent.stage, parent.fingerprint) if parent else None
    if manifest is None:
        raise StoreError(
            "the model that was exported is not in the store any more",
            where=f"export/{export.fingerprint[:16]}",
            fix="leave the weights out with --no-weights",
            cause="artifact_gone",
        )
    return store.local_folder(manifest)


def _put_tree(model: Path, part: str, target: Path) -> bool:
    """Put the files below `model/part` into `target`; False if there are none."""
    paths = [path for path in sorted((model / part).rglob("*")) if path.is_file()]
    for path in paths:
        _put(path, target / path.relative_to(model / part))
    return bool(paths)


def _without_places(adapter: Path) -> None:
    """Take this machine's paths out of what PEFT wrote: the adapter's base is the merged SFT model of the run."""
    (adapter / "README.md").unlink(missing_ok=True)  # a form that nobody filled in
    file = adapter / "adapter_config.json"
    if file.is_file():
        settings = json.loads(file.read_text(encoding="utf-8"))
        settings["base_model_name_or_path"] = "the merged SFT model of the same run"
        file.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _put(source: Path, target: Path) -> None:
    """A hard link for weights, which nobody edits; a copy for everything else, which somebody may."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.suffix in _LARGE:
        with contextlib.suppress(OSError):  # another file system, or one without hard links
            os.link(source, target)
            return
    shutil.copyfile(source, target)
