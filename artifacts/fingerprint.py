"""Fingerprints: the name of a stage's result, computed from everything that can change it.

A fingerprint is the sha256 of the *canonical JSON* of the stage's terms (stage name and version, the part of the
configuration that matters, content digests of the inputs, seed, library versions). Two processes, two machines and
two values of PYTHONHASHSEED give the same fingerprint for the same terms.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

JSON: TypeAlias = "bool | int | float | str | Sequence[JSON] | Mapping[str, JSON] | None"

MAX_DEPTH = 100
MAX_INT_BITS = 8192
"""Beyond this Python refuses to print an int in decimal (`sys.set_int_max_str_digits`)."""

NOT_SET = "(not set)"
_SHOWN = 60
_MISSING = object()
_HEX_DIGEST = re.compile(r"[0-9a-f]{64}")
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_\-]+")


def canonical_json(value: JSON) -> str:
    """One spelling for every JSON value: sorted keys, no spaces, UTF-8, no escapes beyond what JSON requires.

    A float that equals an int is written as that int (`1.0` and `1` are the same value, and a configuration that
    went through YAML or JSON must not change its fingerprint); `True` and `1` stay different. Tuples are arrays.

    Raises:
        TypeError: a value is not JSON (set, Path, bytes, object, NaN, infinity, non-string key, lone surrogate);
            the message names the path of the value.
    """
    return _dump(_plain(value, "", 0))


def fingerprint(terms: Mapping[str, JSON]) -> str:
    """sha256 (64 hex digits) of the canonical JSON of `terms`.

    Raises:
        TypeError: a term is not JSON; the message names its path.
    """
    if not isinstance(terms, Mapping):
        raise TypeError(f"fingerprint terms must be a mapping, not {type(terms).__name__}")
    return hashlib.sha256(canonical_json(terms).encode("utf-8")).hexdigest()


def changed_terms(old: Mapping[str, JSON], new: Mapping[str, JSON]) -> list[str]:
    """Each difference between two sets of terms as a line: `config.grpo.learning_rate: 1e-05 -> 2e-05`.

    Lines are sorted by path. The list is empty exactly when both have the same fingerprint.
    """
    lines: list[str] = []
    _compare(_plain(old, "", 0), _plain(new, "", 0), "", lines)
    return lines


def _dump(plain: Any) -> str:
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _plain(value: Any, path: str, depth: int) -> Any:
    """`value` out of exact None, bool, int, float, str, list and dict; TypeError with the path for anything else."""
    if depth > MAX_DEPTH:
        raise TypeError(f"{_named(path)}: nested deeper than {MAX_DEPTH} levels, or contains itself")
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return _text(str.__str__(value), path)
    if isinstance(value, int):
        return _integer(int(value), path)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise TypeError(f"{_named(path)}: {float(value)!r} is not a JSON number")
        return _integer(int(value), path) if value.is_integer() else float(value)
    if isinstance(value, Mapping):
        plain = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"{_named(path)}: key {key!r} is {type(key).__name__}, not a string")
            name = _text(str.__str__(key), path)
            plain[name] = _plain(item, _join(path, name), depth + 1)
        return plain
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
    raise TypeError(
        f"{_named(path)}: {type(value).__name__} is not a JSON value (use None, bool, number, str, list or dict)"
    )


def _text(text: str, path: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise TypeError(f"{_named(path)}: {text!r} is not valid Unicode (it has a lone surrogate)") from None
    return text


def _integer(number: int, path: str) -> int:
    if number.bit_length() > MAX_INT_BITS:
        raise TypeError(f"{_named(path)}: an integer of {number.bit_length()} bits is too large")
    return number


def _join(path: str, key: str) -> str:
    name = key if _PLAIN_KEY.fullmatch(key) else f"[{json.dumps(key, ensure_ascii=False)}]"
    return f"{path}.{name}" if path and not name.startswith("[") else path + name


def _named(path: str) -> str:
    return path or "value"


def _compare(old: Any, new: Any, path: str, lines: list[str]) -> None:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            _compare(old.get(key, _MISSING), new.get(key, _MISSING), _join(path, key), lines)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            _compare(before, after, f"{path}[{index}]", lines)
    elif type(old) is not type(new) or old != new:  # True == 1 in Python, but not in JSON
        before, after = _shown(old, new)
        lines.append(f"{_named(path)}: {before} -> {after}")


def _shown(old: Any, new: Any) -> tuple[str, str]:
    """Both values short enough to read, windowed on the first difference where they are long."""
    texts = [NOT_SET if value is _MISSING else _dump(value) for value in (old, new)]
    start = 0
    if max(map(len, texts)) > _SHOWN:
        same = next((i for i, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), min(map(len, texts)))
        start = max(0, same - _SHOWN // 3)
    return _cut(old, texts[0], start), _cut(new, texts[1], start)


def _cut(value: Any, text: str, start: int) -> str:
    if isinstance(value, str) and _HEX_DIGEST.fullmatch(value):
        return f"{value[:12]}…"
    part = text[start : start + _SHOWN]
    return ("…" if start else "") + part + ("…" if start + _SHOWN < len(text) else "")
