"""Profile + file + overrides -> one validated `PipelineConfig`, with errors that name the key."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from pipeline_config.pipeline import PipelineConfig
from tasks.errors import ConfigError

MAX_YAML_BYTES = 1 << 20


class _PlainLoader(yaml.SafeLoader):
    """Safe YAML without aliases (an alias can blow a small file up to gigabytes)."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            raise yaml.YAMLError(f"aliases (*{event.anchor}) are not allowed, line {event.start_mark.line + 1}")
        return super().compose_node(parent, index)


def profiles() -> dict[str, str]:
    """Name -> first comment line of every profile that ships with the project."""
    folder = resources.files("pipeline_config") / "profiles"
    found = {}
    for entry in sorted(folder.iterdir(), key=lambda e: e.name):
        if entry.name.endswith(".yaml"):
            first = entry.read_text(encoding="utf-8").splitlines()[0]
            found[entry.name.removesuffix(".yaml")] = first.lstrip("# ").strip()
    return found


def parse_yaml(text: str, where: str) -> dict[str, Any]:
    """Parse a YAML mapping; ConfigError names the file and line."""
    try:
        # A subclass of SafeLoader: it builds plain data only.
        data = yaml.load(text, Loader=_PlainLoader)  # noqa: S506
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigError(f"not valid YAML: {error}", where=where, fix="correct the file") from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(
            f"holds a {type(data).__name__}, not a mapping of sections", where=where, fix="see `config show`"
        )
    return data


def read_profile(name: str) -> dict[str, Any]:
    """The mapping of a profile that ships with the project."""
    known = profiles()
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise ConfigError(f"there is no profile {name!r}", where="profile", fix=f"{hint}known: {', '.join(known)}")
    text = (resources.files("pipeline_config") / "profiles" / f"{name}.yaml").read_text(encoding="utf-8")
    return parse_yaml(text, f"profile {name}")


def read_config_file(path: str | Path) -> dict[str, Any]:
    """The mapping in a YAML (or JSON) file of the user's."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_YAML_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=str(path), fix="check --config") from error
    if len(raw) > MAX_YAML_BYTES:
        raise ConfigError("is larger than 1 MiB", where=str(path), fix="a configuration is a few hundred lines at most")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"is not UTF-8 (byte {error.start})", where=str(path), fix="save it as UTF-8") from error
    return parse_yaml(text, str(path))


def parse_override(text: str) -> tuple[list[str], Any]:
    """`a.b=c` -> (["a", "b"], value); the value is read as YAML, so 1e-5, true, null and [1, 2] mean what they say."""
    key, equals, value = text.partition("=")
    path = key.strip().split(".")
    if not equals or not all(part.isidentifier() for part in path):
        raise ConfigError(
            f"{text!r} is not of the form a.b=value", where="--set", fix="for example --set grpo.beta=0.02"
        )
    try:
        parsed = yaml.load(value, Loader=_PlainLoader)  # noqa: S506
    except yaml.YAMLError as error:
        raise ConfigError(f"the value of {key} is not valid YAML: {error}", where="--set") from error
    if isinstance(parsed, str):
        parsed = _number(parsed)
    return path, parsed


def _number(text: str) -> str | float:
    """YAML 1.1 reads 1e-5 (no dot) as text; people mean the number."""
    try:
        return float(text) if text.strip()[:1] in "+-.0123456789" and "_" not in text else text
    except ValueError:
        return text


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Deep merge of mappings; anything else is replaced. A mapping with another `kind` replaces, since its keys differ."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        if (
            isinstance(value, Mapping)
            and isinstance(old, Mapping)
            and value.get("kind", old.get("kind")) == old.get("kind")
        ):
            merged[key] = merge(old, value)
        else:
            merged[key] = value
    return merged


def load_config(
    profile: str | None = None,
    files: Sequence[str | Path] = (),
    overrides: Sequence[str] = (),
    sections: Mapping[str, Any] | None = None,
) -> PipelineConfig:
    """Build the configuration: defaults < profile < files < sections < overrides.

    Raises:
        ConfigError: unknown profile or key (with the nearest known one), a value out of range, sections that do not fit.
    """
    data: dict[str, Any] = read_profile(profile) if profile else {}
    for file in files:
        data = merge(data, read_config_file(file))
    data = merge(data, sections or {})
    for text in overrides:
        path, value = parse_override(text)
        nested: Any = value
        for part in reversed(path):
            nested = {part: nested}
        data = merge(data, nested)
    return validate(data)


def validate(data: Mapping[str, Any]) -> PipelineConfig:
    """Validate a mapping; all faults are listed in one ConfigError, each with its dotted key."""
    try:
        return PipelineConfig.model_validate(data)
    except ValidationError as error:
        lines = [_describe(fault) for fault in error.errors(include_url=False)]
        count = f"{len(lines)} settings are" if len(lines) > 1 else "a setting is"
        raise ConfigError(
            f"{count} not valid:\n    " + "\n    ".join(lines),
            where="configuration",
            fix="`grpo-pipeline config schema` lists every key with its bounds",
        ) from error


def _describe(fault: Any) -> str:
    path = ".".join(str(part) for part in fault["loc"])
    message = fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "extra_forbidden":
        *parents, key = [str(part) for part in fault["loc"]]
        known = _known_keys(parents)
        close = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
        hint = f"; did you mean {'.'.join([*parents, close[0]])}?" if close else f"; known here: {', '.join(known)}"
        return f"{path}: there is no such key{hint}"
    shown = repr(fault.get("input"))
    return f"{path}: {message} (got {shown[:80]})" if path else message


def _known_keys(path: Sequence[str]) -> list[str]:
    """Field names of the section at `path`; list positions and union tags are looked through."""
    models: list[type[BaseModel]] = [PipelineConfig]
    for part in path:
        found: list[type[BaseModel]] = []
        for model in models:
            field = model.model_fields.get(part)
            if field is not None:
                found += _models_in(field.annotation)
        models = found or models
    return sorted({name for model in models for name in model.model_fields})


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    found: list[type[BaseModel]] = []
    for argument in getattr(annotation, "__args__", ()):
        found += _models_in(argument)
    return found
