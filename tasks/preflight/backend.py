"""What the back end would write over the settings, told before its trainer is built.

Unsloth generates its argument classes: code in the strings of `unsloth/models/rl.py` goes in front of TRL's own and changes
arguments (for `dapo` it sets `mask_truncated_completions` and `epsilon_high`). Importing unsloth needs a GPU, so the installed
file is read, and those pieces of its code that change one of our arguments are run on our values.
"""

from __future__ import annotations

import ast
import importlib.metadata
import os
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pipeline_config.training import GRPOSettings
from tasks.findings import Finding
from tasks.training.backend import Backend

NAME = "config.backend_overrides"
SOURCE = Path("models") / "rl.py"
_WORDS: dict[str, Any] = {"print": lambda *_: None, "str": str, "int": int, "bool": bool, "ValueError": ValueError}
"""All that a piece of code may call."""


def check_backend(settings: GRPOSettings, backend: Backend) -> Finding:
    """Fails when the back end would change what is learnt; the GRPO stage would otherwise stop at that after SFT."""
    if backend == "trl":
        return Finding(NAME, "ok", "trl trains with the settings as they are")
    later = "it is read back when the trainer is built, and a change in what is learnt stops GRPO then"
    source = unsloth_source()
    if source is None:
        return Finding(NAME, "not_measured", f"unsloth is not installed where this preflight runs; {later}")
    from tasks.grpo.arguments import wanted_arguments

    values = wanted_arguments(settings)
    try:
        pieces = list(overriding_code(source, values))
    except SyntaxError as error:
        return Finding(NAME, "not_measured", f"{_version()}: {SOURCE} cannot be read ({error.msg}); {later}")
    if not pieces:
        return Finding(NAME, "not_measured", f"{_version()}: no code that sets arguments is found in {SOURCE}; {later}")
    changed = overrides(pieces, values)
    if not changed:
        return Finding(NAME, "ok", f"{_version()} leaves the {len(values)} settings that decide what is learnt alone")
    shown = "; ".join(f"{name}: asked {asked!r}, trains with {used!r}" for name, (asked, used) in changed.items())
    agreed = ", ".join(f"grpo.{name}={used}" for name, (_, used) in changed.items())
    fix = f"ask for what it insists on ({agreed}), choose another grpo.loss_type, or set run.backend=trl"
    return Finding(NAME, "fail", f"{_version()} changes {shown}", fix)


def unsloth_source() -> str | None:
    """The text of the installed `unsloth/models/rl.py`, found without importing anything."""
    spec = find_spec("unsloth")
    if spec is None or spec.origin is None:
        return None
    try:
        return (Path(spec.origin).parent / SOURCE).read_text(encoding="utf-8")
    except OSError:
        return None


def overriding_code(source: str, values: Mapping[str, Any]) -> Iterator[ast.Module]:
    """Pieces of code in the string constants of `source` that assign one of the arguments in `values`.

    Raises:
        SyntaxError: `source` is not Python.
    """
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str) and "=" in node.value):
            continue
        try:
            piece = ast.parse(node.value.strip())
        except (SyntaxError, ValueError):
            continue
        assigned = {
            target.id
            for statement in ast.walk(piece)
            if isinstance(statement, ast.Assign)
            for target in statement.targets
            if isinstance(target, ast.Name)
        }
        # Whole statements about arguments, and nothing that defines or imports.
        if assigned & values.keys() and all(isinstance(statement, ast.If) for statement in piece.body):
            yield piece


def overrides(pieces: list[ast.Module], values: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """(asked, used) of every argument that the pieces of code change."""
    used: dict[str, Any] = {
        **values,
        "steps_per_generation": None,
        "generation_batch_size": None,
        "os": SimpleNamespace(environ=dict(os.environ)),
    }
    for piece in pieces:
        local = dict(used)
        try:
            exec(compile(piece, str(SOURCE), "exec"), {"__builtins__": _WORDS}, local)  # noqa: S102 - the back end's own code
        except (NameError, TypeError, AttributeError, ImportError):
            continue  # about arguments that we do not know
        used.update(local)
    return {name: (asked, used[name]) for name, asked in values.items() if used[name] != asked}


def _version() -> str:
    try:
        return f"unsloth {importlib.metadata.version('unsloth')}"
    except importlib.metadata.PackageNotFoundError:
        return "unsloth"
