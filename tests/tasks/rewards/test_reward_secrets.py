"""What a reward function prints or raises is kept; a secret of the environment must not be."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tasks.rewards.client import CallFailed, Worker

LEAKY = """
import os

def pay(completions, **kwargs):
    print("token is", os.environ["HF_TOKEN"], flush=True)
    raise RuntimeError("401 for " + os.environ["HF_TOKEN"])
"""


def test_prints_and_errors_of_a_reward_are_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "leaky_reward.py").write_text(LEAKY)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("HF_TOKEN", "hf_CANARY_of_a_reward")
    log = tmp_path / "reward_output.log"
    worker = Worker("leaky_reward:pay", log=log)
    try:
        with pytest.raises(CallFailed) as caught:
            worker.score({"completions": ["a"]}, 60)
    finally:
        worker.close()
    assert "401 for ***" in str(caught.value) and "CANARY" not in str(caught.value)
    assert "CANARY" not in log.read_text()
