"""What the dataset stage says about its tables: counts, reasons, lengths, and the error when rows run out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pipeline_config.sources import AnySource, FileSource, HubSource
from tasks.dataset.pools import Entry, Pools
from tasks.dataset.problem import gold_in_question
from tasks.dataset.sources import label, place_of
from tasks.errors import DataError

Role = Literal["eval", "gate", "train", "sft"]
ROLES: tuple[Role, ...] = ("eval", "gate", "train", "sft")

REASONS = {
    "duplicate": "repeat another question",
    "held_out": "belong to the evaluation by content (data.holdout_share)",
    "not_held_out": "belong to training by content (data.holdout_share)",
    "in_eval": "are in the evaluation",
    "in_gate": "are in the gate",
    "in_train": "are GRPO problems (data.sft_may_repeat_train)",
    "over_max_prompt_tokens": "are longer than data.max_prompt_tokens",
    "over_quantile": "are longer than data.prompt_quantile allows",
    "over_context": "do not fit into the model's context",
    "over_sft_length": "are longer than sft.max_length with closing tag and EOS",
    "gold_self_check": "have a gold that does not grade as right",
    "no_working": "have no worked solution",
    "no_gold": "have no gold",
    "gold_not_numeric": "have a gold that is not a number",
    "conflicting_gold": "have a question that occurs with different golds",
}
_ROWS: dict[Role, str] = {
    "eval": "lower data.eval_rows (and evaluation.problems with it)",
    "gate": "lower data.gate_rows",
    "train": "lower data.train_rows",
    "sft": "lower data.sft_rows",
}
_FIXES = {
    "duplicate": "widen the level or add a source",
    "held_out": "lower data.holdout_share",
    "not_held_out": "raise data.holdout_share",
    "in_eval": "evaluate on another source",
    "in_train": "lower data.train_rows or set data.sft_may_repeat_train",
    "over_max_prompt_tokens": "raise data.max_prompt_tokens",
    "over_quantile": "raise data.prompt_quantile",
    "over_context": "raise model.max_context or allow shorter completions",
    "over_sft_length": "raise sft.max_length (the longest has {longest} tokens) or use shorter traces",
    "gold_not_numeric": "set `golds: any` for the source",
}


@dataclass
class Request:
    """Rows of one source for one table: `count` of them (None: all), the configuration's name of the source, and what
    was dropped on the way. `drawn` counts the items that a generator made, `useful` those that went on towards the table.
    `longest` is the length in tokens of the longest row that was too long for SFT. `fewer` says how to ask for fewer rows; empty: the
    usual setting of the table."""

    role: Role
    source: AnySource
    count: int | None
    name: str
    dropped: Counter[str] = field(default_factory=Counter)
    drawn: int = 0
    useful: int = 0
    longest: int = 0
    fewer: str = ""

    def reading(self, pools: Pools) -> tuple[int, Counter[str]]:
        """Rows read (or items drawn), and those dropped before any table was filled."""
        if not isinstance(self.source, FileSource | HubSource):
            return self.drawn, Counter()
        counts = Counter(pools.counts(self.source))
        return counts.pop("read", 0), counts


def too_few(request: Request, pools: Pools, kept: int) -> DataError:
    """Say how many rows are left, of how many, and why."""
    read, reasons = request.reading(pools)
    reasons.update(request.dropped)
    lost = [f"{n} {REASONS.get(key, key.replace('_', ' '))}" for key, n in reasons.most_common() if n]
    asked = "rows" if request.count is None else f"{request.count} rows"
    fixes = [request.fewer or _fewer(request)] if request.count else []
    fixes += [_FIXES[key].format(longest=request.longest) for key, n in reasons.most_common() if n and key in _FIXES][
        :2
    ]
    return DataError(
        f"{request.role} needs {asked}, but of {read} only {kept} are left: {'; '.join(lost) or 'there are no more'}",
        where=f"{request.name} ({place_of(request.source)})",
        fix=", or ".join(fixes) or "correct the rows or add a source",
    )


def _fewer(request: Request) -> str:
    """How to ask for fewer rows; a file or a data set can also give what it has."""
    whole = isinstance(request.source, FileSource | HubSource) and request.role in ("train", "sft")
    return _ROWS[request.role] + (" (`all` takes what there is)" if whole else "")


def source_report(request: Request, pools: Pools, kept: int) -> dict[str, Any]:
    """Counts of one source for one table."""
    read, reasons = request.reading(pools)
    return {
        "table": request.role,
        "source": request.name,
        "name": label(request.source),
        "asked": "all" if request.count is None else request.count,
        "read": read,
        "dropped_on_reading": _positive(reasons),
        "dropped": _positive(request.dropped),
        "kept": kept,
    }


def summary(tables: Mapping[Role, list[Entry]], reports: list[dict[str, Any]], pools: Pools) -> dict[str, Any]:
    """Rows, unique contents, overlaps and golds in questions per table, and all that was dropped."""
    contents = {role: {digest for digest, _ in rows} for role, rows in tables.items()}
    total: Counter[str] = Counter()
    for report in reports:
        total.update(report["dropped"])
    for counts in pools.all_counts():
        total.update({key: n for key, n in counts.items() if key != "read"})
    return {
        "rows": {role: len(rows) for role, rows in tables.items()},
        "unique": {role: len(found) for role, found in contents.items()},
        "overlap": {f"{a}/{b}": len(contents[a] & contents[b]) for i, a in enumerate(ROLES) for b in ROLES[i + 1 :]},
        "dropped": _positive(total),
        "gold_in_question": {
            role: sum(gold_in_question(problem.gold, problem.question) for _, problem in rows)
            for role, rows in tables.items()
        },
        "sources": reports,
    }


def spread(lengths: Iterable[int]) -> dict[str, int]:
    """Least, median, 90th percentile (nearest rank) and largest of some lengths; empty for none."""
    ordered = sorted(lengths)
    return {
        name: ordered[max(0, math.ceil(q * len(ordered)) - 1)]
        for name, q in (("min", 0.0), ("median", 0.5), ("p90", 0.9), ("max", 1.0))
        if ordered
    }


def _positive(counts: Counter[str]) -> dict[str, int]:
    return {key: n for key, n in sorted(counts.items()) if n}
