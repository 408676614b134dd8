"""Early stopping: the looks, intervals worked out by hand, and how often a stop contradicts the truth."""

from __future__ import annotations

import random
from typing import Any

import pytest

from pipeline_config.gate import GateSettings
from tasks.format_gate.stopping import decides, looks, settled


def shares(prompts: int, fmt: float = 1.0, cut: float = 0.0, dead: float = 0.0) -> dict[str, Any]:
    return {"prompts": prompts, "format_rate": fmt, "truncation_rate": cut, "dead_groups": dead}


@pytest.mark.parametrize(
    ("prompts", "group", "expected"),
    [(64, 8, [16, 32, 48, 64]), (48, 8, [16, 32, 48]), (8, 8, [8]), (10, 64, [3, 5, 8, 10]), (4, 2, [4])],
)
def test_looks(prompts: int, group: int, expected: list[int]) -> None:
    assert looks(prompts, group) == expected


def test_when_a_share_is_settled() -> None:
    """Four looks: z at 1 - 0.05 / 8 is 2.4977, z^2 = 6.2385. All of n well formed: the lower end is n / (n + 6.2385)."""
    gate = GateSettings()
    assert not settled(shares(16), gate, 4)  # 16 / 22.2385 = 0.719
    assert settled(shares(32), gate, 4)  # 32 / 38.2385 = 0.837
    # None well formed: the upper end is 6.2385 / (n + 6.2385) = 0.281 at 16.
    assert settled(shares(16, fmt=0.0), gate, 4)
    assert not settled(shares(16, fmt=0.7), gate, 4)
    # One look is at 95 %: z^2 = 3.8415, 16 / 19.8415 = 0.806.
    assert settled(shares(16), gate, 1)


def test_causes_are_settled_before_their_consequences() -> None:
    gate = GateSettings()
    assert settled(shares(16, fmt=0.0, cut=1.0), gate, 4)  # truncated beyond doubt
    assert not settled(shares(16, fmt=0.0, cut=0.35), gate, 4)  # malformed beyond doubt, but is it the truncation?
    assert not settled(shares(32, dead=0.8), gate, 4)
    assert settled(shares(400, dead=0.98), gate, 4)


def test_thresholds_at_the_ends_never_hold_the_sampling_up() -> None:
    anything = GateSettings(min_format_rate=0.0, max_truncation_rate=1.0, max_dead_groups=1.0)
    assert settled(shares(4, fmt=0.5, cut=0.5, dead=0.5), anything, 4)


def test_a_stored_early_stop_is_asked_again_under_other_thresholds() -> None:
    stored = {**shares(32, fmt=0.99), "stopped_early": True, "looks": 4}
    assert decides(stored, GateSettings())
    assert not decides(stored, GateSettings(min_format_rate=0.9))
    assert decides({**stored, "stopped_early": False}, GateSettings(min_format_rate=0.9))
    assert decides(shares(32), GateSettings(min_format_rate=0.9))


def test_stops_on_the_wrong_side_are_rare() -> None:
    """Completions of a prompt all well formed or none (the worst dependence), at 0.75 and 0.85 around a threshold of 0.8 and in 4 looks."""
    rng, gate = random.Random(1), GateSettings()
    for rate in (0.75, 0.85):
        wrong = 0
        for _ in range(2000):
            formed = [rng.random() < rate for _ in range(200)]
            for end in looks(200, 8)[:-1]:
                share = sum(formed[:end]) / end
                if settled(shares(end, fmt=share), gate, 4):
                    wrong += (share >= 0.8) != (rate >= 0.8)
                    break
        assert wrong / 2000 < 0.05
