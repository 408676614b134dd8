"""A diagnosis as text with a small plot for the terminal, and as one self-contained HTML page."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tasks.diagnosis.doctor import Curve, Diagnosis

_BLOCKS = " ▁▂▃▄▅▆▇█"


def render_text(diagnosis: Diagnosis, width: int = 100) -> str:
    """Plain text, at most `width` columns; the curve is drawn with block characters."""
    d = diagnosis
    unit = "step" if d.steps_known else "row"
    lines = [f"{d.name}: {d.title}" if d.title else d.name, *_wrap(d.headline, width, "  ")]
    if d.onset_step is not None:
        lines.append(f"  since about {unit} {d.onset_step} of {d.last_step}")
    if any(value is not None for value in d.curve.values):
        lines += ["", *plot(d.curve, min(width, 78), unit=unit)]
    for label, text in (("first", d.first_step), ("knob", d.knob)):
        if text:
            lines += ["", *_wrap(f"{label}: {text}", width, "", "       ")]
    for number, remedy in enumerate(d.remedies, 1):
        lines += _wrap(f"could help {number}: {remedy}", width, "", "  ")
    if d.evidence:
        lines += [
            "",
            *_wrap(
                "evidence: " + ", ".join(f"{key} {_short(value)}" for key, value in d.evidence.items()), width, "", "  "
            ),
        ]
    for sample in d.completions:
        lines += _wrap(f"completion, {_about(sample)}: {sample['completion']!r}", width, "", "  ")
    for label, items in (
        ("also", [f"{item['name']}: {item['text']}" for item in d.also]),
        ("note", [f"{item['name']}: {item['text']}" for item in d.notes]),
        ("not measured", [f"{item['check']}: {item['missing']}" for item in d.not_measured]),
    ):
        for item in items:
            lines += _wrap(f"{label}: {item}", width, "", "  ")
    if d.passed:
        lines += _wrap("checked and fine: " + ", ".join(d.passed), width, "", "  ")
    return "\n".join(lines) + "\n"


def _about(sample: dict[str, Any]) -> str:
    paid = "" if sample["reward"] is None else f", reward {_short(float(sample['reward']))}"
    return f"step {sample['step']}{paid}"


def _wrap(text: str, width: int, first: str = "", rest: str | None = None) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=first if rest is None else rest)


def _short(value: float) -> str:
    return f"{value:.3g}"


def plot(curve: Curve, width: int = 72, height: int = 6, *, unit: str = "step") -> list[str]:
    """The curve as `height` lines of block characters, with its range on the left, an `!` under the onset and an `x` where a value is not finite.

    Positive values that span more than two orders of magnitude are drawn on a logarithmic scale; a constant is one line.
    """
    finite = [value for value in curve.values if value is not None]
    if not finite:
        return []
    low, high = min(finite), max(finite)
    scale, cells_of = "", curve.values
    if _wide(low, high):
        scale, cells_of = " (log scale)", tuple(None if v is None else math.log(v) for v in curve.values)
    labels = [_short(high), _short(low)] if high > low else ["", _short(low)]
    margin = max(len(label) for label in labels) + 1
    columns = max(8, width - margin - 1)
    cells = _resample(cells_of, columns)
    bottom, top = (math.log(low), math.log(high)) if scale else (low, high)
    levels = [
        None if v is None else 1 if top == bottom else (v - bottom) / (top - bottom) * (height * 8 - 1) + 1
        for v in cells
    ]
    height = height if high > low else 1
    lines = [f"{curve.key} by {unit}{scale}"]
    for row in range(height - 1, -1, -1):
        label = labels[1] if row == 0 else labels[0] if row == height - 1 else ""
        body = "".join(
            " " if level is None else _BLOCKS[int(min(8, max(0, round(level - row * 8))))] for level in levels
        )
        lines.append(f"{label:>{margin - 1}} │{body}".rstrip())
    marks = ["x" if level is None else "─" for level in levels]
    at = _onset_column(curve, len(cells))
    if at is not None:
        marks[at] = "!"
    lines.append(" " * (margin - 1) + " └" + "".join(marks))
    first, last = str(curve.steps[0]), str(curve.steps[-1])
    lines.append(" " * (margin + 1) + first + last.rjust(max(len(cells) - len(first), len(last) + 1)))
    return lines


def _wide(low: float, high: float) -> bool:
    """Is a logarithmic scale called for?"""
    return low > 0 and high > 100 * low


def _resample(values: tuple[float | None, ...], columns: int) -> list[float | None]:
    """At most `columns` cells, each the mean of its finite values."""
    count = len(values)
    if count <= columns:
        stretch = max(1, columns // count)
        return [value for value in values for _ in range(stretch)]
    out: list[float | None] = []
    for i in range(columns):
        part = [v for v in values[i * count // columns : (i + 1) * count // columns] if v is not None]
        out.append(sum(part) / len(part) if part else None)
    return out


def _onset_column(curve: Curve, columns: int) -> int | None:
    if curve.onset_step is None or not curve.steps:
        return None
    index = next((i for i, step in enumerate(curve.steps) if step >= curve.onset_step), len(curve.steps) - 1)
    return min(columns - 1, index * columns // len(curve.steps))


_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem;color:#1b1f24;background:#fff}"
    "h1{font-size:1.5rem;margin:0}.v{font-family:ui-monospace,monospace;padding:.1rem .5rem;border-radius:.3rem;color:#fff}"
    ".bad{background:#b42318}.good{background:#1a7f37}.early{background:#6b7280}table{border-collapse:collapse;margin:.5rem 0}"
    "td,th{border-bottom:1px solid #ddd;padding:.2rem .8rem .2rem 0;text-align:left;vertical-align:top}"
    "dt{font-weight:600;margin-top:.8rem}dd{margin:0}svg{width:100%;height:auto;margin:1rem 0}"
    "@media(prefers-color-scheme:dark){body{background:#14171a;color:#e6e6e6}td,th{border-color:#444}}"
)


def render_html(diagnosis: Diagnosis, name: str = "") -> str:
    """One HTML page without scripts or links; `name` (the log's) goes into the title."""
    d = diagnosis
    unit = "step" if d.steps_known else "row"
    kind = "bad" if d.failed else "good" if d.conclusive else "early"
    title = escape(f"{d.name}: {name}" if name else d.name)
    parts = [
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>',
        f'<h1>{escape(d.title or d.name)} <span class="v {kind}">{escape(d.name)}</span></h1>',
        f"<p>{escape(name)}</p>" if name else "",
        f"<p>{escape(d.headline)}</p>",
        svg(d.curve, unit),
        "<dl>",
    ]
    facts = [
        ("Since", f"about {unit} {d.onset_step} of {d.last_step}" if d.onset_step is not None else ""),
        ("Do first", d.first_step),
        ("Then turn", d.knob),
    ]
    parts += [f"<dt>{label}</dt><dd>{escape(text)}</dd>" for label, text in facts if text]
    parts.append("</dl>")
    parts.append(_table("Could help, in this order", [(str(i), text) for i, text in enumerate(d.remedies, 1)]))
    parts.append(_table("Evidence", [(key, _short(value)) for key, value in d.evidence.items()]))
    parts.append(_table("Completions", [(_about(s), s["completion"]) for s in d.completions]))
    parts.append(_table("Also found", [(item["name"], item["text"]) for item in d.also]))
    parts.append(_table("Notes", [(item["name"], item["text"]) for item in d.notes]))
    parts.append(_table("Not measured", [(item["check"], item["missing"]) for item in d.not_measured]))
    parts.append(_table("Checked and fine", [(check, "") for check in d.passed]))
    return "".join(parts) + f"<p>{d.rows} logged rows.</p></body></html>\n"


def _table(title: str, rows: list[tuple[str, str]]) -> str:
    if not rows:
        return ""
    body = "".join(f"<tr><th>{escape(a)}</th><td>{escape(b)}</td></tr>" for a, b in rows)
    return f"<h2>{title}</h2><table>{body}</table>"


def svg(curve: Curve, unit: str = "step", width: int = 760, height: int = 260) -> str:
    """The curve as inline SVG: line (broken where a value is not finite), dashed limit, band from the onset on."""
    finite = [value for value in curve.values if value is not None]
    if not finite:
        return ""
    low, high = min(finite), max(finite)
    if curve.limit is not None:
        low, high = min(low, curve.limit), max(high, curve.limit)
    first, last = curve.steps[0], curve.steps[-1]
    shape: Callable[[float], float] = math.log if _wide(low, high) else float
    span = shape(high) - shape(low)
    left, right, top, bottom = 70, width - 10, 24, height - 30

    def x(step: int) -> float:
        return left + (right - left) * (step - first) / ((last - first) or 1)

    def y(value: float) -> float:
        return bottom - (bottom - top) * (shape(value) - shape(low)) / span if high > low else (top + bottom) / 2

    parts = [
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(curve.key)}" font-size="12" fill="currentColor">'
    ]
    if curve.onset_step is not None:
        at = x(max(first, min(last, curve.onset_step)))
        parts.append(
            f'<rect x="{at:.1f}" y="{top}" width="{right - at:.1f}" height="{bottom - top}" fill="#b42318" opacity=".1"/>'
        )
    parts.append(f'<path d="M{left} {top}V{bottom}H{right}" fill="none" stroke="currentColor" opacity=".5"/>')
    if curve.limit is not None:
        parts.append(f'<path d="M{left} {y(curve.limit):.1f}H{right}" stroke="#b42318" stroke-dasharray="5 4"/>')
    pen, path = "M", []
    for step, value in zip(curve.steps, curve.values, strict=True):
        if value is None:
            pen = "M"
            continue
        path.append(f"{pen}{x(step):.1f} {y(value):.1f}")
        pen = "L"
    parts.append(f'<path d="{"".join(path)}" fill="none" stroke="#2563eb" stroke-width="2" stroke-linecap="round"/>')
    parts.append(f'<text x="{left}" y="15">{escape(curve.key)}{" (log scale)" if _wide(low, high) else ""}</text>')
    for value in (low, high):
        parts.append(f'<text x="{left - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{_short(value)}</text>')
    parts.append(f'<text x="{left}" y="{height - 8}">{unit} {first}</text>')
    parts.append(f'<text x="{right}" y="{height - 8}" text-anchor="end">{last}</text></svg>')
    return "".join(parts)
