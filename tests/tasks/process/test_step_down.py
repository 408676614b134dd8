"""Out of memory: what is tried next, what it never changes, and that it is written down."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline_config.loading import load_config
from pipeline_config.pipeline import PipelineConfig
from tasks.errors import OutOfMemory
from tasks.process.step_down import MemoryStep, load_steps, next_step, stepped_down, take

CUDA = OutOfMemory("OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
ENGINE = OutOfMemory("ValueError: No available memory for the cache blocks")


def config(*overrides: str) -> PipelineConfig:
    return load_config("tiny", overrides=["run.device=auto", *overrides])


def ladder(stage: str, asked: PipelineConfig, vllm: bool, error: OutOfMemory = CUDA) -> list[MemoryStep]:
    steps: list[MemoryStep] = []
    while (step := next_step(stage, asked, steps, error, vllm)) is not None:
        steps.append(step)
    return steps


def test_vllm_gives_way_first_and_then_the_micro_batch() -> None:
    asked = config("grpo.per_device_train_batch_size=8", "vllm.gpu_memory_utilization=0.4")
    steps = ladder("grpo", asked, vllm=True)
    assert [step.rung for step in steps] == ["vllm_share", "vllm_share", "micro_batch", "micro_batch", "micro_batch"]
    assert steps[0].changes == {"vllm.gpu_memory_utilization": (0.4, 0.3)}
    assert steps[2].changes == {
        "grpo.per_device_train_batch_size": (8, 4),
        "grpo.gradient_accumulation_steps": (1, 2),
    }
    assert steps[2].sentence() == "grpo.per_device_train_batch_size 8 -> 4, grpo.gradient_accumulation_steps 1 -> 2"
    last = stepped_down(asked, steps)
    assert (last.grpo.per_device_train_batch_size, last.grpo.gradient_accumulation_steps) == (1, 8)
    assert last.vllm.gpu_memory_utilization == 0.225


def test_without_vllm_and_for_sft_only_the_micro_batch() -> None:
    assert {step.rung for step in ladder("grpo", config(), vllm=False)} == {"micro_batch"}
    steps = ladder("sft", config("sft.per_device_train_batch_size=12"), vllm=True)
    assert [step.changes["sft.per_device_train_batch_size"] for step in steps] == [(12, 6), (6, 3)]


def test_a_loss_that_depends_on_the_micro_batch_is_left_alone() -> None:
    assert ladder("grpo", config("grpo.loss_type=bnpo"), vllm=False) == []


def test_an_engine_that_is_short_gets_its_share_back() -> None:
    asked = config("grpo.per_device_train_batch_size=8", "vllm.gpu_memory_utilization=0.4")
    # It never had more: less of anything does not help.
    assert next_step("grpo", asked, [], ENGINE, vllm=True) is None
    first = next_step("grpo", asked, [], CUDA, vllm=True)
    assert first is not None
    second = next_step("grpo", asked, [first], ENGINE, vllm=True)
    assert second is not None and second.changes["vllm.gpu_memory_utilization"] == (0.3, 0.4)
    now = stepped_down(asked, [first, second])
    assert (now.vllm.gpu_memory_utilization, now.grpo.per_device_train_batch_size) == (0.4, 4)


@pytest.mark.parametrize("stage", ["format_gate", "evaluate", "export", "model"])
def test_other_stages_have_no_ladder(stage: str) -> None:
    assert next_step(stage, config(), [], CUDA, vllm=True) is None


@settings(deadline=None, max_examples=40)  # a busy machine is slow
@given(
    batch=st.integers(1, 64),
    passes=st.integers(1, 8),
    share=st.floats(0.05, 0.9),
    vllm=st.booleans(),
    sft=st.booleans(),
)
def test_the_optimization_stays_and_every_ladder_ends(
    batch: int, passes: int, share: float, vllm: bool, sft: bool
) -> None:
    asked = config(
        "grpo.num_generations=2",
        f"grpo.per_device_train_batch_size={2 * batch}",
        f"grpo.gradient_accumulation_steps={passes}",
        f"sft.per_device_train_batch_size={batch}",
        f"vllm.gpu_memory_utilization={share}",
    )
    steps = ladder("sft" if sft else "grpo", asked, vllm)
    assert len(steps) < 12
    last = stepped_down(asked, steps)
    for before, after in ((asked.sft, last.sft), (asked.grpo, last.grpo)):
        total = after.per_device_train_batch_size * after.gradient_accumulation_steps
        assert total == before.per_device_train_batch_size * before.gradient_accumulation_steps
    kept = {"per_device_train_batch_size", "gradient_accumulation_steps"}
    assert last.grpo.model_dump(exclude=kept) == asked.grpo.model_dump(exclude=kept)


def test_steps_are_kept_in_the_work_directory(tmp_path: Path) -> None:
    asked = config("grpo.per_device_train_batch_size=16", "run.device=cpu")
    steps: list[Any] = [take(tmp_path, "grpo", asked, CUDA), take(tmp_path, "grpo", asked, CUDA)]
    assert load_steps(tmp_path) == steps
    assert stepped_down(asked, steps).grpo.per_device_train_batch_size == 4


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"steps": 1}', '{"steps": [{"rung": 1}]}', '{"steps": [1]}'])
def test_a_damaged_list_of_steps_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "memory_steps.json").write_text(text)
    assert load_steps(tmp_path) == []
