"""`grpo-pipeline preflight --gpu-gib`: the memory plan on a GPU that is not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from flows import cli
from tasks.findings import Finding
from tasks.preflight import alone

FOUND = {"memory": [Finding("memory.host", "ok", "enough")]}
# The sizes of a model of 7.35 B weights, as the preflight stores them.
SIZES = {
    "shape": {
        "parameters": 7_348_728_832, "layers": 36, "hidden": 4096, "intermediate": 12288, "vocab": 49152, "kv_width": 1024,
        "linear": {"q_proj": 294912, "o_proj": 294912}, "linear_parameters": 6_945_767_424,
    },
    "scene": {"longest_prompt": 100, "longest_example": 200, "gpu_bytes": 0, "vllm": False, "unsloth": False},
}  # fmt: skip
LORA = ["--set", "run.device=auto", "--set", "grpo.method=lora", "--set", "sft.method=lora", "--set",
        "grpo.per_device_train_batch_size=8"]  # fmt: skip


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli.out, "width", 200)

    def invoke(sizes: Any, *arguments: str) -> Result:
        monkeypatch.setattr(alone, "preflight_alone", lambda *_, **__: alone.Alone(FOUND, None, False, sizes))
        command = ["preflight", "-p", "tiny", *LORA, *arguments]
        return CliRunner().invoke(cli.app, command, env={"NO_COLOR": "1", "TERM": "dumb"})

    return invoke


def test_a_gpu_that_is_too_small_and_one_that_is_not(call: Any) -> None:
    small = call(SIZES, "--gpu-gib", "12")
    assert small.exit_code == 0 and "On one GPU of 12 GiB (12.9 GB)" in small.output
    assert "it does not fit; longest prompt + completion: 0 tokens" in small.output
    large = call(SIZES, "--gpu-gib", "141", "--json")
    found = json.loads(large.stdout)["what_if"]
    assert (
        found["fits"]
        and found["longest_context"] > 148
        and found["plan"]["stages"]["grpo"]["weights"] == 14_697_457_664
    )


def test_without_the_option_or_the_sizes(call: Any) -> None:
    assert "On one GPU" not in call(SIZES).output
    assert "what_if" not in json.loads(call(SIZES, "--json").stdout)
    assert "needs a model" in call(None, "--gpu-gib", "24").output
