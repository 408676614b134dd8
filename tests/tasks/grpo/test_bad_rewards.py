"""Every bad reward through the real GRPO stage: it ends with the reason, a sample and a complete checkpoint."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from flat_lines import grpo

from tasks.errors import RunStopped
from tasks.models.tiny import build_tiny

pytest.importorskip("trl")

MODULE = """
import sys

def raises(completions, **kwargs):
    raise ValueError("the parser gave up")

def none(completions, **kwargs):
    return None

def too_many(completions, **kwargs):
    return [1.0] * (len(completions) + 1)

def nan(completions, **kwargs):
    return [float("nan")] * len(completions)

def one_element(completions, **kwargs):
    return [1.0]

def hangs(completions, **kwargs):
    while True:
        pass

def returns_1_gb(completions, **kwargs):
    return ["x" * (1 << 30)] * len(completions)

def prints_1_gb(completions, **kwargs):
    block = "x" * (1 << 24)
    for _ in range(64):
        sys.stdout.write(block)
    return None
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("random")
    build_tiny(folder / "model", seed=0)
    return folder


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("raises", "raised ValueError: the parser gave up"),
        ("none", "returned None instead of a list"),
        ("too_many", "returned 33 values for 32 completions"),
        ("nan", "returned nan instead of a finite number"),
        ("one_element", "returned 1 value for 32 completions"),
        ("hangs", "did not return within 0.3 s"),
        ("returns_1_gb", "returned str 'xxx"),
        ("prints_1_gb", "returned None instead of a list"),
    ],
)
def test_a_usable_checkpoint_and_a_clear_message(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, said: str
) -> None:
    from tasks.grpo.entry import run

    name = f"bad_{function}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    ctx = grpo(
        model,
        tmp_path / "work",
        "grpo.rewards.preset=null",
        f'grpo.rewards.functions=[{{path: "{name}:{function}"}}]',
        f"grpo.rewards.timeout_s={0.3 if function == 'hangs' else 20}",
        "grpo.per_device_train_batch_size=32",
        "grpo.max_completion_length=4",
        "grpo.save_steps=1",
        "grpo.checkpoint_choice.enabled=false",
    )
    with pytest.raises(RunStopped) as caught:
        run(ctx)
    error = caught.value
    assert error.cause == "reward_errors" and error.where == "step 1"
    assert "failed on 100% of the last 64 completions" in error.message and said in error.message
    assert "What is" in error.message and len(error.message) < 5000
    checkpoint = ctx.newest_checkpoint()
    assert checkpoint is not None and checkpoint.name == "checkpoint-1"
    sample = json.loads((ctx.work_dir / "reward_errors.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert sample["function"] == function and said[:20] in sample["error"]
    assert sum(os.path.getsize(path) for path in ctx.work_dir.glob("*.*")) < 8 << 20
