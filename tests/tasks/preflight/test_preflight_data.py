"""Faults of problems: golds that cannot be matched, answers that do not vary, prompts that do not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline_config.contract import ContractConfig
from pipeline_config.rewards import RewardConfig
from tasks.preflight import data
from tasks.rewards.build import Rewards

Rows = Callable[..., list[dict[str, Any]]]
VARIED = ["1", "2", "3", "4", "5"]


def ids(text: str) -> list[int]:
    return list(range(1 + len(text) // 4))


# -- golds --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gold", ["8", "1,234", "-5", "0", "1/2", r"\frac{1}{2}", "75%", "B", "#### 12"])
def test_golds_that_can_be_read(make_rows: Rows, gold: str) -> None:
    assert data.check_golds(make_rows(gold, "7")).status == "ok"


@pytest.mark.parametrize("gold", ["", "nan", "None", "She has 8 apples and gives 3 of them away"])
def test_a_gold_that_cannot_be_read(make_rows: Rows, gold: str) -> None:
    finding = data.check_golds(make_rows("7", gold))
    assert (finding.name, finding.status) == ("data.golds_parse", "fail")
    assert "1 of 2 golds" in finding.evidence and "(id p1)" in finding.evidence


def test_few_bad_golds_are_a_warning(make_rows: Rows) -> None:
    assert data.check_golds(make_rows(*["7"] * 199, "nan")).status == "warn"
    assert data.check_golds(make_rows(*["7"] * 97, "nan")).status == "fail"


def test_zero_golds(make_rows: Rows) -> None:
    zero, same = data.check_answers(make_rows("0", "0.0", "0", "-0", "0"))
    assert (zero.name, zero.status) == ("data.zero_golds", "fail")
    assert "empty or failed to convert" in zero.evidence
    assert (same.name, same.status) == ("data.constant_answer", "fail")


@pytest.mark.parametrize(
    ("golds", "status"),
    [
        (["7"] * 20, "fail"),
        (["1,234", "1234", "1234.0", "1234"], "fail"),
        (["7"] * 11 + VARIED + VARIED[:4], "warn"),
        (["7"] * 10 + VARIED * 2, "ok"),
        (["yes", "no"] * 4, "ok"),
        (["7"], "ok"),
    ],
)
def test_constant_answers(make_rows: Rows, golds: list[str], status: str) -> None:
    (finding, zero) = data.check_answers(make_rows(*golds))
    assert (finding.name, finding.status) == ("data.constant_answer", status)
    assert zero.status == "ok"


def test_no_problems() -> None:
    assert data.check_answers([])[0].status == "not_measured"


@given(st.integers(-(10**9), 10**9))
def test_spellings_of_an_integer_are_one_answer(number: int) -> None:
    assert (
        data.answer_key(f"{number:,}") == data.answer_key(f"{number}.0") == data.answer_key(str(number)) == str(number)
    )


def test_spellings_of_a_number_that_python_does_not_write_out_are_one_answer() -> None:
    digits = "9" * 5000
    assert data.answer_key(digits) == data.answer_key(f"{digits}.0") != data.answer_key(f"{digits}8")


def test_golds_that_stand_in_the_question(make_rows: Rows) -> None:
    told = make_rows(*[str(i) for i in range(100, 130)])
    told = [{**row, "question": f"{row['question']} (answer: {row['answer']})"} for row in told]
    finding = data.check_copied_golds(told)
    assert (finding.name, finding.status) == ("data.gold_in_prompt", "fail") and "in 30 of 30" in finding.evidence
    half = told[:15] + make_rows(*VARIED * 3)
    assert data.check_copied_golds(half).status == "warn"
    assert data.check_copied_golds(told[:3] + make_rows(*VARIED * 3)).status == "ok"
    letters = make_rows("A", "(B)", question="Which one? {} A: 1, B: 2")
    assert data.check_copied_golds(letters).evidence == "all golds are letters of choices"


# -- repeats ------------------------------------------------------------------------------------------------------


def test_repeats_and_overlap(make_rows: Rows) -> None:
    rows = make_rows(*VARIED)
    tables = {"train": rows[:2], "gate": rows[2:3], "eval": rows[3:], "sft": rows[:1]}
    assert [finding.status for finding in data.check_repeats(tables)] == ["ok", "ok"]
    shouted = {**rows[0], "question": rows[0]["question"].upper()}
    repeated = {**tables, "train": [*rows[:2], shouted]}
    duplicates, overlap = data.check_repeats(repeated)
    assert duplicates.status == "warn" and "1 of 3 training questions" in duplicates.evidence
    assert data.check_repeats(repeated, may_repeat=True)[0].status == "ok"
    leaked = {**tables, "sft": [*rows[:1], rows[4]], "train": [*rows[:2], rows[3]]}
    _, overlap = data.check_repeats(leaked)
    assert (overlap.name, overlap.status) == ("data.overlap", "fail")
    assert "1 in train, 1 in sft" in overlap.evidence


# -- lengths ------------------------------------------------------------------------------------------------------


def test_over_long_prompts() -> None:
    limits = {"train": 64, "gate": 64, "eval": 100}
    assert data.check_lengths({"train": 192, "gate": 10, "eval": 0}, limits, 256).status == "ok"
    finding = data.check_lengths({"train": 193, "gate": 10, "eval": 20}, limits, 256)
    assert (finding.name, finding.status) == ("data.context", "fail")
    assert finding.evidence.endswith("train 193 + 64 = 257")


def test_worked_solutions_that_grpo_would_cut_off() -> None:
    assert data.check_completions([10] * 99 + [65], 64).status == "ok"
    assert data.check_completions([10] * 9 + [65], 64).status == "warn"
    finding = data.check_completions([10, 65, 700], 64)
    assert (finding.name, finding.status) == ("data.completion_length", "fail")
    assert "raise grpo.max_completion_length to 700" in finding.fix
    assert data.check_completions([64], 64).status == "ok"
    assert data.check_completions([], 64).status == "not_measured"


def test_sft_rows_that_are_left_out() -> None:
    assert data.check_examples([128, 5], 128).status == "ok"
    assert data.check_examples([129, 5], 128).status == "warn"
    assert data.check_examples([129, 130], 128).status == "fail"


# -- golds through the run's own rewards --------------------------------------------------------------------------


def gold_rewards(rows: list[dict[str, Any]], rewards: Rewards, contract: ContractConfig, **more: Any) -> Any:
    return data.check_gold_rewards(rows, rewards, contract, ids, **more)


def test_every_gold_gets_the_maximum(
    make_rows: Rows, build: Any, reward_config: Callable[..., RewardConfig], contract: ContractConfig
) -> None:
    rows = make_rows("8", "1,234", "-5", "1/2", r"\sqrt{2}", "B", 7) * 100
    finding = gold_rewards(rows, build(reward_config()), contract)
    assert finding.status == "ok" and finding.evidence == "the golds of 700 rows get the maximum (sound 1)"


def test_the_tutorials_numbers_never_match_a_grouped_gold(
    make_rows: Rows, build: Any, reward_config: Callable[..., RewardConfig], contract: ContractConfig
) -> None:
    finding = gold_rewards(make_rows("8", "1,234"), build(reward_config(preset="self_llm")), contract)
    assert (finding.name, finding.status) == ("data.gold_scores_maximum", "fail")
    assert "'1,234' (id p1): check_numbers gives 0" in finding.evidence
    assert gold_rewards(make_rows("8", "-5"), build(reward_config(preset="self_llm")), contract).status == "ok"


def test_a_gold_that_gives_no_reward_at_all(
    make_rows: Rows, build: Any, reward_config: Callable[..., RewardConfig], contract: ContractConfig
) -> None:
    finding = gold_rewards(make_rows("8", "nan"), build(reward_config()), contract)
    assert finding.status == "fail" and "sound returned None" in finding.evidence


def test_functions_of_ones_own(
    make_rows: Rows, build: Any, reward_config: Callable[..., RewardConfig], contract: ContractConfig
) -> None:
    rows = make_rows("8", "9")
    assert gold_rewards(rows, build(reward_config("exact", maximum=1.0)), contract).status == "ok"
    # The trainer has the column `id` and no column `question`; the check offers exactly that.
    assert gold_rewards(rows, build(reward_config("by_id", maximum=1.0)), contract).status == "ok"
    finding = gold_rewards(rows, build(reward_config("exact", maximum=2.0)), contract)
    assert finding.status == "fail" and "exact gives 1" in finding.evidence
    # Without a declared maximum, different problems may be worth differently.
    finding = gold_rewards(make_rows("8", "12345"), build(reward_config("verbose")), contract)
    assert finding.status == "warn"
    finding = gold_rewards(rows, build(reward_config("raises")), contract)
    assert finding.status == "fail" and "the parser gave up" in finding.evidence


def test_what_was_not_scored_in_time_is_said(
    make_rows: Rows, build: Any, reward_config: Callable[..., RewardConfig], contract: ContractConfig
) -> None:
    rows = make_rows(*["8"] * 600)
    finding = gold_rewards(rows, build(reward_config()), contract, budget_s=0.0)
    assert "the first 256 of 600 rows" in finding.evidence
