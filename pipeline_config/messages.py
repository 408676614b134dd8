"""What is wrong with a configuration, said in the words of someone who writes YAML."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from pipeline_config.base import without_secrets
from pipeline_config.pipeline import PipelineConfig

_NUMBER = "; write decimal digits, such as 90"
_FIXED = {
    "tuple_type": "should be a list: [one, another]",
    "model_type": "is a section: give it keys, or leave it out",
    "model_attributes_type": "is a section: give it keys",
}


def describe(faults: Sequence[Any]) -> list[str]:
    """One line per key for the faults that pydantic found, in the words of someone who writes YAML."""
    found: dict[str, list[str]] = {}
    for fault in faults:
        loc = fault["loc"]
        # pydantic counts valid items only, so a list whose one item is wrong is also "too short" to it.
        inner = any(len(other["loc"]) > len(loc) and other["loc"][: len(loc)] == loc for other in faults)
        if not (fault["type"] == "too_short" and inner):
            path, message = _message(fault)
            found.setdefault(path, []).append(message)
    return [(f"{path}: " if path else "") + ", or: ".join(messages) for path, messages in found.items()]


def _message(fault: Any) -> tuple[str, str]:
    """(dotted path, what is wrong there)."""
    if fault["type"] == "extra_forbidden":
        *parents, key = fault["loc"]
        place, models = _place(parents)
        dotted = f"{place}." if place else ""
        known = sorted({name for model in models for name in model.model_fields})
        first, *inner = str(key).split(".")
        if inner and first in known:
            value = fault.get("input")
            shown = "..." if isinstance(value, Mapping | list) else without_secrets(str(value))[:80]
            nested = f"{': {'.join((first, *inner))}: {shown}{'}' * len(inner)}"
            return f"{dotted}{key}", f"there is no such key; nest it: {nested}, or --set {dotted}{key}={shown}"
        close = difflib.get_close_matches(str(key), known, n=1)
        hint = f"did you mean {dotted}{close[0]}?" if close else f"known here: {', '.join(known)}"
        return f"{dotted}{key}", f"there is no such key; {hint}"
    path, models = _place(fault["loc"])
    value = fault.get("input")
    message = _FIXED.get(fault["type"], fault["msg"].removeprefix("Value error, "))
    if fault["type"] == "tuple_type" and any(_tags(model) for model in models):
        message = "should be a list of sources, each with its kind: [{kind: file, url: problems.jsonl}]"
    elif fault["type"] == "union_tag_not_found":
        key = fault["ctx"]["discriminator"].strip("'")
        kinds = dict.fromkeys(model.model_fields[key].default for model in models if key in model.model_fields)
        return f"{path}.{key}", f"is missing; give one of {', '.join(kinds)}"
    elif fault["type"] == "string_type" and value is not None:
        message = f"should be text, and YAML reads it as {_kind_of(value)}: put it in quotes"
    elif fault["type"] in ("int_parsing", "float_parsing"):
        message += _NUMBER
    shown = "" if isinstance(value, Mapping) else f" (got {without_secrets(repr(value))[:80]})"
    return path, message + shown


def _place(loc: Sequence[str | int]) -> tuple[str, list[type[BaseModel]]]:
    """A path as the user would write it (`data.train[0].url`), and the sections that lie there.

    pydantic also names the member of a union that it tried: that narrows the sections down and is not shown.
    """
    path = ""
    sections: list[type[BaseModel]] = [PipelineConfig]
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
            continue
        fields = [model.model_fields[part] for model in sections if part in model.model_fields]
        if fields:
            path += f".{part}" if path else part
            sections = [model for field in fields for model in _models_in(field.annotation)]
        else:
            sections = [model for model in sections if part in _tags(model)] or sections
    return path, sections


def _tags(model: type[BaseModel]) -> list[Any]:
    """Values by which a union recognises this member."""
    return [model.model_fields[name].default for name in ("kind", "problem") if name in model.model_fields]


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in getattr(annotation, "__args__", ()) for model in _models_in(argument)]


def _kind_of(value: object) -> str:
    kinds: dict[type, str] = {
        bool: "true or false",
        int: "a number",
        float: "a number",
        dict: "a section",
        list: "a list",
    }
    return kinds.get(type(value), f"a {type(value).__name__}")
