"""A run in one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.report.formats import count, p_value, percent, points

Words = Mapping[str, str]
MAX_MESSAGE = 180


def verdict(data: Mapping[str, Any], words: Words) -> str:
    """How the run ended and, if it completed, what GRPO changed."""
    ending = data["ending"]
    if ending["state"] != "completed":
        return _unfinished(ending, data, words)
    found = result(data, words)
    last = ((data.get("record") or {}).get("choice") or {}).get("stop_after")
    stages = len(data["stages"])
    if not found and last:
        return words["v_stopped_after"].format(stages=stages, stage=words.get(f"stage_{last}", last))
    return found or words["v_completed"].format(stages=stages)


def result(data: Mapping[str, Any], words: Words) -> str:
    """What GRPO changed, what changed measurably first; or how good the only model is; empty without scores."""
    pair = _grpo_pair(data)
    rates = {score["model"]: score["rates"] for score in data["scores"]}
    if pair is None:
        return _single(rates, words)
    ways = {name: _way(name, pair) for name in ("strict", "pass_at_1") if name in pair["gains"]}
    clauses: list[str] = []
    for name in sorted(ways, key=lambda name: ways[name] == "same"):
        before, after = (percent(rates[model][name]["rate"]) for model in ("sft", "grpo"))
        place = "next" if clauses else "first"
        clauses.append(words[f"v_{place}_{ways[name]}"].format(name=words[f"v_{name}"], before=before, after=after))
    return words["v_result"].format(clauses=words["v_join"].join(clauses))


def evidence(data: Mapping[str, Any], words: Words) -> str:
    """The differences behind `result`, with their intervals and the test; empty when there is nothing to compare."""
    pair = _grpo_pair(data)
    if pair is None:
        return ""
    parts = []
    for name in ("strict", "pass_at_1"):
        if name in pair["gains"]:
            gain = {key: points(value) for key, value in pair["gains"][name].items()}
            test = words["v_mcnemar"].format(p=p_value(pair["p"])) if name == "strict" else ""
            parts.append(words["v_evidence"].format(name=words[f"rate_{name}"], test=test, **gain))
    return " · ".join([*parts, words["v_n"].format(n=count(pair["n"]))])


def _grpo_pair(data: Mapping[str, Any]) -> Mapping[str, Any] | None:
    pairs = [d for d in data["differences"] if (d["before"], d["after"]) == ("sft", "grpo")]
    return pairs[0] if pairs else None


def _way(name: str, pair: Mapping[str, Any]) -> str:
    """Rose, fell, or neither by the test that belongs to it: McNemar's for strict accuracy, a sign-flip test for pass@1."""
    verdict = pair["verdict"] if name == "strict" else pair["pass_at_1"]["verdict"]
    return {"better": "rose", "worse": "fell"}.get(verdict, "same")


def _single(rates: Mapping[str, Any], words: Words) -> str:
    for model in ("grpo", "sft", "base"):
        rate = rates.get(model, {}).get("strict")
        if rate:
            return words["v_single"].format(
                model=words[f"model_{model}"],
                rate=percent(rate["rate"]),
                low=f"{rate['low'] * 100:.1f}",
                high=percent(rate["high"]),
                n=count(rate["n"]),
            )
    return ""


def _unfinished(ending: Mapping[str, Any], data: Mapping[str, Any], words: Words) -> str:
    error = ending["error"] or {}
    place = words.get(f"in_{ending['stage']}") or words["in_stage"].format(stage=ending["stage"])
    at = ""
    if ending["step"] is not None and ending["steps"]:
        at = words["v_at"].format(step=count(ending["step"]), steps=count(ending["steps"]))
    cause = cause_title(error, words)
    if ending["state"] == "refused" and ending["stage"] == "format_gate":
        return words["v_gate"].format(cause=cause)
    if ending["stage"] is None:
        return words[f"v_{ending['state']}_early"].format(cause=cause)
    return words[f"v_{ending['state']}"].format(place=place, at=at, cause=cause)


def cause_title(error: Mapping[str, Any], words: Words) -> str:
    """What went wrong in the page's language if the cause is known, else the message as it is."""
    cause = str(error.get("cause") or "")
    message = str(error.get("message") or "").partition("\n")[0].rstrip(".")
    message = message if len(message) <= MAX_MESSAGE else message[:MAX_MESSAGE].rstrip() + "…"
    known = words.get(f"cause_{cause.lower()}")
    return known.format(message=message) if known else message or cause
