"""Which GGUF file a user means, and the contract that it was trained with. Imports no llama.cpp."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from artifacts.manifest import Manifest
from artifacts.store import Store
from pipeline_config.contract import ContractConfig
from tasks.errors import ConfigError, ModelError
from tasks.promote.versions import export_of

CONTRACT_FILE = "contract.json"
"""Beside the GGUF files of an export: the contract and the limits that they were proved with."""
SMALLEST_FIRST = ("q4_k_m", "q5_k_m", "q8_0", "f16", "bf16")


@dataclass(frozen=True)
class Chosen:
    """A file to talk to.

    Attributes:
        n_ctx: prompt and completion, in tokens.
        max_tokens: longest completion.
        warning: what the user should know about it, "" for nothing.
    """

    file: Path
    contract: ContractConfig
    n_ctx: int
    max_tokens: int
    warning: str = ""


def choose(store: Store | None, model: str, quantization: str | None, default: ContractConfig) -> Chosen:
    """The file behind a path, a run id, an export artifact, `latest` or `production`.

    Args:
        store: needed unless `model` is a path.
        quantization: such as `q8_0`; None takes the smallest released file.
        default: for a GGUF file without contract.json beside it.

    Raises:
        StoreError: nothing stored fits.
        ConfigError: the export has no such format, or the path is no GGUF file.
        ModelError: contract.json cannot be read.
    """
    path = Path(model).expanduser()
    if path.suffix == ".gguf" or path.is_file():
        return _file(path, default)
    if path.is_dir() and sorted(path.glob("*.gguf")):
        return _file(_by_format(path, None, quantization, str(path)), default)
    if store is None:
        raise ConfigError(f"{model!r} is no GGUF file", fix="give its path, or a store")
    manifest, _ = export_of(store, model)
    folder = store.local_folder(manifest)
    file = _by_format(folder, manifest, quantization, f"export/{manifest.fingerprint[:12]}")
    proof: Any = manifest.metrics.get(_format_of(file))
    warning = ""
    if isinstance(proof, dict) and proof.get("verdict") == "refused":
        warning = f"{file.name} was refused by its proof ({', '.join(proof.get('reasons') or [])})"
    return _with_limits(file, contract_data(manifest.config), warning)


def contract_data(config: Mapping[str, Any], max_tokens: int | None = None) -> dict[str, Any]:
    """What contract.json holds, from a run's configuration as JSON data.

    Args:
        max_tokens: longest completion, if it is known better than the configuration says.
    """
    export, evaluation = config.get("export") or {}, config.get("evaluation") or {}
    longest = (config.get("grpo") or {}).get("max_completion_length")
    return {
        "contract": config.get("contract") or {},
        "max_tokens": max_tokens or export.get("max_tokens") or evaluation.get("max_new_tokens") or longest or 512,
        "n_ctx": export.get("n_ctx") or (config.get("model") or {}).get("max_context") or 2048,
    }


def _file(path: Path, default: ContractConfig) -> Chosen:
    if not path.is_file():
        raise ConfigError("there is no such file", where=str(path), fix="give the path of a GGUF file")
    beside = path.with_name(CONTRACT_FILE)
    if not beside.is_file():
        note = f"there is no {CONTRACT_FILE} beside {path.name}: the configuration's tags and system prompt are used"
        return Chosen(path, default, 2048, 512, note)
    try:
        data = json.loads(beside.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot be read: {error}", where=str(beside), fix="export the model again") from error
    return _with_limits(path, data, "")


def _with_limits(file: Path, data: Any, warning: str) -> Chosen:
    try:
        contract = ContractConfig.model_validate(data["contract"])
        return Chosen(file, contract, int(data["n_ctx"]), int(data["max_tokens"]), warning)
    except (ValidationError, KeyError, TypeError, ValueError) as error:
        raise ModelError(
            f"its contract is not one of this version of the pipeline: {error}",
            where=str(file),
            fix="export the model again",
            cause="contract",
        ) from error


def _by_format(folder: Path, manifest: Manifest | None, quantization: str | None, where: str) -> Path:
    files = {name: path for path in sorted(folder.glob("*.gguf")) if (name := _format_of(path))}
    if quantization is not None:
        if quantization not in files:
            known = ", ".join(files) or "none"
            raise ConfigError(f"there is no file of format {quantization}", where=where, fix=f"there are: {known}")
        return files[quantization]
    released = [
        name
        for name in files
        if manifest is None
        or (isinstance(item := manifest.metrics.get(name), dict) and item.get("verdict") != "refused")
    ]
    order = [name for name in SMALLEST_FIRST if name in (released or files)]
    if not order:
        raise ConfigError("there is no GGUF file", where=where, fix="name an export that wrote one")
    return files[order[0]]


def _format_of(path: Path) -> str:
    """`model-q4_k_m.gguf` -> `q4_k_m`."""
    return path.stem.rpartition("-")[2]
