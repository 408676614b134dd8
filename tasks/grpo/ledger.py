"""The dead-group ledger: what every group of rollouts turned out to be, group by group and per prompt. No torch here.

A group whose rewards are all equal teaches nothing; one whose rewards differ though none (or all) of its answers are right teaches form
only, and a policy that gets mostly such groups learns to answer badly (docs/remedies.md). `groups.jsonl` has one line a group tried, in order:

    {"step": 3, "round": 0, "prompt_id": "sum-17", "kind": "all_wrong", "right": 0, "rewards": [...], "used": false}

`step` is the optimizer step (from 1) that the group was sampled for, `round` 0 the draw itself and 1, 2, ... its refills, `used`
whether the trainer got it. The doctor reads this file too (`--groups`). `ledger.jsonl` has one line a prompt.
"""

from __future__ import annotations

import json
import math
import os
import random
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.contract.grading import Grade
from tasks.contract.kinds import ANSWERED, Kind
from tasks.process.jsonio import finite

GROUPS_FILE = "groups.jsonl"
LEDGER_FILE = "ledger.jsonl"

DEAD_KINDS = ("all_wrong", "all_right", "truncated", "unparsable", "equal", "form_only")
"""Why a group is dead: readable and none right; all right; none right and mostly cut off; none right and mostly without an
answer that can be read; rewards that are equal though right and other answers are there; rewards that differ though none or
all are right (dead under the rule `mixed` only)."""
KINDS = ("live", *DEAD_KINDS)
EQUAL = 1e-8
"""Rewards closer than this are equal, as in TRL's own count of groups without spread."""


@dataclass(frozen=True)
class Group:
    """One prompt's rollouts. `kind` is one of KINDS, `right` counts right completions, `rewards` are weighted sums (G of them)."""

    prompt_id: str
    kind: str
    right: int
    rewards: tuple[float, ...]

    @property
    def live(self) -> bool:
        return self.kind == "live"


def group_of(prompt_id: str, rewards: Sequence[float], grades: Sequence[Grade], rule: str = "mixed") -> Group:
    """Name what a group is.

    Args:
        rule: `mixed` or `spread`, see `grpo.live_when`.
        prompt_id: the row's id.
        rewards: weighted sum per completion, NaN where nothing could be scored; length G.
        grades: verdict per completion; length G.
    """
    scored = [reward for reward in rewards if not math.isnan(reward)]
    right = sum(grade.right for grade in grades)
    if scored and max(scored) - min(scored) > EQUAL:
        kind = "live" if rule == "spread" or 0 < right < len(grades) else "form_only"
    else:
        kind = _dead_kind(right, grades)
    return Group(prompt_id, kind, right, tuple(rewards))


def _dead_kind(right: int, grades: Sequence[Grade]) -> str:
    if right == len(grades):
        return "all_right"
    if right:
        return "equal"
    cut = sum(grade.kind is Kind.TRUNCATED for grade in grades)
    unread = sum(grade.kind not in ANSWERED for grade in grades)
    if 2 * cut >= len(grades):
        return "truncated"
    return "unparsable" if 2 * unread >= len(grades) else "all_wrong"


def shares(groups: Sequence[Group]) -> dict[str, float]:
    """`groups/<kind>`: share of each kind, zeros included; they sum to 1."""
    counts = Counter(group.kind for group in groups)
    return {f"groups/{kind}": counts[kind] / max(1, len(groups)) for kind in KINDS}


def append_groups(path: Path, step: int, drawn: Iterable[tuple[int, Group, bool]]) -> None:
    """Add what was tried for one step: (round, group, used)."""
    lines = [
        json.dumps(
            {
                "step": step,
                "round": number,
                "prompt_id": group.prompt_id,
                "kind": group.kind,
                "right": group.right,
                "rewards": [finite(round(value, 6)) for value in group.rewards],
                "used": used,
            },
            ensure_ascii=False,
        )
        for number, group, used in drawn
    ]
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(line + "\n" for line in lines))


def read_groups(path: Path) -> list[dict[str, Any]]:
    """Lines of groups.jsonl; a torn last line is left out, a missing file is no lines."""
    rows: list[dict[str, Any]] = []
    if path.exists():
        for line in path.read_text(encoding="utf-8").split("\n"):
            try:
                rows.append(json.loads(line))
            except ValueError:
                continue
    return rows


def truncate_groups(path: Path, after_step: int) -> None:
    """Drop what was sampled after a checkpoint: a resumed run samples it again."""
    if path.exists():
        kept = [row for row in read_groups(path) if row["step"] <= after_step]
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        part.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in kept), encoding="utf-8")
        os.replace(part, path)


class KnownPrompts:
    """What is known of prompts from the groups tried so far: which to try when a dead group is to be replaced.

    Random fresh prompts are as often dead as the ones they replace, so that a live group costs as many rollouts with refilling as
    without. Prompts whose last group was live are the cheaper choice; then those never tried; those that were dead come last. Among
    equals the ones tried least go first, so that a few early finds are not trained on over and over.
    """

    def __init__(self, rows: Iterable[dict[str, Any]] = ()) -> None:
        self._tries: Counter[str] = Counter()
        self._live: dict[str, bool] = {}
        for row in rows:
            self.add(row["prompt_id"], row["kind"] == "live")

    def add(self, prompt_id: str, live: bool) -> None:
        """One more group was tried."""
        self._tries[prompt_id] += 1
        self._live[prompt_id] = live

    def best(self, ids: Sequence[str], count: int, without: Collection[str], chance: random.Random) -> list[int]:
        """Positions of at most `count` ids to try next; ties are broken by `chance`."""

        def key(at: int) -> tuple[int, int, float]:
            live = self._live.get(ids[at])
            return (1 if live is None else 0 if live else 2, self._tries[ids[at]], chance.random())

        places = [at for at, name in enumerate(ids) if name not in without]
        return sorted(places, key=key)[:count]


def per_prompt(rows: Iterable[dict[str, Any]], set_aside: Iterable[str] = ()) -> list[dict[str, Any]]:
    """One line a prompt, in order of first use: groups by kind, completions, right ones, last step, and whether it was set aside."""
    aside = set(set_aside)
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        name = row["prompt_id"]
        entry = found.setdefault(
            name, {"id": name, "groups": 0, **dict.fromkeys(KINDS, 0), "completions": 0, "right": 0}
        )
        entry["groups"] += 1
        entry[row["kind"]] += 1
        entry["completions"] += len(row["rewards"])
        entry["right"] += row["right"]
        entry["last_step"] = row["step"]
        entry["set_aside"] = name in aside
    return list(found.values())


def write_ledger(path: Path, prompts: Iterable[dict[str, Any]]) -> None:
    """Write ledger.jsonl."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in prompts), encoding="utf-8")


def totals(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What was tried, dropped and refilled in the whole run, for the manifest.

    Returns:
        groups_tried, groups_used, groups_live (used ones that were live), groups_dropped (tried and replaced, or refills that were dead
        themselves), groups_refilled, extra_rollouts (completions beyond the first draws), and `groups_by_kind`.
    """
    refills = [row for row in rows if row["round"] > 0]
    return {
        "groups_tried": len(rows),
        "groups_used": sum(row["used"] for row in rows),
        "groups_live": sum(row["used"] and row["kind"] == "live" for row in rows),
        "groups_dropped": sum(not row["used"] for row in rows),
        "groups_refilled": sum(row["used"] for row in refills),
        "extra_rollouts": sum(len(row["rewards"]) for row in refills),
        "groups_by_kind": {kind: sum(row["kind"] == kind for row in rows) for kind in KINDS},
    }
