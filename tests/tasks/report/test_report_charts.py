"""Charts and numbers of the report: worked examples, and odd data."""

from __future__ import annotations

import html
import json
import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.report.charts import line_chart, share_chart, thin, ticks
from tasks.report.formats import count, duration, moment, p_value, percent, points, size
from tasks.report.training import curves, moving_mean

UNITS = (" h", " min", " s")


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.25, 0.5, 0.75, 1]),
        (0, 100, [0, 25, 50, 75, 100]),
        (0, 400, [0, 100, 200, 300, 400]),
        (1, 30, [10, 20, 30]),
        (-1, 1, [-1, -0.5, 0, 0.5, 1]),
        (0.012, 0.049, [0.02, 0.03, 0.04]),
        (0, 0.0004, [0, 0.0001, 0.0002, 0.0003, 0.0004]),
        (-0.3, 0.1, [-0.3, -0.2, -0.1, 0, 0.1]),
        (5, 5, [5]),
    ],
)
def test_ticks_are_round_numbers(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)


def test_steps_have_whole_numbers() -> None:
    assert ticks(1, 2, 5, whole=True) == [1, 2]
    assert ticks(1, 18, 5, whole=True) == [5, 10, 15]
    assert ticks(0, 12, 5, whole=True) == [0, 5, 10]


@given(st.floats(-1e9, 1e9), st.floats(1e-9, 1e9))
def test_ticks_lie_inside_and_are_few(low: float, width: float) -> None:
    high = low + width
    if high - low < abs(low) * 1e-9:
        return
    values = ticks(low, high)
    room = (high - low) * 1e-4
    assert 1 <= len(values) <= 6
    assert all(low - room <= value <= high + room for value in values)
    assert values == sorted(values)


def data_of(svg: str) -> dict[str, Any]:
    return json.loads(html.unescape(svg.split('data-chart="')[1].split('"')[0]))  # type: ignore[no-any-return]


def test_a_chart_of_two_lines() -> None:
    chart = line_chart([("a", [(0, 0.0), (10, 1.0)]), ("b", [(0, 0.5), (5, 0.5)])], 'x < "y"', "step", "unit")
    assert 'aria-label="x &lt; &quot;y&quot;"' in chart
    # x: 52 to 466, y: 200 (low) to 26 (high).
    assert 'class="line c1" points="52.0,200.0 466.0,26.0"' in chart
    assert 'class="line c2" points="52.0,113.0 259.0,113.0"' in chart
    assert re.findall(r'class="name"[^>]*>(\w+)<', chart) == ["step", "unit"]
    data = data_of(chart)
    assert data["x"] == [0, 5, 10] and [line["y"] for line in data["lines"]] == [[0, None, 1], [0.5, 0.5, None]]
    assert data["frame"] == [52, 466, 0, 10, 480]


def test_names_in_a_chart_are_only_text() -> None:
    evil = '"><script>alert(1)</script>'
    chart = line_chart([(evil, [(0, 1.0), (1, 2.0)])], evil, evil, evil)
    assert "<script" not in chart and data_of(chart)["lines"][0]["name"] == evil


def test_shares_are_stacked() -> None:
    chart = share_chart([("a", [(0, 0.25), (1, 0.5)]), ("b", [(0, 0.75), (1, 0.5)])], "t", "step", "", ["c3", "c4"])
    # One quarter of 174 above 200 is 156.5.
    assert '<polygon class="area c3" points="52.0,156.5 466.0,113.0 466.0,200.0 52.0,200.0"/>' in chart
    assert '<polygon class="area c4" points="52.0,26.0 466.0,26.0 466.0,113.0 52.0,156.5"/>' in chart


def test_a_share_s_axis_does_not_make_a_crisis_of_a_thousandth() -> None:
    chart = line_chart([("", [(0, 0.0), (1, 0.001)])], "t", "step", share=True)
    assert ">4%<" in chart and data_of(chart)["share"] is True


def test_thinning_keeps_the_spikes() -> None:
    values = [(float(x), 0.0) for x in range(10_000)]
    values[5003], values[7001] = (5003.0, 9.0), (7001.0, -9.0)
    kept = thin(values)
    assert len(kept) <= 400 and (5003.0, 9.0) in kept and (7001.0, -9.0) in kept
    assert kept == sorted(kept) and thin(values[:400]) == values[:400]


@pytest.mark.parametrize(
    "given_points",
    [[(3, 0.0)], [(1, 7.0), (2, 7.0)], [(1, 1e-300), (2, 1e300)], [(1, -5), (9, 5e-9)], [(1, 0.0), (2, 0.0)]],
)
def test_charts_of_odd_data(given_points: list[tuple[float, float]]) -> None:
    for share in (False, True):
        chart = line_chart([("a", given_points)], "odd", "x", share=share)
        assert "nan" not in chart and "inf" not in chart


def test_outcomes_beyond_six_are_one() -> None:
    rows = [
        {"step": step, **{f"outcomes/kind{i}": 0.01 * (i + 1) for i in range(8)}, "outcomes/right": 0.64}
        for step in (1, 2)
    ]
    (chart,) = curves([], rows)
    names = [name for name, _ in chart["lines"]]
    assert names == ["right", "kind7", "kind6", "kind5", "kind4", "kind3", "other"]
    assert sum(shares[0][1] for _, shares in chart["lines"]) == pytest.approx(1.0)
    assert chart["lines"][-1][1][0] == (1.0, pytest.approx(0.01 + 0.02 + 0.03))


def test_reward_has_a_band_and_components_need_two() -> None:
    rows = [{"step": s, "reward": 0.5, "reward_std": 0.2, "rewards/a/mean": 0.1} for s in (1, 2)]
    (chart,) = curves([], rows)
    assert chart["key"] == "reward" and chart["band"] == [(1.0, 0.3, 0.7), (2.0, 0.3, 0.7)]
    rows = [{**row, "rewards/b/mean": 0.4} for row in rows]
    assert [name for name, _ in curves([], rows)[1]["lines"]] == ["a", "b"]


def test_a_long_curve_gets_a_moving_mean() -> None:
    values = [(float(x), float(x % 2)) for x in range(100)]
    smooth = moving_mean(values)
    # Five points around each: of 48..52 three are even, so two ones of five.
    assert smooth[50] == (50.0, pytest.approx(0.4)) and len(smooth) == 100 and smooth[0][1] == pytest.approx(1 / 3)
    (chart,) = curves([{"step": x, "loss": y} for x, y in values], [])
    assert len(chart["smooth"]) == 100
    (short,) = curves([{"step": x, "loss": y} for x, y in values[:39]], [])
    assert "smooth" not in short


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(-1e12, 1e12)), min_size=1, max_size=40))
def test_any_finite_points_make_a_chart(given_points: list[tuple[float, float]]) -> None:
    chart = line_chart([("a", sorted(given_points))], "any", "x")
    numbers = [float(text) for text in re.findall(r"-?\d+\.\d", chart.split('class="line')[1].split("/>")[0])]
    assert all(math.isfinite(number) for number in numbers)


def test_numbers_as_a_reader_wants_them() -> None:
    assert (percent(0.915), percent(1.0)) == ("91.5%", "100.0%")
    assert [points(x) for x in (0.02, -0.006, 0.0, -0.0001)] == ["+2.0", "−0.6", "0.0", "0.0"]
    assert [p_value(p) for p in (0.18, 1.0, 0.0009, 0.0123)] == ["p = 0.18", "p = 1", "p < 0.001", "p = 0.012"]
    assert [size(n) for n in (367, 3_654_496, 15_000, 2.71e9)] == ["367 B", "3.7 MB", "15 kB", "2.7 GB"]
    assert count(226677) == "226,677"
    assert [duration(s, UNITS) for s in (0.04, 4.9, 26, 59.96, 285, 3725, 90061)] == [
        "0.0 s",
        "4.9 s",
        "26 s",
        "1 min 0 s",
        "4 min 45 s",
        "1 h 2 min",
        "25 h 1 min",
    ]
    assert moment("2026-05-01T14:30:00+02:00") == "2026-05-01 12:30 UTC"
    assert (moment(None), moment("soon")) == ("", "soon")
