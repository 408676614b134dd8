"""What became of groups that teach nothing, and which remedies a run took, for the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tasks.grpo.ledger import KINDS
from tasks.report.run_files import RunFiles, having, number


def groups_of(run: RunFiles) -> dict[str, Any] | None:
    """The dead-group ledger in numbers; None for a run without one.

    Returns:
        `tried`, `used`, `live` (used ones of that kind), `dropped`, `refilled`, `extra_rollouts`, `kinds` (kind, groups), and of
        the prompts: `prompts` (tried at all), `never_live` (tried more than once and dead each time), `set_aside`.
    """
    rows = having(run.rows("grpo", "groups.jsonl"), "kind", "used", "round", "rewards", "prompt_id")
    if not rows:
        return None
    refills = [row for row in rows if row["round"]]
    kinds = Counter(str(row["kind"]) for row in rows)
    tries, live = Counter(str(row["prompt_id"]) for row in rows), {r["prompt_id"] for r in rows if r["kind"] == "live"}
    return {
        "tried": len(rows),
        "used": sum(bool(row["used"]) for row in rows),
        "live": sum(bool(row["used"]) and row["kind"] == "live" for row in rows),
        "dropped": sum(not row["used"] for row in rows),
        "refilled": sum(bool(row["used"]) for row in refills),
        "extra_rollouts": sum(len(row["rewards"]) for row in refills if isinstance(row["rewards"], list)),
        "kinds": [(kind, kinds[kind]) for kind in KINDS if kinds[kind]],
        "prompts": len(tries),
        "never_live": sum(count > 1 and name not in live for name, count in tries.items()),
        "set_aside": sum(bool(row.get("set_aside")) for row in run.rows("grpo", "ledger.jsonl")),
    }


def remedies_of(run: RunFiles) -> list[dict[str, Any]]:
    """The remedies that GRPO took, in order: why, what was changed, where it went on from."""
    data = run.json("grpo", "remedies.json")
    steps = data.get("steps") if isinstance(data, Mapping) else None
    return [
        _step(step)
        for step in (steps if isinstance(steps, list) else ())
        if isinstance(step, Mapping) and "rung" in step
    ]


def _step(step: Mapping[str, Any]) -> dict[str, Any]:
    changes = step.get("changes")
    aside = step.get("set_aside")
    return {
        "rung": str(step["rung"]),
        "because": str(step.get("because", "")),
        "headline": str(step.get("headline", "")),
        "at_step": number(step.get("at_step")),
        "start": step.get("start"),
        "resumed_from": number(step.get("resumed_from")),
        "changes": [
            (str(name), pair[0], pair[1])
            for name, pair in (changes.items() if isinstance(changes, Mapping) else ())
            if isinstance(pair, Sequence) and len(pair) == 2 and None not in map(number, pair)
        ],
        "set_aside": len(aside) if isinstance(aside, Sequence) else 0,
    }


def marks(remedies: Sequence[Mapping[str, Any]]) -> list[tuple[float, str]]:
    """(step, number) at which each remedy took effect: where the run went on from."""
    found = []
    for i, step in enumerate(remedies, 1):
        at = step["at_step"] if step["start"] == "here" else step["resumed_from"]
        if at is not None:
            found.append((float(at), str(i)))
    return found


def selection_of(run: RunFiles) -> dict[str, Any] | None:
    """Which training prompts were kept by their pass rate: histograms before and after, reasons, the band; None without one."""
    found = run.metrics("selection")
    before, after = (_counts(found.get(f"prompts_by_right_{when}")) for when in ("before", "after"))
    samples = number(found.get("samples"))
    if not samples or not before or len(before) != len(after):
        return None
    labels = [f"{i}/{int(samples)}" for i in range(len(before))]
    return {**found, "before": before, "after": after, "samples": int(samples), "labels": labels}


def _counts(value: Any) -> list[int]:
    counts = [number(item) for item in value] if isinstance(value, list) else []
    return [] if None in counts else [int(count) for count in counts if count is not None]
