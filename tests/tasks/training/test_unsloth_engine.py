"""How unsloth's engine is asked for: enough sequences for a whole batch of rollouts, and none for SFT."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline_config.loading import load_config
from tasks.training.unsloth import load_with_adapter, sequences_at_once


def test_a_whole_batch_is_decoded_at_once() -> None:
    # 256 is what unsloth takes for "choose yourself"; above 512 vLLM has no CUDA graphs.
    assert [sequences_at_once(n) for n in (8, 255, 256, 512, 2048)] == [8, 255, 257, 512, 512]


@pytest.mark.parametrize(("rollouts", "engine"), [(64, {"fast_inference": True, "max_num_seqs": 64}), (0, {})])
def test_only_rollouts_need_an_engine(monkeypatch: pytest.MonkeyPatch, rollouts: int, engine: dict[str, Any]) -> None:
    asked: dict[str, Any] = {}

    def from_pretrained(**arguments: Any) -> tuple[str, None]:
        asked.update(arguments)
        return "model", None

    fake = SimpleNamespace(from_pretrained=from_pretrained, get_peft_model=lambda model, **_: f"{model} with adapter")
    monkeypatch.setitem(sys.modules, "unsloth", SimpleNamespace(FastLanguageModel=fake))
    config = load_config("tiny", overrides=["grpo.method=lora"])
    assert load_with_adapter(Path("folder"), config, config.grpo, 0, rollouts) == "model with adapter"
    wanted = {"fast_inference": False, **engine}
    assert {key: asked[key] for key in ("fast_inference", "max_num_seqs") if key in asked} == wanted
