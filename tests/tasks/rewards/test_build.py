from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline_config.contract import ContractConfig
from pipeline_config.rewards import RewardConfig
from tasks.contract.kinds import Kind
from tasks.errors import ConfigError, RunStopped
from tasks.rewards.build import Rewards, build_rewards
from tasks.rewards.guard import ErrorLog
from tasks.rewards.outcomes import outcome_shares

Build = Callable[..., Rewards]


def scores(rewards: Rewards, arguments: dict[str, Any]) -> list[list[float | None]]:
    """As TRL calls them: each function with the same arguments."""
    return [function(**arguments) for function in rewards.functions]


def test_functions_and_weights_in_order_with_their_names(build: Build) -> None:
    rewards = build("length", preset="self_llm", options={"weight": 0.1, "maximum": 9.0})
    functions, weights = rewards
    names = ["match_format_approximately", "check_answer", "check_numbers", "length"]
    assert [function.__name__ for function in functions] == [spec.name for spec in rewards.specs] == names
    assert weights == [1.0, 1.0, 1.0, 0.1]
    assert [spec.maximum for spec in rewards.specs] == [1.5, 5.0, 3.5, 9.0]
    assert rewards.specs[3].function is functions[3]


def test_outcome_shares_and_errors_are_logged_once_per_batch(
    build: Build, batch: Any, write: Callable[..., str]
) -> None:
    rewards = build(preset="self_llm")
    made = batch([write("8"), write("9"), write("8 or 9"), "no tags"])
    calls: list[str] = []
    made.arguments["log_metric"] = lambda name, value: (calls.append(name), made.metrics.__setitem__(name, value))
    scores(rewards, made.arguments)
    assert len(calls) == len(set(calls))
    shares = {name: value for name, value in made.metrics.items() if name.startswith("outcomes/")}
    assert set(shares) == {f"outcomes/{kind}" for kind in Kind} | {"outcomes/error"}
    assert {name: value for name, value in shares.items() if value} == {
        "outcomes/right": 0.25, "outcomes/wrong": 0.25, "outcomes/hedged": 0.25, "outcomes/no_answer": 0.25,
    }  # fmt: skip
    assert made.metrics["reward_errors/check_answer"] == 0.0
    assert made.extras["grade"] == ["right", "wrong", "hedged", "no_answer"]


def test_truncated_completions_are_counted(build: Build, batch: Any, write: Callable[..., str]) -> None:
    made = batch(["so so so", "so so so", write("8")])
    made.arguments["completion_ids"] = [[1] * 100, [1] * 99, [1] * 100]
    scores(build(preset="sound"), made.arguments)
    assert made.extras["grade"] == ["truncated", "no_answer", "right"]


def test_no_grades_still_gives_every_name() -> None:
    assert set(outcome_shares([], [])) == {f"outcomes/{kind}" for kind in Kind} | {"outcomes/error"}


def test_a_row_that_one_function_fails_on_is_none_in_all(build: Build, batch: Any, write: Callable[..., str]) -> None:
    rewards = build("raises_on_bad", preset="sound")
    made = batch([write("8"), write("9") + " bad", write("9")])
    assert scores(rewards, made.arguments) == [[1.0, None, 0.25], [1.0, None, 1.0]]
    assert made.metrics["reward_errors/raises_on_bad"] == made.metrics["outcomes/error"] == pytest.approx(1 / 3)
    assert made.metrics["mine/rows"] == 2.0


def test_a_function_of_weight_0_voids_nothing(build: Build, batch: Any, write: Callable[..., str]) -> None:
    rewards = build("raises", preset="sound", options={"weight": 0.0})
    assert scores(rewards, batch([write("8")]).arguments) == [[1.0], [None]]


def test_each_batch_is_evaluated_once_and_a_new_one_anew(build: Build, batch: Any, write: Callable[..., str]) -> None:
    rewards = build("length", preset="sound")
    first, second = batch([write("8")]).arguments, batch([write("9")]).arguments
    counted: list[int] = []
    evaluate = rewards.evaluate
    rewards.evaluate = lambda offered: (counted.append(1), evaluate(offered))[1]  # type: ignore[method-assign]
    assert scores(rewards, first)[0] == [1.0] and len(counted) == 1
    assert scores(rewards, first)[0] == [1.0] and len(counted) == 2  # the same texts in the next step
    assert scores(rewards, second)[0] == [0.25] and len(counted) == 3
    assert rewards.functions[1](**first) == [float(len(write("8")))] and len(counted) == 4  # alone
    equal = {**first, "completions": list(first["completions"])}
    assert rewards.functions[0](**equal) == [1.0] and len(counted) == 4  # equal lists are the same batch


def test_failing_samples_are_saved(build: Build, batch: Any, tmp_path: Path) -> None:
    rewards = build("raises_on_bad")
    scores(rewards, batch(["fine", "bad " * 3000]).arguments)
    (row,) = [json.loads(line) for line in (tmp_path / "reward_errors.jsonl").read_text().splitlines()]
    assert (row["function"], row["step"], row["gold"]) == ("raises_on_bad", 7, "8")
    assert row["prompt"] == "What is 3 + 5?" and "ZeroDivisionError" in row["error"]
    assert len(row["completion"]) < 5000 and "characters left out" in row["completion"]


def test_the_file_of_samples_is_capped(tmp_path: Path, batch: Any) -> None:
    log = ErrorLog("f", 1.0, tmp_path / "errors.jsonl")
    arguments = batch(["x" * 4000] * 64).arguments
    for _ in range(30):
        log.record(arguments, dict.fromkeys(range(64), "raised"))
    size = (tmp_path / "errors.jsonl").stat().st_size
    assert 4_000_000 < size <= 4 << 20


def test_the_run_stops_above_the_error_rate_with_the_sample(build: Build, batch: Any) -> None:
    rewards = build("raises", max_error_rate=0.5)
    for _ in range(7):
        scores(rewards, batch(["one", "two"] * 4).arguments)  # 56 completions: not enough to judge
    with pytest.raises(RunStopped) as caught:
        scores(rewards, batch(["one", "two"] * 4, step=9).arguments)
    message = str(caught.value)
    assert "step 9" in message and "'raises' failed on 100% of the last 64 completions (limit 50%)" in message
    assert "the parser gave up" in message and "completion: 'two'" in message and "What is 3 + 5?" in message
    assert "gold: '8'" in message and "reward_errors.jsonl" in message
    assert caught.value.cause == "reward_errors" and caught.value.exit_code == 21


def test_the_run_goes_on_below_the_error_rate(batch: Any) -> None:
    log = ErrorLog("f", 0.1, None)
    for _ in range(100):
        log.record(batch(["a"] * 16).arguments, {3: "raised"})  # 6 %
    with pytest.raises(RunStopped):
        for _ in range(100):
            log.record(batch(["a"] * 16).arguments, {3: "raised", 4: "raised"})  # 12.5 %


def test_an_unusable_gold_is_no_reward_at_all(build: Build, batch: Any, write: Callable[..., str]) -> None:
    made = batch([write("8")], gold="")
    assert scores(build(preset="sound"), made.arguments) == [[None]]
    assert made.extras["grade"] == ["bad_gold"] and made.metrics["outcomes/error"] == 1.0


def test_a_dataset_without_golds_is_a_config_error_for_a_preset(build: Build, batch: Any) -> None:
    arguments = batch(["text"]).arguments
    del arguments["answer"]
    with pytest.raises(ConfigError, match="no column 'answer'"):
        scores(build(preset="sound"), arguments)
    assert scores(build("length"), arguments) == [[4.0]]


def test_hooks_may_be_absent(build: Build, write: Callable[..., str]) -> None:
    rewards = build(preset="sound")
    assert rewards.functions[0](prompts=["p"], completions=[write("8")], answer=["8"]) == [1.0]


def test_a_wrong_path_fails_when_the_rewards_are_built(contract: ContractConfig, user_module: str) -> None:
    config = RewardConfig.model_validate(
        {"functions": [{"path": f"{user_module}:length"}, {"path": f"{user_module}:nope"}]}
    )
    with pytest.raises(ConfigError, match="has no 'nope'"):
        build_rewards(config, contract)
