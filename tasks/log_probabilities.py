"""Two models' log-probabilities of the same tokens: how far apart they are, and whether one is where another began. No torch.

Rows are completions, values natural log-probabilities of their tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Rows = Sequence[Sequence[float]]


def distances(first: Rows, second: Rows) -> list[float]:
    """|a - b| of every token, in nats."""
    return [abs(a - b) for x, y in zip(first, second, strict=True) for a, b in zip(x, y, strict=True)]


def mean_distance(first: Rows, second: Rows) -> float:
    """Mean of `distances`."""
    gaps = distances(first, second)
    return sum(gaps) / len(gaps)


def way_back(model: Rows, start: Rows, found: Rows) -> tuple[float, float] | None:
    """(share, standard error): 0 when `found` is `model` but for noise, 1 when it is `start`.

    Least squares of (found - model) on (start - model) over tokens; the error allows for unequal noise (White 1980).
    None when `model` and `start` agree on every token.
    """
    rows = [row for triple in zip(model, start, found, strict=True) for row in zip(*triple, strict=True)]
    moves = [s - m for m, s, _ in rows]
    gaps = [f - m for m, _, f in rows]
    square = sum(u * u for u in moves)
    if square == 0:
        return None
    share = sum(u * e for u, e in zip(moves, gaps, strict=True)) / square
    noise = sum((u * (e - share * u)) ** 2 for u, e in zip(moves, gaps, strict=True))
    return share, math.sqrt(noise) / square
