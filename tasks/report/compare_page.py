"""The comparison of two runs as an HTML page, and its verdict in one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from tasks.report.build import render, words_of
from tasks.report.charts import line_chart
from tasks.report.formats import count, p_value, percent, points

SIDES = {"a": "A", "b": "B"}


def build_comparison(found: Mapping[str, Any], language: str = "en") -> str:
    """HTML of what `compare.compare_runs` found, in English (`en`) or Chinese (`zh`)."""
    words = words_of(language)
    return render(
        "compare.html",
        language,
        found=found,
        headline=headline(found, words),
        evidence=evidence(found, words),
        problems=lambda row: problems(row, words),
        figures=[_drawn(chart, words) for chart in found["curves"]],
    )


def headline(found: Mapping[str, Any], words: Mapping[str, str]) -> str:
    """Which run is better, by the last model that both have; or that they cannot be compared, and why."""
    verdict, row = found["verdict"], deciding(found)
    if row is None or not verdict["comparable"]:
        reasons = words["semicolon"].join(words.get(f"compare_{text}", text) for text in verdict["reasons"])
        return words["v_not_comparable"].format(reasons=reasons)
    clauses = []
    for name in sorted(_verdicts(row), key=lambda name: _verdicts(row)[name] == "no_difference"):
        values = {side: percent(row[side][name]["rate"]) for side in ("a", "b")}
        clauses.append(words[f"v_compare_{_verdicts(row)[name]}"].format(name=words[f"v_{name}"], **values))
    text = words["v_join"].join(clauses)
    return words["v_result"].format(clauses=text[:1].upper() + text[1:])


def _verdicts(row: Mapping[str, Any]) -> dict[str, str]:
    """`better`, `worse` or `no_difference` of B by kind of score."""
    found = {"strict": row["difference"]["verdict"]}
    if "pass_at_1" in row["difference"]:
        found["pass_at_1"] = row["difference"]["pass_at_1"]["verdict"]
    return found


def problems(row: Mapping[str, Any], words: Mapping[str, str]) -> str:
    """How many problems were compared, and of how many when the sets differ."""
    n, sizes = row["common"], row["n"]
    if all(size == n for size in sizes):
        return words["compare_all"].format(n=count(n))
    return words["compare_common"].format(n=count(n), a=count(sizes[0] or 0), b=count(sizes[1] or 0))


def evidence(found: Mapping[str, Any], words: Mapping[str, str]) -> str:
    """The differences behind the headline; empty when there are none."""
    row = deciding(found)
    if row is None or not row["difference"]:
        return ""
    parts = []
    for name in ("strict", "pass_at_1"):
        if name in row["difference"]["gains"]:
            gain = {key: points(value) for key, value in row["difference"]["gains"][name].items()}
            test = words["v_mcnemar"].format(p=p_value(row["difference"]["p"])) if name == "strict" else ""
            parts.append(words["v_evidence"].format(name=words[f"rate_{name}"], test=test, **gain))
    model = words[f"model_{row['model']}"]
    return " · ".join([words["compare_what"].format(model=model, problems=problems(row, words)), *parts])


def deciding(found: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The row of the set and model that the verdict is about."""
    verdict = found["verdict"]
    rows = [row for one in found["sets"] if one["name"] == verdict["set"] for row in one["models"]]
    return next((row for row in rows if row["model"] == verdict["model"]), None)


def _drawn(chart: Mapping[str, Any], words: Mapping[str, str]) -> dict[str, Any]:
    """Both runs in one chart; the colours are those of A and B elsewhere on the page."""
    title = words[f"chart_{chart['key']}"]
    classes = ["c1" if side == "a" else "c2" for side, _ in chart["lines"]]
    names = [SIDES[side] for side, _ in chart["lines"]]
    unit = words[f"unit_{chart['unit']}"] if chart["unit"] else ""
    lines = [(name, points) for name, (_, points) in zip(names, chart["lines"], strict=True)]
    svg = line_chart(lines, title, words["step"], unit, classes=classes, share=chart["unit"].startswith("share"))
    legend = list(zip(names, classes, strict=True))
    return {"title": title, "note": "", "svg": Markup(svg), "legend": legend}  # noqa: S704 - escaped there
