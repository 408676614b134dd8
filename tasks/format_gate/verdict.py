"""The gate's one verdict, from what was measured and the thresholds. Acts in the flow: a changed threshold resamples nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pipeline_config.gate import GateSettings
from tasks.contract.kinds import ANSWERED
from tasks.errors import GateRefused
from tasks.format_gate.confusion import systematic
from tasks.format_gate.forecast import serving_size
from tasks.statistics import wilson

GO, MORE_SFT = "go", "more_sft"
VERDICTS = (
    GO,
    MORE_SFT,
    "fix_template",
    "fix_tags",
    "raise_max_tokens",
    "data_too_hard",
    "data_too_easy",
    "low_diversity",
    "fix_rewards",
)
STEPS = "sft.max_steps, or sft.num_train_epochs where it is not set"
"""How long SFT trains, as a setting to turn."""
MASTERED = 0.9
"""pass@1 from which identical completions are what mastery looks like, not a lack of diversity."""
MAJORITY = 0.5
"""A sign in half of the malformed completions (or dead groups) is their common cause."""
SIGNS = {
    "ended_at_once": "are empty: the prompt does not leave the model at the start of an answer",
    "other_turn": "hold marks or special tokens of another turn",
    "run_on": "are whole and then go on to the length limit: the token that ends a turn is not the EOS that sampling waits for",
}


class Verdict(NamedTuple):
    """`name` is one of VERDICTS; `evidence` says what was measured, `fix` what to do (empty for `go`)."""

    name: str
    evidence: str
    fix: str = ""


def decide(m: Mapping[str, Any], gate: GateSettings) -> Verdict:
    """The first verdict that applies.

    Causes come before their consequences: without its tags a completion has no format, a truncated one has none either, and a completion
    without format is wrong.
    """
    cut = m["truncation_rate"] > gate.max_truncation_rate
    if cut or m["format_rate_low"] < gate.min_format_rate:
        return _decode_or_template(m) or (_truncated(m, gate) if cut else _malformed(m, gate))
    if m["dead_groups"] > gate.max_dead_groups:
        return _dead(m, gate)
    return Verdict(
        GO,
        f"whole format {m['format_rate']:.1%} (lower bound {m['format_rate_low']:.1%}), pass@1 {m['pass_at_1']:.1%}, "
        f"{m['dead_groups']:.0%} of groups without spread{_outlook(m, gate)}",
    )


def raise_unless_go(verdict: Verdict) -> str:
    """The evidence of `go`, or GateRefused."""
    if verdict.name != GO:
        raise GateRefused(verdict.evidence, where="format_gate", fix=verdict.fix, cause=verdict.name)
    return verdict.evidence


def _decode_or_template(m: Mapping[str, Any]) -> Verdict | None:
    lost = m.get("tags_lost_in_decode") or []
    if lost:
        return Verdict(
            "fix_tags",
            f"the trainer's decode drops {', '.join(lost)}: these are special tokens, so no reward can ever see them",
            "take them out of the tokenizer's special tokens, or choose other tags in `contract`",
        )
    malformed = round((1 - m["format_rate"]) * m["completions"])
    signs = m.get("signs", {})
    if malformed and sum(signs.values()) >= MAJORITY * malformed:
        worst = max(signs, key=lambda name: int(signs[name]))
        return Verdict(
            "fix_template",
            f"{signs[worst]} of {malformed} malformed completions {SIGNS[worst]}",
            "check model.chat_template: its generation prompt and the token that ends the assistant's turn (tokenizer.eos_token)",
        )
    return None


def _truncated(m: Mapping[str, Any], gate: GateSettings) -> Verdict:
    """More tokens help when what ends in time is well formed, or when the SFT traces themselves are longer than the limit."""
    share = f"{m['truncation_rate']:.1%} of {m['completions']} completions hit the length limit (allowed {gate.max_truncation_rate:.0%})"
    taught = m.get("taught_tokens") or {}
    limit = m.get("max_completion_length")
    if taught and limit and taught["p90"] > limit:
        return Verdict(
            "raise_max_tokens",
            f"{share}; one in ten SFT traces is longer than {taught['p90']} tokens, the limit is {limit}",
            f"set grpo.max_completion_length to {taught['max']} or more, or teach shorter working in SFT",
        )
    cut = round(m["truncation_rate"] * m["completions"])
    if m.get("looping", 0) >= MAJORITY * cut:
        return Verdict(
            MORE_SFT,
            f"{share}; {m['looping']} of them repeat the same piece over and over, so more tokens would not end them",
            f"more SFT ({STEPS}, or data.sft_rows), or a lower grpo.temperature",
        )
    ended = m["completions"] - cut
    formed = min(ended, round(m["format_rate"] * m["completions"]))
    if wilson(formed, ended)[0] >= MAJORITY or not taught:
        return Verdict(
            "raise_max_tokens",
            f"{share}; of the {ended} that end in time {formed} are well formed",
            "raise grpo.max_completion_length, or teach shorter working in SFT",
        )
    return Verdict(
        MORE_SFT,
        f"{share}, though the SFT traces fit into it; of the {ended} that end in time {formed} are well formed",
        f"more SFT ({STEPS}, or data.sft_rows), or a larger grpo.max_completion_length",
    )


def _malformed(m: Mapping[str, Any], gate: GateSettings) -> Verdict:
    malformed = round((1 - m["format_rate"]) * m["completions"])
    rate = (
        f"whole format in {m['format_rate']:.1%} of {m['completions']} completions, 95 % lower bound "
        f"{m['format_rate_low']:.1%}, needed {gate.min_format_rate:.0%}"
    )
    tags = m.get("tags", {})
    found = systematic(tags)
    if found is not None:
        name, form = found
        return Verdict(
            "fix_tags",
            f"{rate}; {form['count']} completions write {form['form']!r} for {tags[name]['tag']!r}, always the same ({form['kind']})",
            "make the contract's tag and the SFT traces agree, and look at how the tokenizer splits and decodes it",
        )
    unreadable = {kind: count for kind, count in m["kinds"].items() if kind not in ANSWERED}
    common = max(unreadable, key=unreadable.__getitem__) if unreadable else "text outside the tags"
    return Verdict(
        MORE_SFT,
        f"{rate}; {malformed} malformed, mostly {common}",
        f"more SFT ({STEPS}; data.sft_rows; gate.max_sft_rounds); gate.json says what is emitted instead of the tags",
    )


def _dead(m: Mapping[str, Any], gate: GateSettings) -> Verdict:
    dead, right, wrong = m["dead_groups"], m["dead_all_right"], m["dead_all_wrong"]
    share = f"{dead:.0%} of groups have equal rewards (allowed {gate.max_dead_groups:.0%})"
    outlook = _outlook(m, gate)
    if right + wrong < MAJORITY * dead:
        return Verdict(
            "fix_rewards",
            f"{share}, but only {right + wrong:.0%} are all right or all wrong: the rewards pay right and wrong answers alike",
            "run `grpo-pipeline reward audit` on the reward functions",
        )
    if m.get("dead_copies", 0.0) >= MAJORITY * dead and m["pass_at_1"] < MASTERED:
        return Verdict(
            "low_diversity",
            f"{share}, and in {m['dead_copies']:.0%} the completions are copies of each other (pass@1 {m['pass_at_1']:.1%})",
            f"raise grpo.temperature, or less SFT ({STEPS}): the model samples one completion per prompt",
        )
    if right >= wrong:
        return Verdict(
            "data_too_easy",
            f"{share} and {right:.0%} are all right{outlook}",
            "harder problems in data.train, or less SFT",
        )
    return Verdict(
        "data_too_hard",
        f"{share} and {wrong:.0%} are all wrong{outlook}",
        "easier problems in data.train, more SFT, or a larger grpo.num_generations",
    )


def _outlook(m: Mapping[str, Any], gate: GateSettings) -> str:
    """Which group size would serve, when the configured one does not."""
    found = m.get("forecast") or {}
    now = found.get(str(m.get("group_size")))
    if now is None or now["dead"] <= gate.wanted_dead_groups:
        return ""
    serving = serving_size(found, gate.wanted_dead_groups)
    largest = max(found, key=int)
    if serving is None:
        return f"; right and wrong alone leave {now['dead']:.0%} dead, and {found[largest]['dead']:.0%} even with G = {largest}"
    return f"; right and wrong alone leave {now['dead']:.0%} dead, G = {serving} would leave {found[str(serving)]['dead']:.0%}"
