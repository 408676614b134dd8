"""How long a part of a stage still takes, by hand."""

from __future__ import annotations

from flows.stage_task import Pace


def test_from_what_was_seen_of_this_part_alone() -> None:
    pace = Pace()
    assert pace.left(0, 24, "problems", now=100.0) is None, "nothing done yet"
    assert pace.left(8, 24, "problems", now=120.0) == 40.0, "8 took 20 s, so 16 take 40 s"
    assert pace.left(24, 24, "problems", now=160.0) == 0.0
    # The next part is not timed from the beginning of the stage, nor by what its first line already has done.
    assert pace.left(1, 272, "tensors", now=170.0) is None
    assert pace.left(11, 272, "tensors", now=171.0) == 26.1


def test_training_that_goes_on_from_a_checkpoint() -> None:
    pace = Pace()
    assert pace.left(81, 100, "grpo", now=0.0) is None
    assert pace.left(91, 100, "grpo", now=50.0) == 45.0


def test_another_attempt_begins_anew() -> None:
    pace = Pace()
    pace.left(0, 10, "sft", now=0.0)
    assert pace.left(5, 10, "sft", now=10.0) == 10.0
    assert pace.left(3, 10, "sft", now=30.0) is None, "the stage was killed and resumed from step 2"
    assert pace.left(4, 10, "sft", now=31.0) == 6.0
