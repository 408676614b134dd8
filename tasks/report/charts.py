"""Charts as inline SVG: colours come from the page's style sheet, so that they follow light and dark mode.

Every chart carries its points in `data-chart`; the page's script shows the nearest ones under the pointer. Without the script the
chart is the same picture.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from html import escape
from typing import Any

WIDTH, HEIGHT = 480, 240
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 26, 40
COLOURS = 8
"""Classes `c1` to `c8` of the style sheet."""
MAX_POINTS = 400
"""Points drawn per line; of more, the lowest and highest of each stretch are kept."""

MIN_SHARE = 0.05
"""An axis of shares reaches at least this far."""

LEAST_SPAN = 1e-12
"""Values closer than this are one."""

Point = tuple[float, float]
Points = Sequence[Point]
Line = tuple[str, Points]


def ticks(low: float, high: float, wanted: int = 4, *, whole: bool = False) -> list[float]:
    """Round numbers that cover [low, high], about `wanted` of them; whole ones if asked for."""
    raw = max(1.0, (high - low) / wanted) if whole else (high - low) / wanted
    if raw < LEAST_SPAN:
        return [low]
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(
        size * factor for factor in ((1, 2, 5, 10) if whole else (1, 2, 2.5, 5, 10)) if size * factor >= raw * 0.999
    )
    first, last = math.ceil(low / step - 1e-6), math.floor(high / step + 1e-6)
    return [n * step for n in range(first, last + 1)]


def thin(points: Points, most: int = MAX_POINTS) -> list[Point]:
    """At most about `most` of the points: the lowest and the highest of each stretch, so that no spike is lost."""
    if len(points) <= most:
        return list(points)
    stretches = most // 2
    kept: list[Point] = []
    for i in range(stretches):
        part = points[i * len(points) // stretches : (i + 1) * len(points) // stretches]
        ends = {min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])}
        kept += sorted(ends)
    return kept


def line_chart(
    lines: Sequence[Line],
    label: str,
    x_label: str,
    y_label: str = "",
    *,
    classes: Sequence[str] = (),
    band: Sequence[tuple[float, float, float]] = (),
    smooth: Points = (),
    marks: Sequence[tuple[float, str]] = (),
    share: bool = False,
) -> str:
    """Named series of (x, y).

    Args:
        label: of the whole chart, for screen readers.
        x_label, y_label: of the axes.
        classes: CSS classes of the lines; `c1`, `c2`, ... when left out.
        band: (x, low, high) drawn as an area behind the lines.
        smooth: a moving mean of the first line; the line itself is then drawn fainter.
        marks: (x, text) of upright lines, for what happened there.
        share: values from 0 to 1, shown in percent.
    """
    thinned = [(name, thin(points)) for name, points in lines]
    names = [classes[i] if i < len(classes) else f"c{i % COLOURS + 1}" for i in range(len(lines))]
    ys = [y for _, points in thinned for _, y in points] + [y for _, low, high in band for y in (low, high)]
    frame = _Frame([x for _, points in thinned for x, _ in points], ys, share=share)
    parts = []
    if band:
        edge = [(x, high) for x, _, high in band] + [(x, low) for x, low, _ in reversed(band)]
        parts.append(f'<polygon class="band {names[0]}" points="{frame.path(edge)}"/>')
    for i, (_, points) in enumerate(thinned):
        faint = " faint" if smooth and i == 0 else ""
        parts.append(f'<polyline class="line {names[i]}{faint}" points="{frame.path(points)}"/>')
        if len(points) == 1:
            parts.append(f'<circle class="dot {names[i]}" r="3" {frame.at(*points[0])}/>')
    if smooth:
        parts.append(f'<polyline class="line {names[0]}" points="{frame.path(thin(smooth))}"/>')
    parts += [frame.mark(x, text) for x, text in marks if frame.x0 <= x <= frame.x1]
    return frame.svg(parts, label, x_label, y_label, thinned, names)


def share_chart(
    lines: Sequence[Line],
    label: str,
    x_label: str,
    y_label: str,
    classes: Sequence[str],
    marks: Sequence[tuple[float, str]] = (),
) -> str:
    """Shares that add up to one, stacked: the first at the bottom. All lines have the same x. `marks` as in `line_chart`."""
    thinned = [(name, _every(points)) for name, points in lines]
    xs = [x for x, _ in thinned[0][1]]
    frame = _Frame(xs, [0.0, 1.0], share=True)
    base = [0.0] * len(xs)
    parts = []
    for (_, points), name in zip(thinned, classes, strict=True):
        top = [min(1.0, low + y) for low, (_, y) in zip(base, points, strict=True)]
        edge = list(zip(xs, top, strict=True)) + list(zip(reversed(xs), reversed(base), strict=True))
        parts.append(f'<polygon class="area {name}" points="{frame.path(edge)}"/>')
        base = top
    parts += [frame.mark(x, text) for x, text in marks if frame.x0 <= x <= frame.x1]
    return frame.svg(parts, label, x_label, y_label, thinned, classes)


def _every(points: Points) -> list[Point]:
    """At most `MAX_POINTS` of the points at even distances, the same ones in every line of a stack."""
    step = max(1, math.ceil(len(points) / MAX_POINTS))
    return [*points[::step]]


class _Frame:
    """The plane of one chart: scales, axes, and what the script needs to find a point."""

    def __init__(self, xs: Sequence[float], ys: Sequence[float], *, share: bool) -> None:
        self.share = share
        self.x0, self.x1 = min(xs), max(xs)
        self.y0, self.y1 = min(ys), max(ys)
        if self.x1 - self.x0 < LEAST_SPAN:
            self.x1 = self.x0 + 1
        span = self.y1 - self.y0
        if span < LEAST_SPAN:
            span = abs(self.y0) * 0.2 or 1.0
            self.y0, self.y1 = self.y0 - (span / 2 if self.y0 else 0.0), self.y1 + span / 2
        if 0 < self.y0 < span * 0.5:
            self.y0 = 0.0  # an axis that nearly reaches zero may as well begin there
        if share:
            # So that a thousandth does not look like a crisis.
            self.y0, self.y1 = min(0.0, self.y0), max(self.y1, MIN_SHARE)

    def px(self, x: float) -> float:
        return LEFT + (x - self.x0) / (self.x1 - self.x0) * (WIDTH - LEFT - RIGHT)

    def py(self, y: float) -> float:
        return HEIGHT - BOTTOM - (y - self.y0) / (self.y1 - self.y0) * (HEIGHT - TOP - BOTTOM)

    def path(self, points: Points) -> str:
        return " ".join(f"{self.px(x):.1f},{self.py(y):.1f}" for x, y in points)

    def at(self, x: float, y: float) -> str:
        return f'cx="{self.px(x):.1f}" cy="{self.py(y):.1f}"'

    def mark(self, x: float, text: str) -> str:
        at = f"{self.px(x):.1f}"
        line = f'<line class="mark" x1="{at}" x2="{at}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        return f'{line}<text class="mark" x="{at}" y="{TOP - 4}" text-anchor="middle">{escape(text)}</text>'

    def value(self, y: float) -> str:
        return f"{y * 100:.3g}%" if self.share else f"{y:.4g}"

    def svg(
        self,
        parts: Sequence[str],
        label: str,
        x_label: str,
        y_label: str,
        lines: Sequence[Line],
        classes: Sequence[str],
    ) -> str:
        bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
        axes = []
        for value in ticks(self.y0, self.y1):
            y = f"{self.py(value):.1f}"
            axes.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y}" y2="{y}"/>')
            axes.append(
                f'<text class="tick" x="{LEFT - 7}" y="{y}" dy="4" text-anchor="end">{self.value(value)}</text>'
            )
        for value in ticks(self.x0, self.x1, 5, whole=True):
            x = f"{self.px(value):.1f}"
            axes.append(f'<line class="axis" x1="{x}" x2="{x}" y1="{bottom}" y2="{bottom + 4}"/>')
            axes.append(f'<text class="tick" x="{x}" y="{bottom + 17}" text-anchor="middle">{value:.6g}</text>')
        axes.append(f'<line class="axis" x1="{LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>')
        middle = (LEFT + right) / 2
        axes.append(f'<text class="name" x="{middle:g}" y="{HEIGHT - 5}" text-anchor="middle">{escape(x_label)}</text>')
        axes.append(f'<text class="name" x="4" y="13">{escape(y_label)}</text>')
        cursor = f'<line class="cursor" x1="0" x2="0" y1="{TOP}" y2="{bottom}"/>'
        data = escape(json.dumps(self._data(lines, classes, x_label), ensure_ascii=False, allow_nan=False))
        return (
            f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" tabindex="0" aria-label="{escape(label)}" '
            f'data-chart="{data}">{"".join([*axes, *parts, cursor])}</svg>'
        )

    def _data(self, lines: Sequence[Line], classes: Sequence[str], x_label: str) -> dict[str, Any]:
        """Union of all x; y by line with null in the gaps; how to turn x into pixels of the viewBox."""
        xs = sorted({x for _, points in lines for x, _ in points})
        values = [dict(points) for _, points in lines]
        return {
            "x": xs,
            "xName": x_label,
            "frame": [LEFT, WIDTH - RIGHT, self.x0, self.x1, WIDTH],
            "share": self.share,
            "lines": [
                {"name": name, "class": classes[i], "y": [_short(values[i].get(x)) for x in xs]}
                for i, (name, _) in enumerate(lines)
            ],
        }


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
