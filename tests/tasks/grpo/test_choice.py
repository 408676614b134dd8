"""Which checkpoint is kept, on pass rates made up for the purpose."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline_config.training import CheckpointChoice, GRPOSettings
from tasks.grpo.arithmetic import candidate_steps, checkpoints_kept
from tasks.grpo.choice import Candidate, decide


def settings(**changed: Any) -> GRPOSettings:
    return GRPOSettings(**{"save_steps": 20, "num_iterations": 1, **changed})


def test_candidates_are_the_newest_regular_checkpoints() -> None:
    assert candidate_steps(settings(), 100) == [60, 80]
    assert candidate_steps(settings(), 105) == [80, 100]
    assert candidate_steps(settings(), 20) == candidate_steps(settings(), 7) == []
    assert candidate_steps(settings(num_iterations=3), 100) == [63, 84], "save_steps rounded up to whole windows"
    many = CheckpointChoice(candidates=10)
    assert candidate_steps(settings(checkpoint_choice=many), 100) == [20, 40, 60, 80]
    assert checkpoints_kept(settings(checkpoint_choice=many)) == 11
    assert checkpoints_kept(settings(save_total_limit=30)) == 30
    off = CheckpointChoice(enabled=False, candidates=10)
    assert checkpoints_kept(settings(checkpoint_choice=off)) == 2


def rates(mean: float, n: int = 64) -> tuple[float, ...]:
    return tuple([1.0] * round(mean * n) + [0.0] * (n - round(mean * n)))


def test_the_last_is_kept_when_nothing_is_better() -> None:
    found = decide([Candidate(20, rates(0.5)), Candidate(40, rates(0.53)), Candidate(60, rates(0.5))], 4, 0.05)
    assert (found["chosen"], found["kept_last"], found["last"]) == (60, True, 60)
    # Two problems more, one-sided p 1/4.
    assert [row.get("p") for row in found["candidates"]] == [1.0, pytest.approx(0.25, abs=0.02), None]
    assert [row["rate"] for row in found["candidates"]] == [0.5, 34 / 64, 0.5]
    assert all({"low", "high", "n", "samples"} <= row.keys() for row in found["candidates"])
    assert "none of 2 earlier checkpoints is better by more than noise" in found["reason"]


def test_a_collapse_is_seen_and_the_best_before_it_kept() -> None:
    found = decide([Candidate(20, rates(0.5)), Candidate(40, rates(0.6)), Candidate(60, rates(0.1))], 4, 0.05)
    assert (found["chosen"], found["kept_last"]) == (40, False)
    assert found["reason"].startswith(
        "step 40 was kept instead of the last step 60: held-out pass@1 59.4% against 9.4%"
    )
    # Of two that are as good the later one, which trained longer.
    same = decide([Candidate(20, rates(0.6)), Candidate(40, rates(0.6)), Candidate(60, rates(0.1))], 4, 0.05)
    assert same["chosen"] == 40


def test_alpha_is_shared_among_the_earlier_ones() -> None:
    """Five problems won, none lost: one-sided p 1/32 = 0.031, enough for one earlier checkpoint and not for two."""
    better, last = Candidate(40, rates(0.5 + 5 / 64)), Candidate(60, rates(0.5))
    assert decide([better, last], 4, 0.05)["chosen"] == 40
    assert decide([Candidate(20, rates(0.5)), better, last], 4, 0.05)["chosen"] == 60


def test_what_could_not_be_measured_is_not_chosen() -> None:
    broken = Candidate(40, failure="RuntimeError: probability tensor contains inf")
    found = decide([Candidate(20, rates(0.5)), broken, Candidate(60, rates(0.1))], 4, 0.05)
    assert found["chosen"] == 20 and found["candidates"][1]["failure"].startswith("RuntimeError")
    found = decide([Candidate(20, rates(0.5)), Candidate(60, failure="no memory")], 4, 0.05)
    assert found["chosen"] == 60 and "could not be measured (no memory)" in found["reason"]
    assert "no earlier checkpoint" in decide([Candidate(60, rates(0.5))], 4, 0.05)["reason"]


@given(st.lists(st.lists(st.integers(0, 4), min_size=6, max_size=6), min_size=1, max_size=5))
def test_what_is_chosen_is_a_candidate_and_not_worse_than_the_last(hits: list[list[int]]) -> None:
    candidates = [Candidate(10 * (i + 1), tuple(h / 4 for h in row)) for i, row in enumerate(hits)]
    found = decide(candidates, 4, 0.05)
    by_step = {one.step: sum(one.rates) for one in candidates}
    assert by_step[found["chosen"]] >= by_step[candidates[-1].step]
    assert found["kept_last"] == (found["chosen"] == candidates[-1].step)


def test_checkpoints_that_do_not_differ_replace_the_last_as_rarely_as_promised() -> None:
    """400 runs of three equally good checkpoints, 64 problems of mixed difficulty and 4 samples each."""
    generator = np.random.default_rng(0)
    replaced = 0
    for _ in range(400):
        chances = generator.beta(0.7, 0.7, 64)
        hits = generator.binomial(4, chances, (3, 64)) / 4
        candidates = [Candidate(step, tuple(row)) for step, row in zip((20, 40, 60), hits.tolist(), strict=True)]
        replaced += not decide(candidates, 4, 0.05)["kept_last"]
    # 5 % of 400 is 20; three standard errors above are 33.
    assert replaced <= 33
