"""docs/reliability.md from the trials that are known."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.reliability.kills import STAGES, STOPS_NOTHING
from benchmarks.reliability.overhead import STAGE as MADE
from benchmarks.reliability.results import Results

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"
CHINESE = Path(__file__).with_name("page_zh.md")

HEAD = """# Reliability

[中文](#中文)

What happens to a run when something breaks. Every line was really done, on the `tiny` profile with few steps, a real Prefect
server and a process worker where one is named, up to four trials side by side on a machine with 2 CPU cores that others were using
too: times are upper bounds, not benchmarks. Reproduce or extend with

    python -m benchmarks.reliability --moments 10 --lanes 3     # all; resumable, adds what is missing to reliability.json
    python -m benchmarks.reliability --kinds 4-damage --budget-minutes 8

as root (small disks are mounted) from [`benchmarks/reliability/`](../benchmarks/reliability); figures:
[`benchmarks/reliability.json`](../benchmarks/reliability.json), each with the commit that it was measured on.
**Lost** means: an artifact or a complete checkpoint that was there before is gone or damaged, something half-written was
accepted, a process or a lock was left behind, Prefect never heard that a run had ended, or the next run could not go on.
Trials before commit 4e2c713 (`revision` in the JSON) did not look for processes left over while a run goes on, for ends that Prefect never
hears of, or for checkpoints that vanish between two strikes.
"""

LIMITS = """## What is not made safe

- **Machine and worker lost together.** Prefect keeps the flow run `Running` until its heartbeat is missed: the automation of `ops
  setup` ends it after 150 s. Until then it holds its slot of the work pool, so a pool with one slot waits that long.
- **SIGTERM or kill -9 of the worker alone** does not end its flow, which goes on and reports by itself; only its output is missing
  from the worker's.
- **A run that is ended while the Prefect server is down** leaves no stage behind, but the flow's own process may take a minute more,
  in which Prefect tries to report. Cancelling needs the server.
- **A store that fails for longer than the retries** (by default after 10 s and 50 s) ends the run. What the stage made stays in the
  work directory, and the next run only stores it.
- **Two hosts with one object store** exclude each other only when they store; a stage may be made twice. Without conditional
  writes (`If-None-Match`) the later of two manifests wins; each is whole.
- **The wall clock** decides what `latest` means, which run counts as late, and what `artifacts gc` (the newest of a stage, leftovers,
  its grace for uploads in progress) calls old. Locks, limits of time and stall detection use the monotonic clock.
- **Secrets** are masked in stage output by the *name* of their variable (`*TOKEN`, `*KEY`, `*SECRET`, `*PASSWORD`, `*_PASS`,
  `*_PAT`, `*CREDENTIALS`, `*_DSN`, `*WEBHOOK_URL`, ...) and as passwords in URLs. A secret in a variable of another name, or shorter than 6
  characters, is not recognised. Reward functions run with the stage's environment and rights: they are your code, not a sandbox.
- **Deployment parameters** are stored by Prefect before we see them: a URL with a password in it is refused by the run, but the server has
  it by then.
- **A checkpoint** is protected against damage (sizes and sha256), not against somebody who may write to the work directory.
"""

TITLES = {
    "1-kills": "1. Processes that die",
    "2-cancel": "2. Cancelled from the command line",
    "3-storage": "3. Disks, object stores and the network",
    "4-damage": "4. Damaged files and a clock that jumps",
    "5-load": "5. Many at once, many in a row, many artifacts",
    "6-hostile": "6. Hostile input",
    "7-overhead": "7. What orchestration costs",
}


def write_page(results: Results) -> Path:
    known = defaultdict(list)
    for item in results.trials.values():
        known[item["area"]].append(item)
    parts = [HEAD]
    for area, title in TITLES.items():
        parts.append(f"## {title}\n")
        done = [item for item in known[area] if "error" not in item]
        if not done:
            parts.append("Not run yet.\n")
            continue
        failed = len(known[area]) - len(done)
        parts.append(SECTIONS.get(area, faults_table)(done))
        if failed:
            parts.append(f"{failed} more trials could not be carried out (see `error` in the JSON).\n")
    PAGE.write_text("\n".join([*parts, LIMITS, CHINESE.read_text(encoding="utf-8")]), encoding="utf-8")
    return PAGE


def table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    head = list(head)
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(_cell(value) for value in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ").replace("<home>", "`run.home`").replace("<", "&lt;")


def _lost(items: list[dict[str, Any]]) -> str:
    lost = sorted({text for item in items for text in item["lost"]})
    return f"**{'; '.join(lost)}**" if lost else "nothing"


def _span(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    low, middle, high = min(known), statistics.median(known), max(known)
    return f"{middle:.1f}" if len(known) == 1 else f"{middle:.1f} ({low:.1f} to {high:.1f})"


def faults_table(done: list[dict[str, Any]]) -> str:
    rows = []
    for item in sorted(done, key=lambda item: (item["fault"], item["stage"])):
        what = f"{item['fault']}{', ' + item['stage'] if item['stage'] else ''}"
        rows.append([what, _lost([item]), item["noticed"], item["went_on"]])
    return table(("fault", "lost", "how it was noticed", "how it went on"), rows)


def kills_table(done: list[dict[str, Any]]) -> str:
    by_fault = defaultdict(list)
    for item in done:
        by_fault[item["fault"]].append(item)
    rows = []
    for fault, items in sorted(by_fault.items()):
        moments = [moment for item in items for moment in item["rounds"]]
        counts = dict.fromkeys(STAGES, 0)
        for item in items:
            for moment in item["rounds"]:
                counts[moment.get("stage", item["stage"])] += 1
        # A trial walks through all stages; the first ones were of one stage each.
        results = [result for item in items for result in item.get("results", {"": item.get("same_result")}).values()]
        same = sum(not result["differ"] for result in results)
        alone = sum(moment["by_itself"] or fault in STOPS_NOTHING for moment in moments)
        resumed = sum(bool(result.get("resumed_from_step")) for result in results)
        rows.append(
            [
                fault,
                f"{len(moments)} ({_counts(counts)})",
                _lost(items),
                _span(moment.get("noticed_s") for moment in moments),
                _span(moment.get("again_s") for moment in moments),
                _span(moment["ended_s"] for moment in moments) if fault not in STOPS_NOTHING else "-",
                _span(moment["gone_s"] for moment in moments) if fault not in STOPS_NOTHING else "-",
                f"{alone} by itself, {len(moments) - alone} by the next run; {resumed} from a checkpoint",
                f"{same} of {len(results)}",
            ]
        )
    head = (
        "fault",
        "random moments (at each stage)",
        "lost",
        "told in the run's log after s",
        "at work again by itself after s",
        "flow run ended after s",
        "nothing alive after s",
        "how it went on",
        "stages with the same result as uninterrupted",
    )
    note = (
        "Median (range) over the moments. A moment is uniform over the time that the stage takes without a fault (in most trials of SFT and GRPO: over its "
        "second half, where it trains). A trial strikes in every stage of one chain, up to three times where that ends the stage: a run that is ended is followed by the "
        "next one, which is struck again; one that goes on by itself is struck again as it goes on. (The first trials struck one stage each.) `-`: nothing of the kind, or not while the trial watched. "
        "Where worker and flow are gone, only the automation of `ops setup` ends the flow run, after 150 s; that was waited for once each. Stages: "
        f"{', '.join(STAGES)}; the other two evaluations share the code of `evaluate_grpo`.\n"
    )
    return table(head, rows) + "\n" + note


def _counts(counts: dict[str, int]) -> str:
    """How many at each stage, shortly: the least, and the stages that have more."""
    least = min(counts.values())
    more = ", ".join(f"{stage} {count}" for stage, count in counts.items() if count > least)
    return f"{least} at each{f'; {more}' if more else ''}"


def load_text(done: list[dict[str, Any]]) -> str:
    parts = [table(("what", "wrong", "result"), [[i["fault"], _lost([i]), i["went_on"] or "-"] for i in done])]
    for item in done:
        if "seconds_for" in item:
            rows = [[name, f"{seconds:.2f}"] for name, seconds in item["seconds_for"].items()]
            parts.append(f"A store with {item['artifacts']:,} artifacts:\n\n" + table(("question", "seconds"), rows))
        if "runs_6_to_15" in item:
            names = {
                "seconds": ("seconds a run", 1.0, ".3f"),
                "rss": ("resident memory, MB", 1e6, ".1f"),
                "fds": ("open files", 1.0, ".0f"),
                "files": ("files on disk (records and reports)", 1.0, ".0f"),
                "bytes": ("disk, MB", 1e6, ".1f"),
            }
            both = (item["runs_6_to_15"], item["runs_91_to_100"])
            rows = [
                [name, *(f"{part[key] / unit:{form}}" for part in both)] for key, (name, unit, form) in names.items()
            ]
            parts.append("100 runs in a row, medians:\n\n" + table(("", "runs 6 to 15", "runs 91 to 100"), rows))
        if "most_stages_at_once" in item:
            parts.append(
                f"20 flows took {item['seconds']:.0f} s; at most {item['most_stages_at_once']} stage process at a time.\n"
            )
    return "\n".join(parts)


def overhead_text(done: list[dict[str, Any]]) -> str:
    by_way = defaultdict(list)
    for item in done:
        by_way[item["fault"]].append(item)
    rows = []
    for way, items in sorted(by_way.items()):
        inside = [item.get("inside_s") for item in items]
        rows.append([way, len(items), _span(item["seconds"] for item in items), _span(inside)])
    head = ("way", "runs", "seconds from asking to done: median (range)", "of that inside the run")
    return table(head, rows) + (
        "\n`deployment`: created by the API, taken by a process worker that asks every second, a new process for each run. `direct "
        "calls`: `carry_out` with `tasks.execution.execute`, no Prefect; inside is without the interpreter's start. No other trial ran.\n"
        + _per_stage(by_way)
    )


def _per_stage(by_way: dict[str, list[dict[str, Any]]]) -> str:
    def stage_times(way: str) -> dict[str, list[float]]:
        found: dict[str, list[float]] = defaultdict(list)
        for item in by_way.get(way, []):
            for stage, seconds in item["stages_s"].items():
                found[stage].append(seconds)
        return found

    parts = []
    for what, title in (("cached chain", "reused"), ("one stage", "made")):
        deployed, direct = stage_times(f"{what}: deployment"), stage_times(f"{what}: direct calls")
        rows = []
        for stage, seconds in direct.items():
            if len(deployed.get(stage, ())) and (what == "cached chain" or stage == MADE):
                two = statistics.median(deployed[stage]), statistics.median(seconds)
                rows.append([stage, *(f"{value:.3f}" for value in two), f"{two[0] - two[1]:+.3f}"])
        if rows:
            head = (f"stage, {title}", "deployment", "direct", "added by Prefect")
            parts.append("\nSeconds per stage, medians:\n\n" + table(head, rows))
    return "".join(parts)


SECTIONS = {"1-kills": kills_table, "2-cancel": kills_table, "5-load": load_text, "7-overhead": overhead_text}
