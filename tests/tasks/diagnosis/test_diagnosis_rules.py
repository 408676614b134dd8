"""Each rule on logs small enough to work out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pipeline_config.rewards import RewardConfig
from pipeline_config.training import GRPOSettings
from tasks.diagnosis.dead_groups import dead_groups
from tasks.diagnosis.doctor import diagnose_rows
from tasks.diagnosis.outcome_rules import all_correct, all_wrong, extraction_failed, plateau, reward_hacking
from tasks.diagnosis.outcomes import outcome_shares
from tasks.diagnosis.rules import entropy_collapse, kl_explosion, length_collapse, non_finite, truncation_spiral
from tasks.diagnosis.run_info import RewardOutcomes, RunInfo, from_mapping, from_settings
from tasks.diagnosis.series import Run, window
from tasks.errors import DataError

SOUND = RunInfo(rewards={"sound": RewardOutcomes(0.0, 0.25, 1.0)})
WAVE = (0.0, 0.05, -0.04, 0.02, -0.03)


def rows(count: int, every: int = 1, **curves: Any) -> list[dict[str, Any]]:
    """Rows whose values are given as constants, lists, or functions of the row index; `__` in a name stands for `/`."""
    out = []
    for i in range(count):
        row: dict[str, Any] = {"step": (i + 1) * every}
        for name, curve in curves.items():
            row[name.replace("__", "/")] = (
                curve(i) if callable(curve) else curve[i] if isinstance(curve, list) else curve
            )
        out.append(row)
    return out


def healthy(count: int, **more: Any) -> list[dict[str, Any]]:
    base: dict[str, Any] = {
        "reward": lambda i: 0.5 + 0.01 * i + WAVE[i % 5],
        "reward_std": 0.4,
        "frac_reward_zero_std": 0.2,
        "grad_norm": 0.3,
        "entropy": 0.4,
    }
    return rows(count, **{**base, **more})


def with_eval(log: list[dict[str, Any]], accuracy: list[float]) -> list[dict[str, Any]]:
    """Insert evaluations at equal distances, the last after the last row."""
    out, gap = [], len(log) // len(accuracy)
    for i, row in enumerate(log, 1):
        out.append(row)
        if i % gap == 0 and i // gap <= len(accuracy):
            out.append({"step": row["step"], "eval_accuracy": accuracy[i // gap - 1]})
    return out


def test_windows_are_a_fifth() -> None:
    assert [window(n, 10) for n in (2, 5, 20, 40, 200)] == [2, 3, 4, 8, 10]


# Shares of outcomes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mean", "std", "no_match", "right"),
    [
        (-2.0, 0.0, 1.0, 0.0),  # never an answer
        # 1/15 right (5), 14/15 wrong (-2.5): mean -2, variance 7.5^2 * 14/225 = 3.5
        (-2.0, math.sqrt(3.5), 0.0, 1 / 15),
        # half none (-2), half right (5): mean 1.5, deviation 3.5
        (1.5, 3.5, 0.5, 0.5),
        (-2.5, 0.0, 0.0, 0.0),
        (5.0, 0.0, 0.0, 1.0),
    ],
)
def test_mean_and_deviation_tell_the_shares(mean: float, std: float, no_match: float, right: float) -> None:
    log = rows(5, reward=mean, **{"rewards/check_answer/mean": mean, "rewards/check_answer/std": std})
    shares = outcome_shares(Run(log)).recent
    assert shares.no_match == pytest.approx(no_match, abs=1e-9)
    assert shares.correct == pytest.approx(right, abs=1e-9)


def test_a_format_function_tells_no_match_exactly() -> None:
    """-3 without tags and 1.5 with: a mean of -0.75 is half and half."""
    log = rows(5, reward=-0.75, **{"rewards/match_format_approximately/mean": -0.75})
    assert outcome_shares(Run(log)).recent.no_match == pytest.approx(0.5)


def test_published_values_are_not_assumed_outside_their_range() -> None:
    log = rows(5, reward=9.0, **{"rewards/check_answer/mean": 9.0, "rewards/check_answer/std": 1.0})
    assert outcome_shares(Run(log)).recent.no_match is None


# No answer ----------------------------------------------------------------------------------------------------------


def test_five_flat_rows_are_enough() -> None:
    log = rows(
        5,
        reward=-2.0,
        reward_std=0.0,
        frac_reward_zero_std=1.0,
        grad_norm=0.0,
        **{"rewards/check_answer/mean": -2.0, "rewards/check_answer/std": 0.0},
    )
    found = diagnose_rows(log)
    assert (found.verdict, found.onset_step) == ("extraction_failed", 1)
    assert "-2" in found.headline and found.first_step and found.knob
    assert not diagnose_rows(log[:4]).failed and not diagnose_rows(log[:4]).conclusive


def test_undeclared_constant_is_a_failure_not_an_improvement() -> None:
    log = rows(6, reward=-1.0, reward_std=0.0, frac_reward_zero_std=1.0)
    assert diagnose_rows(log).verdict == "extraction_failed"
    assert "plateau" not in [note["name"] for note in diagnose_rows(log).notes]


def test_undeclared_constant_zero_with_hopeless_accuracy_is_all_wrong() -> None:
    log = with_eval(rows(6, reward=0.0, reward_std=0.0, frac_reward_zero_std=1.0), [0.0, 0.01])
    assert diagnose_rows(log).verdict == "all_wrong"


def test_a_reward_that_sees_nothing_while_a_grader_does() -> None:
    log = rows(
        6,
        reward=0.5,
        reward_std=0.0,
        frac_reward_zero_std=1.0,
        outcomes__right=0.4,
        outcomes__wrong=0.55,
        outcomes__no_answer=0.05,
    )
    found = diagnose_rows(log)
    assert found.verdict == "extraction_failed" and "reward function" in found.headline


def test_graded_kinds_add_up_and_name_the_drift() -> None:
    log = rows(
        8,
        reward=0.0,
        reward_std=0.0,
        frac_reward_zero_std=1.0,
        outcomes__right=0.0,
        outcomes__tag_drift=0.8,
        outcomes__no_answer=0.2,
    )
    found = diagnose_rows(log)
    assert found.verdict == "extraction_failed" and found.evidence["outcomes/tag_drift"] == 0.8


def test_cut_completions_are_truncation_not_extraction() -> None:
    log = rows(
        6,
        reward=0.0,
        reward_std=0.0,
        frac_reward_zero_std=1.0,
        completions__clipped_ratio=0.97,
        **{"rewards/sound/mean": 0.0, "rewards/sound/std": 0.0},
    )
    found = diagnose_rows(log, SOUND)
    assert found.verdict == "truncation_spiral"
    assert "extraction_failed" not in [item["name"] for item in found.also]


def test_format_lost_later() -> None:
    log = rows(
        30,
        reward=lambda i: 0.6 if i < 15 else 0.0,
        reward_std=0.3,
        frac_reward_zero_std=0.3,
        **{
            "rewards/sound/mean": lambda i: 0.6 if i < 15 else 0.0,
            "rewards/sound/std": lambda i: 0.42 if i < 15 else 0.0,
        },
    )
    finding = extraction_failed(Run(log, SOUND))
    assert finding.status == "failed" and not finding.from_start and 14 <= finding.onset_row <= 16


# All right, all wrong -----------------------------------------------------------------------------------------------


def sound(right: float, dead: float, count: int = 6) -> list[dict[str, Any]]:
    """Well formed, a share `right` of them right: mean 0.25 + 0.75 r, deviation 0.75 sqrt(r (1 - r))."""
    mean, std = 0.25 + 0.75 * right, 0.75 * math.sqrt(right * (1 - right))
    return rows(
        count,
        reward=mean,
        reward_std=std,
        frac_reward_zero_std=dead,
        **{"rewards/sound/mean": mean, "rewards/sound/std": std},
    )


@pytest.mark.parametrize(
    ("right", "dead", "verdict"),
    [
        (0.98, 0.86, "all_correct"),
        (0.92, 0.75, "all_correct"),
        (0.92, 0.5, "healthy"),
        (0.01, 0.92, "all_wrong"),
        (0.04, 0.72, "healthy"),
        (0.04, 0.9, "all_wrong"),
    ],
)
def test_too_easy_and_too_hard(right: float, dead: float, verdict: str) -> None:
    assert diagnose_rows(sound(right, dead), SOUND).verdict == verdict


def test_a_run_that_learnt_it_all_is_saturated_not_failed() -> None:
    log = [{**row, "step": i} for i, row in enumerate(sound(0.5, 0.1, 20) + sound(0.99, 0.95, 20), 1)]
    found = diagnose_rows(log, SOUND)
    assert found.verdict == "healthy" and "saturated" in [note["name"] for note in found.notes]


def test_what_rose_is_not_said_to_be_so_from_the_start() -> None:
    """A real run on chosen prompts at temperature 0.1: right from 83 to 100 %, 87.6 % in its first three rows."""
    right = (0.828, 0.844, 0.957, 0.984, 0.984, 0.938, 1.0)
    dead = (0.406, 0.531, 0.906, 0.938, 0.969, 1.0, 1.0)
    log = [{**sound(r, d, 1)[0], "step": i} for i, (r, d) in enumerate(zip(right, dead, strict=True), 1)]
    assert "right (87.6% at first)" in diagnose_rows(log, SOUND).headline
    assert "right from the start" in diagnose_rows(sound(0.98, 0.86), SOUND).headline


@pytest.mark.parametrize(("end", "cause"), [("low", "all_wrong"), ("high", "all_correct")])
def test_undeclared_near_one_end(end: str, cause: str) -> None:
    """A share q off the end, d away: mean = end +- q d, deviation d sqrt(q (1 - q)); here d = 3 and q alternates between 0.5 and 3 %."""
    log = []
    for i in range(20):
        q = 0.005 if i % 2 else 0.03
        log.append(
            {
                "step": i + 1,
                "reward": 7 + (3 * q if end == "low" else -3 * q),
                "reward_std": 3 * math.sqrt(q * (1 - q)),
                "frac_reward_zero_std": 0.85,
            }
        )
    assert dead_groups(Run(log)).cause == cause


# Non-finite ---------------------------------------------------------------------------------------------------------


def test_nan_with_nulls_counts_at_once() -> None:
    log = healthy(10, kl=0.01)
    log[9] |= {"grad_norm": math.nan, "kl": None, "entropy": None}
    found = diagnose_rows(log)
    assert (found.verdict, found.onset_step) == ("late_nan", 10)


def test_one_overflow_is_a_note_three_are_not() -> None:
    log = healthy(12)
    log[5]["grad_norm"] = math.inf
    found = diagnose_rows(log)
    assert found.verdict == "healthy" and found.notes[0]["name"] == "non_finite_rows"
    for i in (9, 10, 11):
        log[i]["grad_norm"] = math.nan
    assert non_finite(Run(log)).onset_step == 10
    assert non_finite(Run(log[:11])).status == "note"


def test_in_bf16_one_gradient_is_enough() -> None:
    log = healthy(8)
    log[7]["grad_norm"] = math.nan
    assert non_finite(Run(log)).status == "note"
    assert non_finite(Run(log, RunInfo(fp16=False))).status == "failed"


def test_a_metric_that_turns_null_or_vanishes() -> None:
    log = healthy(12, kl=0.01)
    for i in (9, 10):
        log[i]["kl"] = None
    del log[11]["kl"]
    assert non_finite(Run(log)).status == "failed"
    assert non_finite(Run(healthy(12))).status == "ok"  # never there: nothing is lost


# KL -----------------------------------------------------------------------------------------------------------------


def test_kl_explodes() -> None:
    log = healthy(40, kl=lambda i: 0.005 if i < 20 else 0.005 * 1.5 ** (i - 19), reward=lambda i: 0.5 + WAVE[i % 5])
    found = diagnose_rows(log)
    assert found.verdict == "kl_explosion" and 26 <= (found.onset_step or 0) <= 34


def test_a_reward_that_crashed_with_some_kl_has_run_away() -> None:
    """As a learning rate that is too high, but with a KL term, looks: from 0.62 to 0.29 within ten steps, KL 0.2 to 0.5 since."""
    kl = [0.0, 0.0, 0.02, 0.1, 0.06, 0.31, 0.56, 0.27, 0.46, 0.57, 0.26, 0.24, 0.37]
    reward = [0.49, 0.67, 0.62, 0.48, 0.59, 0.28, 0.3, 0.41, 0.24, 0.31, 0.4, 0.28, 0.3]
    wrecked = healthy(13, kl=lambda i: kl[i], reward=lambda i: reward[i], reward_std=lambda i: 0.37 if i < 5 else 0.25)
    assert diagnose_rows(wrecked).verdict == "kl_explosion"
    learning = healthy(13, kl=lambda i: kl[i], reward=lambda i: reward[0] + 0.02 * i)
    assert diagnose_rows(learning).verdict == "healthy"


def test_kl_that_grows_tenfold_while_learning_is_healthy() -> None:
    found = kl_explosion(Run(healthy(100, kl=lambda i: 0.004 + 0.0004 * i)))
    assert found.status == "ok"


def test_a_single_kl_spike_decides_nothing() -> None:
    log = healthy(40, kl=0.01)
    log[39]["kl"] = 300.0
    assert kl_explosion(Run(log)).status == "ok"


def test_without_kl_it_is_not_measured() -> None:
    found = diagnose_rows(healthy(20))
    assert {"check": "kl_explosion", "missing": "kl is not logged (it is only with beta > 0)"} in found.not_measured
    assert "kl_explosion" not in found.passed


def test_runaway_shows_without_kl() -> None:
    log = healthy(20, reward=lambda i: 0.6 + WAVE[i % 5] if i < 8 else 0.0, entropy=lambda i: 0.1 if i < 8 else 2.5)
    found = diagnose_rows(log)
    assert found.verdict == "kl_explosion" and "not logged" in found.headline


def test_reference_mismatch_is_a_note() -> None:
    found = diagnose_rows(healthy(10, kl=0.16))
    assert "reference_mismatch" in [note["name"] for note in found.notes]


# Length and truncation ----------------------------------------------------------------------------------------------


def test_spiral_into_the_cap() -> None:
    log = healthy(
        40,
        completions__clipped_ratio=lambda i: min(0.9, 0.04 + max(0, i - 15) * 0.05),
        reward=lambda i: 0.8 - max(0, i - 15) * 0.03,
    )
    finding = truncation_spiral(Run(log))
    assert finding.status == "failed" and not finding.from_start and 16 <= finding.onset_row <= 20


def test_learning_to_stop_is_healthy() -> None:
    assert (
        truncation_spiral(Run(healthy(30, completions__clipped_ratio=lambda i: max(0.02, 0.45 - 0.03 * i)))).status
        == "ok"
    )


def length_log(accuracy: list[float]) -> list[dict[str, Any]]:
    log = healthy(40, completions__mean_length=lambda i: 250 if i < 20 else max(40, 250 - 20 * (i - 19)))
    return with_eval(log, accuracy)


def test_length_collapse_needs_harm() -> None:
    assert length_collapse(Run(length_log([0.40, 0.42, 0.41, 0.42, 0.40, 0.30, 0.22, 0.20]))).status == "failed"
    assert length_collapse(Run(length_log([0.40, 0.42, 0.41, 0.42, 0.45, 0.50, 0.55, 0.56]))).status == "note"


def test_shorter_because_fewer_are_cut_is_no_collapse() -> None:
    log = healthy(
        30,
        completions__mean_length=lambda i: 800 - 20 * i,
        completions__clipped_ratio=lambda i: max(0.0, 0.7 - 0.03 * i),
        completions__mean_terminated_length=250,
    )
    assert length_collapse(Run(log)).status == "ok"


# Entropy ------------------------------------------------------------------------------------------------------------


def test_entropy_is_judged_by_its_own_start() -> None:
    assert entropy_collapse(Run(healthy(30, entropy=0.02))).status == "ok"
    log = healthy(30, entropy=lambda i: 0.4 * 0.85**i, frac_reward_zero_std=lambda i: min(0.95, 0.2 + 0.04 * i))
    assert diagnose_rows(log).verdict == "entropy_collapse"


def test_low_entropy_of_a_run_that_is_right_is_a_note() -> None:
    log = [
        {**row, "step": i, "entropy": 0.4 * 0.9**i}
        for i, row in enumerate(sound(0.5, 0.1, 10) + sound(0.97, 0.8, 30), 1)
    ]
    assert entropy_collapse(Run(log, SOUND)).status == "note"


def test_copies_from_the_start() -> None:
    """Half of the answers right, yet 95 % of the groups without spread: independent samples would leave under 1 %."""
    assert diagnose_rows(sound(0.5, 0.95, 10), SOUND).verdict == "entropy_collapse"
    assert diagnose_rows(sound(0.5, 0.6, 10), SOUND).verdict == "healthy"
    cold = RunInfo(rewards=SOUND.rewards, temperature=0.1)
    assert diagnose_rows(sound(0.5, 0.6, 10), cold).verdict == "entropy_collapse"


def test_a_rising_reward_does_not_excuse_a_cap_that_lets_nothing_right_through() -> None:
    """A real run with a cap of 8 tokens: the model learnt to squeeze in an answer, which was wrong, and the reward rose."""
    log = rows(
        12, reward=lambda i: 0.04 + 0.02 * i, reward_std=0.1, completions__clipped_ratio=0.98, outcomes__right=0.01
    )
    assert truncation_spiral(Run(log)).status == "failed"
    half_right = [{**row, "outcomes/right": 0.3} for row in log]
    assert truncation_spiral(Run(half_right)).status == "note"


# Hacking, plateau ---------------------------------------------------------------------------------------------------


def test_reward_up_accuracy_down() -> None:
    log = with_eval(healthy(40, reward=lambda i: 0.2 + 0.02 * i), [0.40, 0.41, 0.42, 0.40, 0.30, 0.20, 0.12, 0.10])
    found = diagnose_rows(log)
    assert found.verdict == "reward_hacking" and found.curve.key == "eval_accuracy"


def test_our_own_held_out_accuracy_is_found_by_its_name() -> None:
    log = with_eval(healthy(40), [0.5, 0.52, 0.5, 0.51, 0.2, 0.2, 0.18, 0.2])
    ours = [{"eval_outcomes/right" if k == "eval_accuracy" else k: v for k, v in row.items()} for row in log]
    found = diagnose_rows([{**row, "eval_reward": 0.5} if "eval_outcomes/right" in row else row for row in ours])
    assert found.verdict == "reward_hacking" and found.curve.key == "eval_outcomes/right"


def test_without_accuracy_the_blind_spot_is_said() -> None:
    finding = reward_hacking(Run(healthy(40)))
    assert finding.status == "not_measured" and "eval_accuracy" in finding.headline


def test_rollouts_graded_by_another_function_do_as_well() -> None:
    log = healthy(
        40,
        reward=lambda i: 0.2 + 0.02 * i,
        outcomes__right=lambda i: 0.5 if i < 20 else max(0.1, 0.5 - 0.04 * (i - 20)),
    )
    assert reward_hacking(Run(log)).status == "failed"


def test_per_cent_is_understood() -> None:
    run = Run(with_eval(healthy(20), [40.0, 42.0]))
    assert run.accuracy.values == (0.40, 0.42)


def test_plateau_is_only_a_note() -> None:
    flat = plateau(Run(healthy(40, reward=lambda i: 0.5 + WAVE[i % 5])))
    assert flat.status == "note"
    looked = plateau(Run(with_eval(healthy(40, reward=lambda i: 0.5 + WAVE[i % 5]), [0.5, 0.5, 0.46, 0.48])))
    assert looked.headline.endswith("held-out accuracy went from 0.46 to 0.48")
    assert plateau(Run(healthy(40))).status == "ok"
    assert plateau(Run(rows(40, reward=1.0))).status == "ok"


# What applies to all ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rule",
    [
        kl_explosion,
        truncation_spiral,
        length_collapse,
        entropy_collapse,
        reward_hacking,
        all_correct,
        all_wrong,
        extraction_failed,
    ],
)
def test_nothing_logged_is_not_measured(rule: Any) -> None:
    assert rule(Run(rows(10, reward=lambda i: 0.1 * i))).status == "not_measured"


def test_info_from_plain_data() -> None:
    info = from_mapping(
        {
            "reward_functions": {"f": {"no_match": -1, "wrong": 0, "correct": 2, "near": 1}},
            "beta": 0.04,
            "max_completion_length": 64,
        }
    )
    assert (
        info.rewards["f"] == RewardOutcomes(-1.0, 0.0, 2.0) and info.beta == 0.04 and info.max_completion_length == 64
    )
    with pytest.raises(DataError, match=r"rewards\.f\.wrong"):
        from_mapping({"rewards": {"f": {"wrong": "x"}}})


def test_info_from_our_settings() -> None:
    settings = GRPOSettings(beta=0.02, temperature=0.9, rewards=RewardConfig(right=2.0, format_weight=0.25))
    info = from_settings(settings)
    assert info.rewards == {"sound": RewardOutcomes(0.0, 0.5, 2.0)}
    assert (info.beta, info.temperature, info.max_completion_length, info.fp16) == (0.02, 0.9, 1024, False)
    assert set(from_settings(GRPOSettings(rewards=RewardConfig(preset="self_llm"))).rewards) >= {
        "check_answer",
        "check_numbers",
    }
