"""Profile + file + overrides -> one validated `PipelineConfig`, with errors that name the key."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from pipeline_config.messages import describe
from pipeline_config.pipeline import PipelineConfig
from tasks.errors import ConfigError

MAX_YAML_BYTES = 1 << 20


class _PlainLoader(yaml.SafeLoader):
    """Safe YAML without aliases (one can blow a small file up to gigabytes), repeated keys, and YAML 1.1's surprises.

    `on`, `off`, `yes`, `no` and dates stay text, as in YAML 1.2: `run.tracking: off` is a word, and a field that wants
    a boolean takes it as one. A number is written in decimal digits: 010 is neither 8 nor 007 the number 7, and 1:30 and
    0x1F are text. A field that wants a number reads the text 010 as 10 and refuses the other two.
    """

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.YAMLError(f"the key {key.value!r} is given twice, line {key.start_mark.line + 1}")
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            raise yaml.YAMLError(f"aliases (*{event.anchor}) are not allowed, line {event.start_mark.line + 1}")
        return super().compose_node(parent, index)


_CORE = {
    "bool": ("true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": ("[-+]?(?:0|[1-9][0-9]*)", "-+0123456789"),
    "float": (
        r"[-+]?(?:(?:0|[1-9][0-9]*)\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
}
_TAG = "tag:yaml.org,2002:"
_OURS = {_TAG + name for name in (*_CORE, "timestamp", "value")}
_PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in rules if tag not in _OURS]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _name, (_pattern, _first) in _CORE.items():
    _PlainLoader.add_implicit_resolver(_TAG + _name, re.compile(rf"(?:{_pattern})\Z"), list(_first))
_PlainLoader.add_constructor(_TAG + "int", lambda loader, node: int(str(node.value)))
# A tag that does not fit its text (!!bool maybe) fails in PyYAML as whatever its reading of the text runs into.
_YAML_FAULTS = (yaml.YAMLError, RecursionError, ValueError, LookupError, AttributeError)


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
    except _YAML_FAULTS as error:
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
        raise ConfigError(
            f"there is no profile {name!r}",
            where="profile",
            fix=f"{hint}known: {', '.join(known)}; a file of your own is given with -c",
        )
    text = (resources.files("pipeline_config") / "profiles" / f"{name}.yaml").read_text(encoding="utf-8")
    return parse_yaml(text, f"profile {name}")


def read_config_file(path: str | Path) -> dict[str, Any]:
    """The mapping in a YAML (or JSON) file of the user's."""
    try:
        path = Path(path).expanduser()
        with path.open("rb") as file:
            raw = file.read(MAX_YAML_BYTES + 1)
    except (OSError, ValueError, RuntimeError) as error:  # a NUL byte in the path, and the home of an unknown user
        message = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot be read: {message}", where=str(path), fix="check --config") from error
    if len(raw) > MAX_YAML_BYTES:
        raise ConfigError("is larger than 1 MiB", where=str(path), fix="a configuration is a few hundred lines at most")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"is not UTF-8 (byte {error.start})", where=str(path), fix="save it as UTF-8") from error
    return parse_yaml(text, str(path))


def parse_override(text: str) -> tuple[list[str], Any]:
    """`a.b=c` -> (["a", "b"], value); the value is read as YAML, so 5, true, null and [1, 2] mean what they say.

    Text that a numeric field can read (1e-5, which is text in YAML) becomes a number when the field is validated.
    """
    key, equals, value = text.partition("=")
    path = key.strip().split(".")
    if not equals or not all(part.isidentifier() for part in path):
        raise ConfigError(
            f"{text!r} is not of the form a.b=value", where="--set", fix="for example --set grpo.beta=0.02"
        )
    try:
        parsed = yaml.load(value, Loader=_PlainLoader)  # noqa: S506
    except _YAML_FAULTS as error:
        raise ConfigError(
            f"the value of {key.strip()} is not valid YAML: {error}", where="--set", fix="quote it, or put it in a file"
        ) from error
    return path, parsed


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Deep merge of mappings; anything else, lists too, is replaced."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(value, Mapping) and isinstance(old, Mapping) else value
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
        lines = describe(error.errors(include_url=False))
        count = f"{len(lines)} settings are" if len(lines) > 1 else "a setting is"
        raise ConfigError(
            f"{count} not valid:\n    " + "\n    ".join(lines),
            where="configuration",
            fix="`grpo-pipeline config schema` lists every key with its bounds",
        ) from error
