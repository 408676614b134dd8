"""One self-contained HTML file per run, readable offline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from artifacts.store import Store
from tasks.report.collect import collect
from tasks.report.svg import COLOURS, line_chart
from tasks.report.words import WORDS


def verdict(data: dict[str, Any], words: dict[str, str]) -> str:
    """The run in one sentence: how it ended, and what GRPO changed."""
    record = data["record"]
    if record["status"] != "completed":
        error = record.get("error") or {}
        return f"{words['stopped']}: {error.get('cause', record['status'])}. {error.get('message', '')}"
    scores = {score["name"]: score["strict"] for score in data["scores"]}
    if "SFT" not in scores or "GRPO" not in scores:
        return words["completed"]
    pair = next((c for c in data["comparisons"] if c["name"] == "SFT → GRPO"), None)
    gain = scores["GRPO"]["rate"] - scores["SFT"]["rate"]
    text = words["result"].format(
        sft=f"{scores['SFT']['rate']:.1%}",
        grpo=f"{scores['GRPO']['rate']:.1%}",
        gain=f"{gain * 100:+.1f}",
        n=scores["GRPO"]["n"],
    )
    if pair and pair["n"]:
        text += " " + words["significant" if pair["p"] < 0.05 else "not_significant"].format(p=f"{pair['p']:.2g}")
    return text


def summary(record: dict[str, Any], store: Store, language: str = "en") -> list[str]:
    """The run in a few lines for the terminal: the verdict, the scores, and where the GGUF files are."""
    words, data = WORDS[language], collect(record, store)
    lines = [verdict(data, words)]
    for score in data["scores"]:
        rate = score["strict"]
        lines.append(
            f"{score['name']:<5} {words['strict']}: {rate['rate']:.1%} [{rate['low']:.1%}, {rate['high']:.1%}], n = {rate['n']}"
        )
    return lines + [f"{item['stage']}: {item['path']} ({item['mb']:.1f} MB)" for item in data["files"]]


def build_report(record: dict[str, Any], store: Store, language: str = "en", work: Path | None = None) -> str:
    """HTML of a run's report, in English (`en`) or Chinese (`zh`)."""
    words = WORDS[language]
    data = collect(record, store, work)
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    charts = [
        {
            "title": words["chart_" + chart["title"]],
            "svg": Markup(line_chart(chart["lines"], words["chart_" + chart["title"]])),  # noqa: S704 - numbers and escaped text
            "legend": [(label, COLOURS[i % len(COLOURS)]) for i, (label, _) in enumerate(chart["lines"])],
        }
        for chart in data["curves"]
    ]
    return environment.get_template("template.html").render(
        **data,
        w=words,
        language=language,
        charts=charts,
        verdict=verdict(data, words),
        config_text=yaml.safe_dump(record["config"], sort_keys=False, allow_unicode=True),
    )
