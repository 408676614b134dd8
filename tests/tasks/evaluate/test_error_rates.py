"""The comparison on simulated pairs of models, a small share of `benchmarks/power.py`: false alarms and gains found."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tasks.evaluate.scores import verdict
from tasks.statistics import detectable_gain, sign_flip


@pytest.fixture(scope="module")
def power() -> Any:
    path = Path(__file__).resolve().parents[3] / "benchmarks" / "power.py"
    spec = importlib.util.spec_from_file_location("power_benchmark", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("correlation", [0.0, 0.8])
def test_models_that_do_not_differ_are_called_so(power: Any, correlation: float) -> None:
    """300 pairs at 5 %: 15 false alarms expected at most, 26 are three standard errors above that."""
    verdicts = power.by_counts(*power.greedy_pairs(300, 400, 0.567, 0.567, correlation, seed=11))
    assert verdicts.count("no_difference") >= 300 - 26


def test_five_points_on_gsm8k_are_found(power: Any) -> None:
    """56.7 % against 61.7 % on 1,319 problems, outcomes correlated by 0.5: found in 9 of 10 pairs (benchmark: 0.9)."""
    first, second = power.greedy_pairs(100, 1319, 0.567, 0.617, 0.5, seed=12)
    verdicts = power.by_counts(first, second)
    assert verdicts.count("better") >= 80 and verdicts.count("worse") == 0
    # The report's own function says the same of every pair.
    assert power.through_compare(first[:5], second[:5]) == verdicts[:5]


def test_what_the_report_says_would_have_been_seen_is_seen_in_four_of_five(power: Any) -> None:
    gain = detectable_gain(400, 0.33)
    first, second = power.greedy_pairs(300, 400, 0.5, 0.5 + gain, 0.5, seed=13)
    assert float((first != second).mean()) == pytest.approx(0.33, abs=0.01)
    # 240 of 300 expected; three standard errors are 21.
    assert 219 <= power.by_counts(first, second).count("better") <= 261


def test_pass_at_1_of_models_that_do_not_differ(power: Any) -> None:
    """300 pairs, 64 problems x 4 samples: 15 false alarms expected, 26 are three standard errors above that."""
    first, second = power.sampled_pairs(300, 64, 4, 0.4, 0.4, 0.5, 0.2, seed=14)
    found = [verdict(sign_flip(row, 0)[0], sum(row)) for row in ((second - first) / 4).tolist()]
    assert found.count("no_difference") >= 300 - 26
