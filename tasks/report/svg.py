"""Line charts as inline SVG: no script, no network, sharp at any size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

COLOURS = ("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2", "#be185d", "#4d7c0f")
WIDTH, HEIGHT = 420, 190
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 10, 24

Points = Sequence[tuple[float, float]]


def ticks(low: float, high: float, wanted: int = 4) -> list[float]:
    """Round numbers that cover [low, high], about `wanted` of them."""
    if high <= low:
        return [low]
    raw = (high - low) / wanted
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-6), math.floor(high / step + 1e-6)
    return [n * step for n in range(first, last + 1)]


def line_chart(lines: Sequence[tuple[str, Points]], label: str) -> str:
    """One chart of named series of (x, y); y of a flat series gets some room above and below."""
    xs = [x for _, points in lines for x, _ in points]
    ys = [y for _, points in lines for _, y in points]
    x0, x1, y0, y1 = min(xs), max(xs), min(ys), max(ys)
    if y1 - y0 < 1e-12:
        pad = abs(y0) * 0.1 or 1.0
        y0, y1 = y0 - (pad if y0 else 0.0), y1 + pad
    x1 = x1 if x1 > x0 else x0 + 1

    def px(x: float) -> float:
        return LEFT + (x - x0) / (x1 - x0) * (WIDTH - LEFT - RIGHT)

    def py(y: float) -> float:
        return HEIGHT - BOTTOM - (y - y0) / (y1 - y0) * (HEIGHT - TOP - BOTTOM)

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">']
    for value in ticks(y0, y1):
        y = py(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{value:.4g}</text>')
    for value in ticks(x0, x1, 5):
        parts.append(f'<text class="tick" x="{px(value):.1f}" y="{HEIGHT - 7}" text-anchor="middle">{value:.6g}</text>')
    for i, (_, points) in enumerate(lines):
        path = " ".join(f"{px(x):.1f},{py(y):.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" stroke="{COLOURS[i % len(COLOURS)]}"/>')
    parts.append("</svg>")
    return "".join(parts)
