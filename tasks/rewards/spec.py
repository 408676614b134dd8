"""What a reward function is here, and what counts as a legal return value.

Every function has TRL's signature, called by keyword:

    f(prompts=..., completions=..., completion_ids=..., answer=..., **columns, trainer_state=, log_extra=, log_metric=)
        -> list of one number (or None) per completion

`answer` is the gold column of the pipeline's datasets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

RewardFn = Callable[..., Any]

GOLD_COLUMN = "answer"
"""Dataset column that holds the gold answer."""

MAX_MESSAGE = 2000
"""Longest error text that is kept, in characters."""


@dataclass(frozen=True)
class RewardSpec:
    """A reward function and what it declares, for the audit and the watchdog.

    Attributes:
        name: logged as `rewards/<name>/mean`.
        function: with TRL's signature.
        outcomes: outcome name -> value, when it returns a few constants only.
        maximum: what a gold answer in the right format gets; None when not declared.
        minimum: smallest value; None when not declared.
        weight: factor in the sum of rewards.
    """

    name: str
    function: RewardFn
    outcomes: Mapping[str, float] | None = None
    maximum: float | None = None
    minimum: float | None = None
    weight: float = 1.0


@dataclass
class Scores:
    """What one function returned for one batch.

    Attributes:
        values: one per row; None where the function failed or does not apply.
        errors: row -> what went wrong.
        metrics: calls of `log_metric`, in order.
        extras: column -> one value per row, from `log_extra`.
    """

    values: list[float | None]
    errors: dict[int, str] = field(default_factory=dict)
    metrics: list[tuple[str, float]] = field(default_factory=list)
    extras: dict[str, list[Any]] = field(default_factory=dict)


class BadReturn(ValueError):
    """A reward function returned something else than one value per completion."""


def text_of(completion: Any) -> str:
    """The text of a completion: a plain string, or the joined contents of conversational messages."""
    if isinstance(completion, str):
        return completion
    if isinstance(completion, Mapping):
        completion = [completion]
    parts: list[str] = []
    for message in completion or ():
        content = message.get("content") if isinstance(message, Mapping) else message
        if isinstance(content, str):
            parts.append(content)
        elif isinstance(content, Sequence):
            parts += [str(part.get("text", "")) for part in content if isinstance(part, Mapping)]
    return "".join(parts)


def checked_values(returned: Any, rows: int, *, allow_none: bool = False) -> tuple[list[float | None], dict[int, str]]:
    """Turn what a function returned into one finite float or None per row, and name the rows that are wrong.

    Lists, tuples and anything with `tolist()` (arrays, tensors) are legal containers.

    Raises:
        BadReturn: not a list, or not one value per completion; nothing can then be assigned to a row.
    """
    if not isinstance(returned, list | tuple) and hasattr(returned, "tolist"):
        returned = returned.tolist()
    if not isinstance(returned, list | tuple):
        raise BadReturn(f"returned {_kind(returned)} instead of a list of {rows} numbers")
    if len(returned) != rows:
        raise BadReturn(f"returned {len(returned)} value{'s' * (len(returned) != 1)} for {rows} completions")
    values: list[float | None] = []
    errors: dict[int, str] = {}
    for row, raw in enumerate(returned):
        value = _number(raw)
        if value is None and not (raw is None and allow_none):
            errors[row] = f"returned {_kind(raw)} instead of a finite number"
        values.append(value)
    return values, errors


def _number(raw: Any) -> float | None:
    if raw is None or isinstance(raw, str | bytes):
        return None
    try:
        value = float(raw)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None
    return value if math.isfinite(value) else None


def _kind(value: Any) -> str:
    if value is None or isinstance(value, bool | float):
        return repr(value)
    if isinstance(value, int | str):
        return f"{type(value).__name__} {str(value)[:40]!r}" if isinstance(value, str) else f"the number {value}"
    return f"a {type(value).__name__}"
