"""One self-contained HTML page per run, readable offline: nothing is loaded from anywhere, and nothing could be."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache, partial
from itertools import cycle
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape

from artifacts.store import Store
from tasks.report import formats
from tasks.report.charts import COLOURS, line_chart, share_chart
from tasks.report.collect import collect, collected
from tasks.report.groups import marks
from tasks.report.run_files import RunFiles, open_run
from tasks.report.verdict import evidence, verdict

PAGE = Path(__file__).parent / "page"
LANGUAGES = ("en", "zh")
OUTCOME_CLASSES = {
    "right": "c3",
    "wrong": "c4",
    "truncated": "c2",
    "other": "c6",
    "live": "c1",
    "all_right": "c3",
    "all_wrong": "c4",
    "unparsable": "c5",
    "equal": "c6",
    "form_only": "c7",
}
"""Outcomes that have one colour wherever they are shown; the rest get what is left."""
OTHER_CLASSES = ("c5", "c7", "c8", "c1", "c6")


@cache
def words_of(language: str) -> dict[str, str]:
    """The report's words in English (`en`) or Chinese (`zh`); KeyError for another language."""
    if language not in LANGUAGES:
        raise KeyError(language)
    words: dict[str, str] = json.loads((PAGE / f"{language}.json").read_text(encoding="utf-8"))
    return words


def build_report(record: Mapping[str, Any], store: Store, language: str = "en", home: Path | None = None) -> str:
    """HTML of a run's report, in English (`en`) or Chinese (`zh`). `home` is `run.home` of the run."""
    return page_of(open_run(record, store, home), language)


def page_of(run: RunFiles, language: str = "en") -> str:
    """`build_report` for a run whose files are known."""
    words, data, config = words_of(language), collected(run), run.record["config"]
    return render(
        "report.html",
        language,
        contract=config.get("contract") or {},
        **data,
        figures=[drawn(chart, words, marks(data["remedies"])) for chart in data["charts"]],
        verdict=verdict(data, words),
        evidence=evidence(data, words),
        config_text=yaml.safe_dump(config, sort_keys=False, allow_unicode=True),
    )


def summary(record: Mapping[str, Any], store: Store, language: str = "en") -> list[str]:
    """The run in a few lines for the terminal: the verdict, the scores, and where the GGUF files are."""
    words, data = words_of(language), collect(record, store)
    lines = [line for line in (verdict(data, words), evidence(data, words)) if line]
    for score in data["scores"]:
        for name in ("strict", "pass_at_1"):
            rate = score["rates"].get(name)
            if rate:
                model = words[f"model_{score['model']}"]
                shown = f"{formats.percent(rate['rate'])} {formats.interval(rate)}, n = {formats.count(rate['n'])}"
                lines.append(f"{model:<5} {words['rate_' + name]}: {shown}")
    return lines + [
        f"{item['stage']}: {Path(item['folder']) / item['name']} ({formats.size(item['bytes'])})"
        for item in data["files"]
    ]


def render(template: str, language: str, **values: Any) -> str:
    """A page from one of the templates in `page/`, which share style sheet, script and macros."""
    words = words_of(language)
    environment = Environment(
        loader=FileSystemLoader(PAGE),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        percent=formats.percent,
        interval=formats.interval,
        points=formats.points,
        p_value=formats.p_value,
        count=formats.count,
        size=formats.size,
        moment=formats.moment,
        duration=partial(formats.duration, units=(words["unit_h"], words["unit_min"], words["unit_s"])),
        tagged=tagged,
        outcome_class=outcome_class,
        outcome_classes=outcome_classes,
        base64=lambda text: base64.b64encode(text.encode("utf-8")).decode("ascii"),
    )
    script = (PAGE / "chart.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    page = environment.get_template(template)
    # No markup of a model's or a data set's can come alive: only the script with this digest may run.
    return page.render(
        **values,
        w=words,
        language=language,
        style=Markup((PAGE / "style.css").read_text(encoding="utf-8")),  # noqa: S704 - a file of ours
        script=Markup(script),  # noqa: S704 - a file of ours
        policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
    )


def drawn(
    chart: Mapping[str, Any], words: Mapping[str, str], marked: Sequence[tuple[float, str]] = ()
) -> dict[str, Any]:
    """A chart with its picture: key, title, note and unit in words, svg, legend of (label, class).

    `marked` are the steps at which a remedy took effect; they belong into the charts of GRPO.
    """
    key = chart["key"]
    title = words[f"chart_{key}"]
    unit = words.get(f"unit_{chart['unit']}", "") if chart["unit"] else ""
    x_name = words["step"]
    if chart["kind"] == "shares":
        prefix = "kind_" if key == "outcomes" else "group_"
        names = [words.get(prefix + name, name) for name, _ in chart["lines"]]
        classes = outcome_classes([name for name, _ in chart["lines"]])
        lines = [(name, points) for name, (_, points) in zip(names, chart["lines"], strict=True)]
        svg = share_chart(lines, title, x_name, unit, classes, marked)
    else:
        names = [words.get(f"line_{name}", name) for name, _ in chart["lines"]]
        classes = [f"c{i % COLOURS + 1}" for i in range(len(names))]
        lines = [(name, points) for name, (_, points) in zip(names, chart["lines"], strict=True)]
        svg = line_chart(
            lines,
            title,
            x_name,
            unit,
            classes=classes,
            band=chart.get("band", ()),
            smooth=chart.get("smooth", ()),
            marks=() if key.startswith("sft") else marked,
            share=chart["unit"].startswith("share"),
        )
    legend = list(zip(names, classes, strict=True)) if len(names) > 1 else []
    note = words["band_note"] if chart.get("band") else words["smooth_note"] if chart.get("smooth") else ""
    return {"key": key, "title": title, "note": note, "svg": Markup(svg), "legend": legend}  # noqa: S704 - escaped there


def outcome_classes(kinds: list[str]) -> list[str]:
    """A colour class per outcome: fixed for the common ones, from what is left for the others; of up to 8, none has that of another."""
    fixed = {OUTCOME_CLASSES[kind] for kind in kinds if kind in OUTCOME_CLASSES}
    rest = cycle([name for name in OTHER_CLASSES if name not in fixed] or OTHER_CLASSES)
    return [OUTCOME_CLASSES.get(kind) or next(rest) for kind in kinds]


def outcome_class(kind: str) -> str:
    """Good, bad or neither, for the pill of a completion."""
    return "good" if kind == "right" else "bad" if kind in ("wrong", "truncated") else "warn"


def tagged(text: str, contract: Mapping[str, Any]) -> Markup:
    """Escaped text in which the contract's tags are marked."""
    names = ("reasoning_start", "reasoning_end", "answer_start", "answer_end")
    tags = [re.escape(str(escape(str(contract[name])))) for name in names if contract.get(name)]
    shown = str(escape(text))
    if tags:
        shown = re.sub("|".join(tags), lambda match: f'<span class="tag">{match[0]}</span>', shown)
    return Markup(shown)  # noqa: S704 - escaped above
