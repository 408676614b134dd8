"""The command `grpo-pipeline compare`: two runs side by side, in the terminal, as a page and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from flows.console import AsJson, Files, Profile, Sets, configured, out, user_errors
from flows.report_cli import RUN_HELP, Home, Language, located


def compare(
    run_a: Annotated[str, typer.Argument(help=RUN_HELP)],
    run_b: Annotated[str, typer.Argument(help="The other run, named in the same way.")],
    language: Language = None,
    home: Home = None,
    html: Annotated[Path | None, typer.Option(help="Where the page goes; default: <home of A>/reports.")] = None,
    as_json: AsJson = False,
    profile: Profile = "smollm2-135m",
    sets: Sets = None,
    files: Files = None,
) -> None:
    """Compare two runs: what was set differently, scores paired on the same problems, curves and cost."""
    with user_errors():
        from tasks.report.build import words_of
        from tasks.report.compare import compare_runs
        from tasks.report.compare_page import build_comparison, evidence, headline
        from tasks.report.page_file import write_page
        from tasks.report.run_files import open_run

        runs = [open_run(*located(name, home, lambda: configured(profile, files, sets))) for name in (run_a, run_b)]
        found = compare_runs(*runs)
        chosen = language or runs[0].record["config"].get("run", {}).get("language", "en")
        path = html or _default_path(runs[0].home or Path.cwd(), found)
        write_page(path, build_comparison(found, chosen))
        if as_json:
            out.print_json(json.dumps({**_without_points(found), "page": str(path)}, ensure_ascii=False))
            return
        words = words_of(chosen)
        for line in (headline(found, words), evidence(found, words)):
            if line:
                out.print(escape(line), soft_wrap=True)
        for table in tables(found, words):
            out.print(table)
        out.print(escape(str(path)), soft_wrap=True)


def _default_path(home: Path, found: Mapping[str, Any]) -> Path:
    return home / "reports" / f"compare-{found['a']['run_id']}-{found['b']['run_id']}.html"


def _without_points(found: Mapping[str, Any]) -> dict[str, Any]:
    """For machines: everything but the curves, which are in metrics.jsonl."""
    return {key: value for key, value in found.items() if key != "curves"}


def tables(found: Mapping[str, Any], words: Mapping[str, str]) -> list[Table]:
    """Scores, settings that differ, and cost."""
    from tasks.report.formats import count, duration, interval, p_value, percent, points

    scores = Table(words["compare_scores"], "A", "B", "B - A", "McNemar", "n")
    for one in found["sets"]:
        for row in one["models"]:
            for name in ("strict", "pass_at_1"):
                if name not in row["a"] or name not in row["b"]:
                    continue
                place = [one["name"]] if len(found["sets"]) > 1 else []
                label = " ".join([*place, words[f"model_{row['model']}"], words[f"rate_{name}"]])
                rates = [f"{percent(row[side][name]['rate'])} {interval(row[side][name])}" for side in ("a", "b")]
                gain = row["difference"]["gains"].get(name) if row["difference"] else None
                shown = (
                    f"{points(gain['gain'])} [{points(gain['low'])}, {points(gain['high'])}]"
                    if gain
                    else words["not_comparable"]
                )
                p = p_value(row["difference"]["p"]) if gain and name == "strict" else ""
                scores.add_row(*map(escape, (label, *rates, shown, p, str(row["common"]))))
    settings = Table(words["setting"], "A", "B", title=words["compare_settings"])
    for item in found["settings"]:
        values = [
            words["not_set"] if item[side] is None else json.dumps(item[side], ensure_ascii=False)
            for side in ("a", "b")
        ]
        settings.add_row(escape(item["name"]), *map(escape, values), style=None if item["matters"] else "dim")
    units = (words["unit_h"], words["unit_min"], words["unit_s"])
    costs = Table(words["compare_cost"], "A", "B")
    sides = [found[side]["cost"] for side in ("a", "b")]
    costs.add_row(words["time_made"], *(duration(cost["made_s"], units) for cost in sides))
    costs.add_row(words["tokens"], *(count(cost["tokens"]) for cost in sides))
    hours = [cost["gpu_hours_all"] for cost in sides]
    costs.add_row(words["gpu_hours"], *(words["unknown"] if value is None else f"{value:.3f}" for value in hours))
    return [scores, settings, costs] if found["settings"] else [scores, costs]
