"""Memory and disk by worked examples, and against one measured run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline_config.loading import load_config
from pipeline_config.pipeline import PipelineConfig
from tasks.preflight.memory import (
    LIBRARIES,
    ModelShape,
    Scene,
    cache_bytes,
    disk_plan,
    longest_context,
    memory_plan,
    needed_on,
)

# 10 M weights: 2 layers of 100 -> 400, vocabulary 1000.
SHAPE = ModelShape(
    parameters=10_000_000,
    layers=2,
    hidden=100,
    intermediate=400,
    vocab=1000,
    kv_width=50,
    linear={"q_proj": 400, "down_proj": 1000},
    linear_parameters=8_000_000,
)
# Section 2 of the GPU baselines: 7.35 B weights, vocabulary 49,152, 36 layers of 4096 -> 12288, 8 key-value heads of 128.
EIGHT_B = ModelShape(
    parameters=7_348_728_832,
    layers=36,
    hidden=4096,
    intermediate=12288,
    vocab=49152,
    kv_width=1024,
    linear={
        "q_proj": 294912, "k_proj": 184320, "v_proj": 184320, "o_proj": 294912,
        "gate_proj": 589824, "up_proj": 589824, "down_proj": 589824,
    },
    linear_parameters=6_945_767_424,
)  # fmt: skip
HOST = Scene(longest_prompt=20, longest_example=50)


def config(*overrides: str) -> PipelineConfig:
    base = ["model.max_context=256", "grpo.max_completion_length=30", "grpo.per_device_train_batch_size=16"]
    return load_config("tiny", overrides=[*base, *overrides])


def grpo(scene: Scene = HOST, *overrides: str) -> dict[str, Any]:
    plan: dict[str, Any] = memory_plan(config(*overrides), SHAPE, scene)["stages"]["grpo"]
    return plan


def test_full_training_on_the_cpu() -> None:
    parts = grpo()
    # 10 M weights: 4 bytes each, as much for gradients, twice as much for AdamW's two moments.
    assert (parts["weights"], parts["gradients"], parts["optimizer"]) == (40_000_000, 40_000_000, 80_000_000)
    # 16 sequences of 20 + 30 tokens, 2 layers, 4 bytes x (8 x 100 + 2 x 50 + 4 x 400), and 8 x (100 - 50) for the mask: 10,400 a token and layer.
    assert parts["activations"] == 16 * 50 * 2 * 10_400 == 16_640_000
    # 16 sequences x 30 completion tokens x 1000 entries x 12 bytes.
    assert parts["logits"] == 5_760_000
    # Keys and values, 2 layers, width 50, 16 x 50 tokens, 4 bytes.
    assert parts["kv_cache"] == 2 * 2 * 50 * 800 * 4 == 640_000
    assert parts["certain"] == 160_000_000
    assert parts["total"] == 160_000_000 + LIBRARIES + 16_640_000 + 5_760_000


def test_grpo_holds_the_logits_of_one_chunk_where_they_are_a_plain_head() -> None:
    plain = replace(SHAPE, plain_head=True)

    def logits(completion: int, scene: Scene = HOST, shape: ModelShape = plain, *overrides: str) -> int:
        asked = config("model.max_context=1024", f"grpo.max_completion_length={completion}", *overrides)
        return int(memory_plan(asked, shape, scene)["stages"]["grpo"]["logits"])

    assert logits(30) == 12 * 16 * 30 * 1000  # fewer tokens than a chunk
    assert logits(512) == 12 * 2048 * 1000
    # 16 x 512 tokens at once: another head, unsloth's own loss, several processes.
    whole = 12 * 16 * 512 * 1000
    assert logits(512, HOST, SHAPE) == logits(512, replace(HOST, unsloth=True)) == whole
    assert logits(512, HOST, plain, "parallel.processes=2") == whole


def test_the_cache_counts_where_it_is_larger_than_the_backward_pass() -> None:
    parts = grpo(HOST, "grpo.gradient_accumulation_steps=64", "grpo.gradient_checkpointing=true")
    assert parts["kv_cache"] == 64 * 640_000
    assert parts["total"] == 160_000_000 + LIBRARIES + parts["kv_cache"]


def test_sft_holds_the_logits_of_one_chunk() -> None:
    parts = memory_plan(config("sft.per_device_train_batch_size=4"), SHAPE, HOST)["stages"]["sft"]
    assert parts["logits"] == 12 * 256 * 1000
    assert parts["activations"] == 4 * 50 * 2 * 10_400


def test_checkpointing_keeps_the_input_of_every_layer_and_one_layer_whole() -> None:
    assert grpo(HOST, "grpo.gradient_checkpointing=true")["activations"] == 800 * (2 * 4 * 100 + 10_400)


def test_an_adapter_of_rank_8() -> None:
    scene = Scene(20, 50, gpu_bytes=10**10)
    parts = grpo(scene, "grpo.method=lora", "grpo.lora.r=8", "grpo.lora.target_modules=[q_proj,down_proj]")
    trained = 8 * (400 + 1000)
    assert parts["weights"] == 20_000_000  # 16 bits
    assert (parts["adapter"], parts["gradients"], parts["optimizer"]) == (4 * trained, 4 * trained, 8 * trained)
    # Autocast over 16-bit weights: 16 x 100 + 4 x 50 + 8 x 400 bytes a token and layer, and 4 x (100 - 50) for the mask.
    assert parts["activations"] == 800 * 2 * 5200


def test_fused_kernels_and_norms_of_heads() -> None:
    def layer(method: str, liger: bool, **model: Any) -> float:
        scene = Scene(20, 50, gpu_bytes=10**10, liger=liger)
        asked = config(f"grpo.method={method}", "grpo.lora.target_modules=[q_proj]")
        plan = memory_plan(asked, replace(SHAPE, **model), scene)["stages"]["grpo"]
        return float(plan["activations"] - (2 * SHAPE.parameters if method == "full" else 0)) / (800 * 2)

    # h = 100, k = 50, i = 400.
    assert layer("full", True, plain_head=True) == 22 * 100 + 4 * 50 + 6 * 400
    assert layer("lora", True, plain_head=True) == 12 * 100 + 4 * 50 + 6 * 400
    assert layer("lora", False, plain_head=True) == 16 * 100 + 4 * 50 + 8 * 400
    assert layer("lora", True) == 16 * 100 + 4 * 50 + 8 * 400 + 4 * 50  # not a plain head: with a mask
    assert layer("lora", True, plain_head=True, head_norms=True) == 12 * 100 + 4 * 50 + 6 * 400 + 2 * 150
    assert layer("full", False, plain_head=True, head_norms=True) == 30 * 100 + 4 * 50 + 8 * 400 + 6 * 150
    # Queries twice as wide as the model, as in Qwen3-0.6B.
    wide = layer("lora", True, plain_head=True, head_norms=True, q_width=200)
    assert wide == 8 * 100 + 4 * 200 + 4 * 50 + 6 * 400 + 2 * 250


def test_four_bit_weights_and_an_8_bit_optimizer() -> None:
    lora = ["model.load_in_4bit=true", "sft.method=lora", "grpo.method=lora", "grpo.optim=adamw_8bit"]
    parts = grpo(Scene(20, 50, gpu_bytes=10**10), *lora, "grpo.lora.target_modules=[q_proj]")
    # 8 M weights at 4 bits + 1 byte per 64, the other 2 M at 16 bits.
    assert parts["weights"] == 8_000_000 * 33 // 64 + 4_000_000
    assert parts["optimizer"] == 2 * 32 * 400


def test_a_reference_model_is_a_second_copy_only_for_full_training_with_kl() -> None:
    assert grpo(HOST, "grpo.beta=0.04")["reference"] == 40_000_000
    assert "reference" not in grpo()
    assert "reference" not in grpo(HOST, "grpo.beta=0.04", "grpo.method=lora")


def test_what_vllm_reserves() -> None:
    scene = Scene(20, 50, gpu_bytes=10**10, vllm=True)
    parts = grpo(scene, "vllm.gpu_memory_utilization=0.4")
    assert parts["engine"] == 4 * 10**9 and parts["kv_cache"] == 0
    assert parts["certain"] == 160_000_000 + 4 * 10**9
    assert grpo(scene, "vllm.sleep_mode=true")["engine"] == 20_000_000  # its weights
    shared = Scene(20, 50, gpu_bytes=10**10, vllm=True, unsloth=True)
    assert grpo(shared, "grpo.method=lora")["weights"] == 0


def test_a_measured_run_on_one_h200() -> None:
    """Stock TRL with vLLM colocated: 8 x 8 completions of 1024 tokens, LoRA of rank 32; 71.5 GiB at the peak."""
    asked = load_config(
        "smollm2-135m",
        overrides=[
            "model.max_context=2048", "grpo.method=lora", "grpo.max_completion_length=1024",
            "grpo.per_device_train_batch_size=8", "grpo.gradient_accumulation_steps=8",
            "grpo.gradient_checkpointing=true", "vllm.gpu_memory_utilization=0.35",
        ],
    )  # fmt: skip
    parts = memory_plan(asked, EIGHT_B, Scene(202, 256, 143_771 * 2**20, vllm=True))["stages"]["grpo"]
    assert parts["weights"] == pytest.approx(13.7 * 2**30, rel=0.01)
    assert parts["engine"] == pytest.approx(48.9 * 2**30, rel=0.01)
    assert parts["adapter"] == pytest.approx(4 * 87.3e6, rel=0.01)
    assert 71.5 * 2**30 <= parts["total"] <= 1.1 * 71.5 * 2**30


@pytest.mark.parametrize(("micro", "fused", "allocated"), [(4, False, 98.8), (8, True, 110.9)])
def test_measured_runs_without_checkpointing(micro: int, fused: bool, allocated: float) -> None:
    """Our GRPO stage, the same batch: torch's peak in GiB in benchmarks/gpu_step_time.json (`large-ours-trl`, with and without -plain)."""
    asked = load_config(
        "smollm2-135m",
        overrides=[
            "model.max_context=2048", "grpo.method=lora", "grpo.lora.r=32", "grpo.max_completion_length=1024",
            f"grpo.per_device_train_batch_size={micro}", f"grpo.gradient_accumulation_steps={64 // micro}",
            "vllm.gpu_memory_utilization=0.35",
        ],
    )  # fmt: skip
    shape = replace(EIGHT_B, plain_head=True, head_norms=True)
    scene = Scene(202, 256, 143_771 * 2**20, vllm=True, liger=fused)
    parts = memory_plan(asked, shape, scene)["stages"]["grpo"]
    assert (parts["total"] - LIBRARIES) / 2**30 == pytest.approx(allocated, rel=0.03)


def test_the_plan_names_its_peak_and_shows_the_sum() -> None:
    plan = memory_plan(config(), SHAPE, HOST)
    assert plan["peak_stage"] == "sft"  # 64 rows of 50 tokens
    assert plan["peak"] == plan["host"] == plan["stages"]["sft"]["total"]
    assert plan["certain"] == 160_000_000
    assert plan["arithmetic"][1].startswith("grpo: weights 0.04 + gradients 0.04 + optimizer 0.08 + activations 0.02")
    assert plan["arithmetic"][1].endswith("at most 1.18 GB at once")


def test_the_host_beside_a_gpu_reads_and_saves_the_weights() -> None:
    assert memory_plan(config(), SHAPE, Scene(20, 50, gpu_bytes=10**10))["host"] == LIBRARIES + 40_000_000


def test_disk() -> None:
    # Two models of 2 bytes a weight; GRPO keeps four checkpoints (three to choose from), and a fifth is being
    # written: weights and two moments, 12 bytes a weight.
    assert disk_plan(config(), SHAPE, 7) == {
        "models": 40_000_000,
        "adapters": 0,
        "checkpoints": 600_000_000,
        "export": 7,
        "total": 640_000_007,
    }
    lora = ["sft.method=lora", "grpo.method=lora", "sft.lora.r=1", "grpo.lora.r=2"]
    plan = disk_plan(config(*lora, "sft.lora.target_modules=[q_proj]", "grpo.lora.target_modules=[q_proj]"), SHAPE, 0)
    assert plan["adapters"] == 4 * 400 + 4 * 800 and plan["checkpoints"] == 5 * 12 * 800
    without = disk_plan(config("grpo.checkpoint_choice.enabled=false", "sft.save_total_limit=3"), SHAPE, 0)
    assert without["checkpoints"] == 4 * 12 * 10_000_000


def test_cache() -> None:
    # SmolLM2-135M: 30 layers, 3 heads of 64; one token in 16 bits.
    shape = ModelShape(134_515_008, 30, 576, 1536, 49152, 192, {}, 0)
    assert cache_bytes(shape, 1) == 23_040


@given(
    batch=st.integers(1, 64),
    more=st.integers(1, 64),
    prompt=st.integers(1, 1000),
    longer=st.integers(0, 1000),
    gpu=st.sampled_from([0, 10**11]),
)
def test_a_larger_batch_or_longer_prompt_never_needs_less(
    batch: int, more: int, prompt: int, longer: int, gpu: int
) -> None:
    def peak(size: int, length: int) -> int:
        asked = config()
        settings = asked.grpo.model_copy(update={"per_device_train_batch_size": size})
        asked = asked.model_copy(update={"grpo": settings})
        return int(memory_plan(asked, SHAPE, Scene(length, length, gpu))["stages"]["grpo"]["total"])

    assert peak(batch + more, prompt + longer) >= peak(batch, prompt + longer) >= peak(batch, prompt) > 0


def test_cpu_processes_share_the_host() -> None:
    one, two = memory_plan(config(), SHAPE, HOST), memory_plan(config("parallel.processes=2"), SHAPE, HOST)
    assert two["peak"] == two["host"] == 2 * one["peak"] and two["certain"] == 2 * one["certain"]
    assert two["stages"] == one["stages"]  # of one process


def test_what_if_there_were_another_gpu() -> None:
    lora = ["sft.method=lora", "grpo.method=lora", "run.device=auto", "vllm.gpu_memory_utilization=0.5"]
    chosen = config(*lora, "grpo.per_device_train_batch_size=8", "grpo.num_generations=8")
    scene = Scene(longest_prompt=100, longest_example=200)
    small, large = needed_on(chosen, EIGHT_B, scene, 12 * 2**30), needed_on(chosen, EIGHT_B, scene, 140 * 2**30)
    # 14.7 GB of weights alone do not fit into 12 GiB.
    assert (small["fits"], small["limit"], small["longest_context"]) == (False, "memory", 0)
    assert large["fits"] and large["plan"]["stages"]["grpo"]["engine"] == int(0.5 * 140 * 2**30)
    assert large["longest_context"] > 500
    # The engine's half holds its own weights and the keys and values of one sequence at least.
    tight = config(
        *lora, "vllm.gpu_memory_utilization=0.05", "grpo.per_device_train_batch_size=8", "grpo.num_generations=8"
    )
    assert needed_on(tight, EIGHT_B, scene, 140 * 2**30)["limit"] == "engine"


def test_unsloths_engine_holds_the_four_bit_weights_that_are_trained() -> None:
    asked = [
        "model.load_in_4bit=true",
        "grpo.method=lora",
        "sft.method=lora",
        "run.device=auto",
        "vllm.sleep_mode=true",
    ]
    small = ["grpo.per_device_train_batch_size=1", "grpo.num_generations=8", "grpo.gradient_accumulation_steps=8"]
    chosen = config(*asked, *small, "vllm.gpu_memory_utilization=0.5")
    scene = Scene(longest_prompt=100, longest_example=200, unsloth=True)
    found = needed_on(chosen, EIGHT_B, scene, 24 * 2**30)
    # 6.95 G weights at 4 bits + 1 byte per 64, the other 0.4 G at 16: 4.4 GB of 12.9; with 16 bits they were 14.7.
    weights = 6_945_767_424 * 33 // 64 + 2 * (EIGHT_B.parameters - 6_945_767_424)
    assert found["limit"] == "" and found["plan"]["stages"]["grpo"]["engine"] == weights
    assert needed_on(chosen, EIGHT_B, replace(scene, unsloth=False), 24 * 2**30)["limit"] == "engine"


@settings(deadline=None, max_examples=40)  # a busy machine is slow
@given(gib=st.integers(16, 200), batch=st.sampled_from([8, 16, 32]))
def test_the_longest_context_is_the_last_one_that_fits(gib: int, batch: int) -> None:
    chosen = config(
        "grpo.method=lora", "sft.method=lora", "run.device=auto", f"grpo.per_device_train_batch_size={batch}"
    )
    scene = Scene(longest_prompt=50, longest_example=50, gpu_bytes=gib * 2**30, vllm=True)
    longest = longest_context(chosen, EIGHT_B, scene)
    if longest == 0:
        return
    for more, fits in ((0, True), (1, False)):
        grpo_settings = chosen.grpo.model_copy(update={"max_completion_length": longest - 50 + more})
        found = needed_on(chosen.model_copy(update={"grpo": grpo_settings}), EIGHT_B, scene, gib * 2**30)
        assert found["fits"] == fits
