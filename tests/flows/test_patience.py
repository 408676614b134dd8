"""Errors that can go away, outside the stages."""

from __future__ import annotations

import pytest

from flows.patience import patiently, pauses
from pipeline_config.run import RunConfig
from tasks.errors import PipelineError, Retryable, StoreError

RUN = RunConfig(retries=2, retry_delay_s=0)


def failing(*errors: PipelineError) -> tuple[list[PipelineError], list[str]]:
    return list(errors), []


def attempt(errors: list[PipelineError]) -> str:
    if errors:
        raise errors.pop(0)
    return "done"


def test_an_object_store_that_is_away_for_a_moment_is_asked_again() -> None:
    errors, said = failing(Retryable("no answer", where="s3://b/x"), Retryable("cut off"))
    assert patiently(lambda: attempt(errors), RUN, said.append) == "done"
    assert said == ["s3://b/x: no answer; again in 0 s", "before the first stage: cut off; again in 0 s"]


def test_the_last_error_is_raised_after_all_attempts() -> None:
    errors, said = failing(*(Retryable(f"no answer {n}") for n in range(5)))
    with pytest.raises(Retryable, match="no answer 2"):
        patiently(lambda: attempt(errors), RUN, said.append)
    assert len(said) == 2


def test_what_cannot_go_away_is_raised_at_once() -> None:
    errors, said = failing(StoreError("read-only"))
    with pytest.raises(StoreError):
        patiently(lambda: attempt(errors), RUN, said.append)
    assert said == []


def test_pauses_grow_until_a_minute_without_network_is_over() -> None:
    assert pauses(RunConfig()) == [10.0, 50.0]
    assert pauses(RunConfig(retries=0)) == []
    many = pauses(RunConfig(retries=100, retry_delay_s=10))
    assert many[:5] == [10.0, 50.0, 250.0, 1250.0, 3600.0] and set(many[5:]) == {3600.0} and len(many) == 50
    assert pauses(RunConfig(retries=2, retry_delay_s=7200)) == [7200.0, 7200.0]
