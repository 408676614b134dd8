"""Numbers and times as a reader wants them, alike in both languages but for the units."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

MINUS = "−"


def percent(share: float, digits: int = 1) -> str:
    """0.915 as 91.5%."""
    return f"{share * 100:.{digits}f}%"


def interval(rate: dict[str, Any]) -> str:
    """[88.4, 93.9], in percent."""
    return f"[{rate['low'] * 100:.1f}, {rate['high'] * 100:.1f}]"


def points(difference: float) -> str:
    """A difference of shares in percentage points, always with a sign: +2.0, −0.6; 0.0 has none."""
    text = f"{abs(difference) * 100:.1f}"
    if float(text) == 0:
        return text
    return f"{'+' if difference > 0 else MINUS}{text}"


def p_value(p: float) -> str:
    """`p = 0.18`, or `p < 0.001`."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"


def count(number: float) -> str:
    """226677 as 226,677."""
    return f"{number:,.0f}"


def size(number: float) -> str:
    """Bytes as B, kB, MB or GB (powers of ten)."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6)):
        if number >= factor:
            return f"{number / factor:.1f} {unit}"
    return f"{number / 1e3:.0f} kB" if number >= 1e3 else f"{number:.0f} B"


def duration(seconds: float, units: tuple[str, str, str]) -> str:
    """Two units at most: 4 min 45 s. `units` are the words for hour, minute and second, with the space before them."""
    hour, minute, second = units
    if seconds < 59.95:
        return f"{seconds:.1f}{second}" if seconds < 10 else f"{seconds:.0f}{second}"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}{minute} {whole % 60}{second}"
    return f"{whole // 3600}{hour} {whole % 3600 // 60}{minute}"


def moment(text: str | None) -> str:
    """An ISO time as 2026-05-01 12:00 UTC; what is no time stays as it is."""
    try:
        return f"{datetime.fromisoformat(str(text)).astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    except ValueError:
        return str(text or "")
