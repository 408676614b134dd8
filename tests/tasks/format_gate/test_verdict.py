"""Each verdict from completions that call for it, its evidence, and the order of causes."""

from __future__ import annotations

from typing import Any

import pytest
from gate_support import CUT, DRIFT, HEDGED, LOOP, LOOSE, NONE, R, Rollout, W, block, measured, rollout

from pipeline_config.gate import GateSettings
from tasks.errors import GateRefused
from tasks.format_gate.verdict import VERDICTS, decide, raise_unless_go

EASY_GATE = GateSettings(min_format_rate=0.0, max_truncation_rate=1.0, max_dead_groups=1.0)
FITS = {"taught_tokens": {"min": 9, "median": 20, "p90": 30, "max": 40}, "max_completion_length": 48}
LONG = {"taught_tokens": {"min": 9, "median": 60, "p90": 90, "max": 120}, "max_completion_length": 48}


def different(answer: str, count: int) -> list[Rollout]:
    return [rollout(block(answer, working=f"try {i}")) for i in range(count)]


MANY_FORMS = [
    rollout(f"5\n<end_working_out>\n{form}5</SOLUTION>") for form in ("<sol>", "<Solution>", "<SOLUTOIN>", "<answer>")
]
RUN_ON = rollout(block("5") + "\n and now the next problem", truncated=True)
OTHER_TURN = rollout(block("5") + "\nuser\nWhat is 3 + 3?", truncated=True)
HIDDEN_TURN = rollout(block("5") + "\n\nWhat is 3 + 3?", other_special=True)
EMPTY = rollout("")
PAID_ALIKE = [rollout(block("5"), reward=0.5), rollout(block("6"), reward=0.5)]


@pytest.mark.parametrize(
    ("groups", "more", "verdict", "evidence"),
    [
        ([[R, W]] * 50, {}, "go", "whole format 100.0% (lower bound 96.3%), pass@1 50.0%, 0% of groups without spread"),
        (
            [[R, DRIFT], [NONE, NONE]] * 25,
            {},
            "more_sft",
            "whole format in 25.0% of 100 completions, 95 % lower bound 17.5%, needed 80%; 75 malformed, mostly no_answer",
        ),
        ([MANY_FORMS] * 25, {}, "more_sft", "mostly tag_drift"),
        # Right answers with text after the closing tag: malformed, though no answer is missing.
        ([[LOOSE, HEDGED]] * 50, {}, "more_sft", "100 malformed, mostly text outside the tags"),
        ([[CUT, NONE]] * 50, FITS, "more_sft", "though the SFT traces fit into it; of the 50 that end in time 0 are well formed"),
        ([[LOOP, R]] * 50, FITS, "more_sft", "50 of them repeat the same piece over and over"),
        ([[DRIFT, DRIFT], [R, DRIFT]] * 25, {}, "fix_tags", "75 completions write '<solution>' for '<SOLUTION>'"),
        (
            [[NONE, NONE]] * 50,
            {"tags_lost_in_decode": ["<SOLUTION>"]},
            "fix_tags",
            "the trainer's decode drops <SOLUTION>",
        ),
        ([[RUN_ON, R]] * 50, FITS, "fix_template", "50 of 50 malformed completions are whole and then go on"),
        ([[OTHER_TURN, R]] * 50, FITS, "fix_template", "hold marks or special tokens of another turn"),
        ([[HIDDEN_TURN, R]] * 50, FITS, "fix_template", "hold marks or special tokens of another turn"),
        ([[EMPTY, R]] * 50, FITS, "fix_template", "are empty"),
        ([[CUT, R], [W, R]] * 25 + [[CUT, W]] * 50, FITS, "raise_max_tokens", "37.5% of 200 completions hit the length limit"),
        ([[CUT, NONE]] * 50, LONG, "raise_max_tokens", "one in ten SFT traces is longer than 90 tokens, the limit is 48"),
        ([different("5", 2)] * 46 + [[R, W]] * 4, {}, "data_too_easy", "92% of groups have equal rewards (allowed 90%) and 92% are all right"),
        ([different("6", 2)] * 48 + [[R, W]] * 2, {}, "data_too_hard", "96% of groups have equal rewards (allowed 90%) and 96% are all wrong"),
        ([[W] * 8] * 24 + [[R] * 8] * 26, {}, "low_diversity", "in 100% the completions are copies of each other (pass@1 52.0%)"),
        ([[R] * 8] * 50, {}, "data_too_easy", "100% are all right"),
        ([PAID_ALIKE] * 50, {}, "fix_rewards", "the rewards pay right and wrong answers alike"),
    ],
)  # fmt: skip
def test_verdicts(groups: list[list[Rollout]], more: dict[str, Any], verdict: str, evidence: str) -> None:
    found = decide(measured(*groups, **more), GateSettings())
    assert found.name == verdict and verdict in VERDICTS
    assert evidence in found.evidence
    assert bool(found.fix) == (verdict != "go")


def test_thresholds_decide_not_the_measurement() -> None:
    m = measured(*[[R, CUT, R, R], [R, W, R, R]] * 20)
    assert decide(m, GateSettings()).name == "go"
    assert decide(m, GateSettings(max_truncation_rate=0.1)).name == "raise_max_tokens"
    assert decide(m, GateSettings(min_format_rate=0.95)).name == "more_sft"
    everything = measured(*[[CUT, CUT], [CUT, NONE]] * 10, **FITS)
    assert decide(everything, EASY_GATE).name == "go"


def test_the_group_size_that_would_serve() -> None:
    """Half of the prompts have one right of four, half none: all of the latter are dead at G = 4. All wrong, no size serves."""
    one = [R, *different("6", 3)]
    some = measured(*[one] * 8, *[different("6", 4)] * 8)
    gate = GateSettings(wanted_dead_groups=0.4)
    assert some["forecast"]["4"]["dead"] == 0.5
    assert "right and wrong alone leave 50% dead, G = 8 would leave" in decide(some, gate).evidence
    hopeless = measured(*[different("6", 4)] * 40)
    assert "even with G = 64" in decide(hopeless, GateSettings()).evidence


def test_refusal_is_an_error_with_a_cause() -> None:
    with pytest.raises(GateRefused) as caught:
        raise_unless_go(decide(measured(*[different("6", 2)] * 50), GateSettings()))
    error = caught.value
    assert (error.cause, error.exit_code, error.retryable) == ("data_too_hard", 20, False)
    assert error.where == "format_gate" and error.fix
    assert raise_unless_go(decide(measured(*[[R, W]] * 50), GateSettings())).startswith("whole format 100.0%")
