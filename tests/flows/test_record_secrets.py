"""A run's record is kept and shown: no secret of the environment may be in it."""

from __future__ import annotations

import json

import pytest

from flows.record import RunRecord
from pipeline_config.loading import load_config


def test_an_unexpected_error_is_recorded_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_CANARY_in_an_error")
    record = RunRecord.start(load_config("tiny"))
    record.fail(RuntimeError("401 for hf_CANARY_in_an_error at s3://user:hunter2@host"))
    assert record.error is not None and record.error["message"] == "401 for *** at s3://user:***@host"
    assert "CANARY" not in json.dumps(record.to_json())
