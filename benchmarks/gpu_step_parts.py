"""Parts of the step-time benchmark: the sizes that are compared, the model, and a clock for the parts of a step."""

from __future__ import annotations

import cProfile
import io
import json
import os
import pstats
import random
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.gpu_kernels import Kernels

BORN = time.perf_counter()
WORDS = "apples pears trains boxes litres metres hours coins"


class Shape:
    """Sizes of one comparison; tokens and completions are per step."""

    def __init__(self, name: str) -> None:
        large = name == "large"
        self.prompts, self.tokens, self.context = (8, 1024, 2048) if large else (64, 256, 512)
        self.micro = 8 if large else 64
        self.accumulation = self.prompts * 8 // self.micro
        self.share = 0.35 if large else 0.2
        self.filler = 150 if large else 8


def questions(shape: Shape, count: int) -> list[str]:
    """Sums in a story that is as long as the shape wants prompts to be."""
    chance = random.Random(0)
    words = WORDS.split()
    return [
        f"{' '.join(chance.choice(words) for _ in range(shape.filler))}. What is {chance.randint(10, 999)} + {i}?"
        for i in range(count)
    ]


def model_folder(folder: Path, shape_name: str) -> Path:
    """SmolLM2-135M from its package, or random weights of Qwen3-8B's shape with its tokenizer; made once.

    Made by `model` beforehand: unsloth wants to be imported before transformers, and the process that makes the weights keeps memory of the GPU.
    """
    small, large = folder / "small-model", folder / "large-model"
    if not (small / "config.json").exists():
        from tasks.models.smollm2 import build_smollm2

        build_smollm2(small)
    if shape_name == "small":
        return small
    if not (large / "config.json").exists():
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3Config

        tokenizer = AutoTokenizer.from_pretrained(small)
        config = Qwen3Config(
            vocab_size=49_152, hidden_size=4096, intermediate_size=12_288, num_hidden_layers=36, num_attention_heads=32,
            num_key_value_heads=8, head_dim=128, max_position_embeddings=40_960, tie_word_embeddings=False,
            bos_token_id=1, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, dtype="bfloat16",
        )  # fmt: skip
        torch.set_default_dtype(torch.bfloat16)
        with torch.device("cuda"):
            model = AutoModelForCausalLM.from_config(config)
        torch.set_default_dtype(torch.float32)
        tokenizer.save_pretrained(large)
        model.save_pretrained(large, max_shard_size="4GB")
    return large


class Clock:
    """Wall time of the parts of each step."""

    def __init__(self, arm: str, path: Path, steps: int, profile: bool) -> None:
        self.arm, self.path, self.steps, self.profile = arm, path, steps, profile
        self.parts: dict[str, float] = defaultdict(float)
        self.rows: list[dict[str, float]] = []
        self.profiler: cProfile.Profile | None = None
        self.kernels = Kernels(path.with_suffix(".kernels.txt"), self.unprofiled)
        self.imports = time.perf_counter() - BORN
        self.began = self.ready = time.perf_counter()

    @contextmanager
    def unprofiled(self) -> Iterator[None]:
        """Python's profiler off, for what is measured by another one."""
        if self.profiler:
            self.profiler.disable()
        yield
        if self.profiler:
            self.profiler.enable()

    def wrap(self, owner: Any, method: str, part: str) -> None:
        import torch

        inner = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            torch.cuda.synchronize()
            start = time.perf_counter()
            try:
                return inner(*args, **kwargs)
            finally:
                torch.cuda.synchronize()
                self.parts[part] += time.perf_counter() - start

        setattr(owner, method, timed)

    def instrument(self, trainer: type, accumulation: int) -> None:
        """Time the parts of a trainer class, which all arms inherit from TRL."""
        self.kernels.instrument(trainer, accumulation)
        self.wrap(trainer, "_generate_single_turn", "generation")
        self.wrap(trainer, "_calculate_rewards", "reward")
        self.wrap(trainer, "_generate_and_score_completions", "rollouts")
        try:
            from trl.generation.vllm_generation import VLLMGeneration
        except ImportError:
            return
        self.wrap(VLLMGeneration, "sync_weights", "weight_sync")

    def callback(self) -> Any:
        import torch
        from transformers import TrainerCallback

        clock = self

        class Steps(TrainerCallback):
            def on_train_begin(self, *_: Any, **__: Any) -> None:
                torch.cuda.synchronize()
                clock.ready = time.perf_counter()

            def on_step_begin(self, _args: Any, state: Any, *_: Any, **__: Any) -> None:
                torch.cuda.synchronize()
                clock.parts.clear()
                self.start = time.perf_counter()
                last = clock.profile and state.global_step + 1 == clock.steps
                clock.kernels.begin_step(last)
                clock.profiler = cProfile.Profile() if last else None
                if clock.profiler:
                    clock.profiler.enable()

            def on_step_end(self, _args: Any, state: Any, *_: Any, **__: Any) -> None:
                torch.cuda.synchronize()
                wall = time.perf_counter() - self.start
                if clock.profiler:
                    clock.profiler.disable()
                    text = io.StringIO()
                    pstats.Stats(clock.profiler, stream=text).sort_stats("tottime").print_stats(40)
                    clock.path.with_suffix(".profile.txt").write_text(text.getvalue())
                parts = dict(clock.parts)
                scoring = parts["rollouts"] - parts["generation"] - parts.get("reward", 0.0)
                clock.rows.append({"wall": wall, **parts, "scoring": scoring, "update": wall - parts["rollouts"]})
                print(state.global_step, {k: round(v, 2) for k, v in clock.rows[-1].items()}, flush=True)
                clock.write(state.log_history)
                if state.global_step >= clock.steps:
                    os._exit(0)  # nothing is worth saving

        return Steps()

    def write(self, history: list[dict[str, Any]]) -> None:
        import torch

        # The first two warm up; Python's profiler slows the last one down.
        warm = self.rows[2 : self.steps - self.profile] or self.rows[1:] or self.rows
        free, total = torch.cuda.mem_get_info()
        found = {
            "arm": self.arm,
            "imports_s": self.imports,
            "init_s": self.ready - self.began,
            "first_step_s": self.rows[0]["wall"],
            "median": {key: median(row.get(key, 0.0) for row in warm) for key in self.rows[-1]},
            "range": [min(row["wall"] for row in warm), max(row["wall"] for row in warm)],
            "steps": self.rows,
            "peak_allocated_gib": torch.cuda.max_memory_allocated() / 2**30,
            "used_on_device_gib": (total - free) / 2**30,
            "mean_length": [row["completions/mean_length"] for row in history if "completions/mean_length" in row],
            "sampling_gap": [row.get("sampling/sampling_logp_difference/mean") for row in history if "reward" in row],
            "is_ratio": [row.get("sampling/importance_sampling_ratio/mean") for row in history if "reward" in row],
        }
        self.path.write_text(json.dumps(found, indent=1) + "\n")
