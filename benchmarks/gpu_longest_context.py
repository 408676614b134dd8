"""The longest prompt + completion whose GRPO update fits into a GPU of a given size, beside what the planner says.

    python benchmarks/gpu_longest_context.py --cap-gib 80 --share 0.35      # needs a GPU of that size or a larger one, which is capped

Random weights of Qwen3-8B's shape, LoRA of rank 32 on all projections, one row, gradient checkpointing: one update as the stage `grpo` makes it
under trl (`tasks/grpo/chunked.py`, `tasks/training`), with vLLM's share taken by an empty tensor. Nothing is sampled: rollouts of such a length
take hours and no further memory. The optimizer's moments are there from the first; the longest is found by halving, from the planner's
answer, to 4,096 tokens (`--step`). Adds to benchmarks/gpu_longest_context.json. `--layers 2 --device cpu` tries the program out.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from peft import LoraConfig, get_peft_model  # noqa: E402
from transformers import AutoModelForCausalLM, Qwen3Config  # noqa: E402

from pipeline_config.loading import load_config  # noqa: E402
from pipeline_config.pipeline import PipelineConfig  # noqa: E402
from pipeline_config.training import ALL_PROJECTIONS  # noqa: E402
from tasks.grpo.chunked import predicting_states, token_logps  # noqa: E402
from tasks.preflight.memory import ModelShape, Scene, needed_on  # noqa: E402
from tasks.preflight.shape import shape_of  # noqa: E402
from tasks.training.adapters import keep_input_dtype  # noqa: E402
from tasks.training.kernels import fuse  # noqa: E402

RESULT = ROOT / "benchmarks" / "gpu_longest_context.json"
PROMPT = 256


def model_config(layers: int) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=151_936, hidden_size=4096, intermediate_size=12_288, num_hidden_layers=layers, num_attention_heads=32,
        num_key_value_heads=8, head_dim=128, max_position_embeddings=2**20, tie_word_embeddings=False, dtype="bfloat16",
    )  # fmt: skip


def policy_of(config: Qwen3Config, device: torch.device) -> Any:
    """The model under its adapter, as the stage has it."""
    torch.set_default_dtype(torch.bfloat16)
    with device:
        model = AutoModelForCausalLM.from_config(config)
    torch.set_default_dtype(torch.float32)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    policy = get_peft_model(model, LoraConfig(r=32, lora_alpha=64, target_modules=list(ALL_PROJECTIONS)))
    for weight in policy.parameters():
        if weight.requires_grad:
            weight.data = weight.data.float()
    policy.train()
    keep_input_dtype(policy)
    fuse(policy, device)
    return policy


def update(policy: Any, optimizer: Any, tokens: int, device: torch.device) -> None:
    """Forward and backward pass of one row, and the optimizer's step."""
    ids = torch.randint(151_000, (1, tokens), device=device)
    mask = torch.ones_like(ids)
    keep = tokens - PROMPT
    causal = policy.get_base_model()
    with torch.autocast(device.type, torch.bfloat16):
        hidden = predicting_states(causal.base_model, ids, mask, keep)
        logps, _ = token_logps(causal.get_output_embeddings(), hidden, ids[:, -keep:], mask[:, -keep:], 1.0, True)
    logps.mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def fits(policy: Any, optimizer: Any, tokens: int, device: torch.device) -> tuple[bool, float]:
    """Whether an update goes through, and torch's peak in bytes; the policy's weights do not matter."""
    try:
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        update(policy, optimizer, tokens, device)
        return True, float(torch.cuda.max_memory_allocated()) if device.type == "cuda" else 0.0
    except torch.OutOfMemoryError:
        return False, 0.0
    finally:
        optimizer.zero_grad()
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


def planned(share: float, cap: int, shape: ModelShape) -> dict[str, Any]:
    config: PipelineConfig = load_config(
        "qwen3-8b-80gb",
        overrides=[
            "grpo.lora.r=32", "grpo.per_device_train_batch_size=1", "grpo.gradient_accumulation_steps=8",
            "grpo.num_generations=8", "model.max_context=1048576", f"vllm.gpu_memory_utilization={share}",
        ],
    )  # fmt: skip
    return needed_on(config, shape, Scene(PROMPT, config.sft.max_length), cap)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cap-gib", type=float, default=80.0)
    parser.add_argument("--share", type=float, default=0.35, help="vllm.gpu_memory_utilization")
    parser.add_argument("--layers", type=int, default=36)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--longest", type=int, default=2**18, help="do not look further")
    parser.add_argument("--step", type=int, default=4096)
    parser.add_argument("--result", type=Path, default=RESULT)
    arguments = parser.parse_args()
    device, cap = torch.device(arguments.device), int(arguments.cap_gib * 2**30)
    found = planned(arguments.share, cap, shape := shape_of(model_config(arguments.layers), trust_remote_code=False))
    engine = None
    if device.type == "cuda":
        # What the CUDA context takes is not torch's.
        context = torch.cuda.mem_get_info()[1] - torch.cuda.mem_get_info()[0]
        torch.cuda.set_per_process_memory_fraction((cap - context) / torch.cuda.mem_get_info()[1])
        engine = torch.empty(int(arguments.share * cap), dtype=torch.uint8, device=device)
    policy = policy_of(model_config(arguments.layers), device)
    optimizer = torch.optim.AdamW([weight for weight in policy.parameters() if weight.requires_grad], lr=1e-6)
    update(policy, optimizer, 2 * PROMPT, device)
    step = arguments.step
    most = arguments.longest // step + 1
    low, high, leap = 0, most, 1
    peaks: dict[int, float] = {}
    guess = min(
        most - 1, max(1, found["longest_context"] // step)
    )  # the planner's answer, then further and further from it
    while high - low > 1:
        began = time.perf_counter()
        good, peak = fits(policy, optimizer, guess * step, device)
        print(f"{guess * step} tokens: {good}, {peak / 2**30:.1f} GiB, {time.perf_counter() - began:.1f} s", flush=True)
        if good:
            low, peaks[guess * step] = guess, peak
        else:
            high = guess
        if good and high == most:
            guess = min(low + leap, most - 1)
        elif not good and low == 0:
            guess = max(high - leap, 1)
        else:
            guess = (low + high) // 2
        leap *= 2
    del engine
    row = {
        "cap_gib": arguments.cap_gib,
        "vllm_share": arguments.share,
        "longest_measured": low * step,
        "longest_planned": found["longest_context"],
        "plan_limit": found["limit"],
        "peaks_gib": {tokens: round(peak / 2**30, 2) for tokens, peak in sorted(peaks.items())},
        "shape": asdict(shape),
    }
    rows = json.loads(arguments.result.read_text(encoding="utf-8")) if arguments.result.exists() else []
    same = ("cap_gib", "vllm_share")
    rows = [*(one for one in rows if [one[name] for name in same] != [row[name] for name in same]), row]
    arguments.result.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({name: row[name] for name in row if name != "shape"}, indent=1))


if __name__ == "__main__":
    main()
