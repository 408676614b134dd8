"""Curves and samples of SFT and GRPO, from metrics.jsonl and rollouts.jsonl."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.report.run_files import RunFiles, having, number, series

MAX_SAMPLES = 6
MAX_SHARES = 6
"""Outcomes with a colour of their own; rarer ones are added up as `other`."""
SMOOTH_FROM, SMOOTH_SHARE = 40, 20
"""A curve of this many points also gets a moving mean over a 20th of them."""

Points = list[tuple[float, float]]
Rows = Sequence[Mapping[str, Any]]


def curves(sft: Rows, grpo: Rows) -> list[dict[str, Any]]:
    """Charts in reading order; one without two points is left out.

    Each has `key`, `kind` (`lines` or `shares`), `lines` ((label key, points)), `unit` (of y) and, where there is one, a
    `band` (low and high points around the first line).
    """
    components = sorted({key for row in grpo for key in row if key.startswith("rewards/") and key.endswith("/mean")})
    charts = [
        _reward(grpo),
        _lines(
            "components",
            grpo,
            [(key.split("/")[1], key) for key in components] if len(components) > 1 else [],
            unit="reward",
        ),
        _shares("outcomes", grpo, "share_completions", first="right"),
        _shares("groups", grpo, "share_groups", first="live"),
        _lines("dead_groups", grpo, [("", "frac_reward_zero_std")], unit="share_groups"),
        _lines("kl", grpo, [("", "kl")], unit="nats"),
        _lines("entropy", grpo, [("", "entropy")], unit="nats"),
        _lines(
            "length",
            grpo,
            [(name, f"completions/{name}_length") for name in ("mean", "min", "max")],
            unit="tokens",
        ),
        _lines("truncation", grpo, [("", "completions/clipped_ratio")], unit="share_completions"),
        _lines("grad_norm", grpo, [("", "grad_norm")]),
        _lines("learning_rate", grpo, [("", "learning_rate")]),
        _lines("step_time", grpo, [("", "step_time")], unit="seconds"),
        _lines("sft_loss", sft, [("", "loss")], unit="nats"),
        _lines("sft_accuracy", sft, [("", "mean_token_accuracy")], unit="share_tokens"),
    ]
    return [chart for chart in charts if chart]


def not_measured(charts: Sequence[Mapping[str, Any]], rows: Rows, config: Mapping[str, Any]) -> list[str]:
    """Curves that a reader may look for and that this run did not log, as keys of the report's words."""
    there = {chart["key"] for chart in charts}
    missing = []
    if rows and "kl" not in there:
        missing.append("no_kl_beta" if not config.get("grpo", {}).get("beta") else "no_kl")
    return missing


def _lines(key: str, rows: Rows, names: Sequence[tuple[str, str]], unit: str = "") -> dict[str, Any] | None:
    lines = [(label, points) for label, name in names if len(points := series(rows, name)) >= 2]
    if not lines or (len(lines) == 1 and len(names) > 1):
        return None
    chart: dict[str, Any] = {"key": key, "kind": "lines", "unit": unit, "lines": lines}
    if len(lines) == 1 and len(lines[0][1]) >= SMOOTH_FROM:
        chart["smooth"] = moving_mean(lines[0][1])
    return chart


def _reward(rows: Rows) -> dict[str, Any] | None:
    chart = _lines("reward", rows, [("", "reward")], unit="reward")
    if chart:
        spread = dict(series(rows, "reward_std"))
        points = [(x, y, spread[x]) for x, y in chart["lines"][0][1] if x in spread]
        if len(points) >= 2:
            chart["band"] = [(x, y - s, y + s) for x, y, s in points]
    return chart


def _shares(key: str, rows: Rows, unit: str, first: str) -> dict[str, Any] | None:
    """Shares that add up to one, logged as `<key>/<kind>`: `first`, then by how often they occur."""
    kinds = {name.removeprefix(f"{key}/") for row in rows for name in row if name.startswith(f"{key}/")}
    found = {kind: dict(series(rows, f"{key}/{kind}")) for kind in kinds}
    steps = sorted({x for points in found.values() for x in points})
    if len(steps) < 2:
        return None
    total = {kind: sum(points.values()) for kind, points in found.items()}
    ranked = sorted((kind for kind in kinds if total[kind] > 0), key=lambda kind: (kind != first, -total[kind], kind))
    shown, rest = ranked[:MAX_SHARES], ranked[MAX_SHARES:]
    lines = [(kind, [(x, found[kind].get(x, 0.0)) for x in steps]) for kind in shown]
    if rest:
        lines.append(("other", [(x, sum(found[kind].get(x, 0.0) for kind in rest)) for x in steps]))
    return {"key": key, "kind": "shares", "unit": unit, "lines": lines} if lines else None


def moving_mean(points: Points) -> Points:
    """Mean over a centred window of about a 20th of the points, narrower at both ends."""
    half = max(1, len(points) // SMOOTH_SHARE // 2)
    smooth = []
    for i, (x, _) in enumerate(points):
        part = points[max(0, i - half) : i + half + 1]
        smooth.append((x, sum(y for _, y in part) / len(part)))
    return smooth


def rollouts(run: RunFiles) -> list[dict[str, Any]]:
    """A few sampled completions, evenly over the training, none twice. `step` is the one they were sampled for, from 1 as in the curves
    (the file has the steps done before it); None where it is not known."""
    rows = having(run.rows("grpo", "rollouts.jsonl"), "step", "question", "answer", "completion", "reward")
    different = {(str(row["step"]), str(row["question"]), str(row["completion"])): row for row in rows}
    rows = [
        {**row, "step": None if (done := number(row["step"])) is None else int(done) + 1} for row in different.values()
    ]
    if len(rows) <= MAX_SAMPLES:
        return rows
    return [rows[round(i * (len(rows) - 1) / (MAX_SAMPLES - 1))] for i in range(MAX_SAMPLES)]


def ended_early(run: RunFiles) -> dict[str, int] | None:
    """Optimizer steps of a GRPO stage that is done (`done`) and those asked for (`asked`), where it ended before them; else None."""
    done, asked = (
        number(run.metrics("grpo").get("steps")),
        number(run.record["config"].get("grpo", {}).get("max_steps")),
    )
    return {"done": int(done), "asked": int(asked)} if done is not None and asked is not None and done < asked else None


def checkpoint_choice(run: RunFiles) -> dict[str, Any] | None:
    """Which checkpoint was kept and what the others scored on held-out problems; None when none was chosen."""
    found = run.json("grpo", "checkpoints.json")
    if not isinstance(found, Mapping) or number(found.get("chosen")) is None:
        return None
    rows = found.get("candidates")
    candidates = [
        {
            "step": int(step),
            "chosen": step == found["chosen"],
            "rate": {key: number(row.get(key)) for key in ("rate", "low", "high")}
            if number(row.get("rate")) is not None
            else None,
            "failure": str(row.get("failure", "")),
        }
        for row in (rows if isinstance(rows, list) else ())
        if isinstance(row, Mapping) and (step := number(row.get("step"))) is not None
    ]
    return {"chosen": int(found["chosen"]), "reason": str(found.get("reason", "")), "candidates": candidates}


def last_value(rows: Rows, key: str) -> float | None:
    """The last finite value of a metric."""
    return next((value for row in reversed(rows) if (value := number(row.get(key))) is not None), None)
