"""Time of a GRPO step on one GPU, ours beside stock TRL with vLLM colocated and stock Unsloth, split into its parts.

    python benchmarks/gpu_step_time.py all --shape small --steps 8 --folder /tmp/steps      # model: SmolLM2-135M
    python benchmarks/gpu_step_time.py all --shape large --steps 4 --folder /tmp/steps      # random weights of Qwen3-8B's shape
    python benchmarks/gpu_step_time.py all --shape large --steps 4 --four-bit --arms stock-unsloth ours-unsloth --folder /tmp/steps
    python benchmarks/gpu_step_time.py caches --arms ours-trl --steps 3 --folder /tmp/steps   # the same twice: nothing cached, then what that left
    python benchmarks/gpu_step_time.py one --arm ours-trl --shape small --steps 8 --folder /tmp/steps

Every arm runs in a process of its own, one after the other: LoRA of rank 32 on all projections, the same prompts, groups of 8,
temperature 1, beta 0, completions that always reach the limit (`ignore_eos`). Small: 64 prompts x 8 x 256 tokens, micro-batches of 64. Large:
8 prompts x 8 x 1,024, micro-batches of 8. Stock arms have their libraries' defaults otherwise (gradient checkpointing on, as TRL and Unsloth's notebooks
have it) and a reward that is a random number; ours is the real stage `grpo` with its reward, ledger, canary and log, without gradient
checkpointing, and under trl in micro-batches of 4 where the shape is large, which give the same update. Each part is timed between two
synchronizations of the device, which costs all arms alike. Writes <folder>/<shape>-<arm>.json; `all` and `caches` also put them together in
benchmarks/gpu_step_time.json; an arm that fails leaves the others to run. In `caches` the second process gets its model by another path, as every
SFT model has its own. `--profile` adds Python's own profile of the last step's rollouts, `--cap-gib` takes a smaller GPU for granted (with
`--set grpo.max_completion_length=...` and `--set model.max_context=...`: what fits into it).
"""

from __future__ import annotations

import argparse
import cProfile
import io
import json
import os
import pstats
import random
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

BORN = time.perf_counter()
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

RESULT = ROOT / "benchmarks" / "gpu_step_time.json"
CACHES = ("VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "UNSLOTH_MEGA_CACHE_DIR")
"""Where graphs and kernels are kept between processes."""
ARMS = ("stock-trl", "stock-unsloth", "ours-trl", "ours-unsloth")
SYSTEM = "Work in <start_working_out> <end_working_out>, answer in <SOLUTION> </SOLUTION>."
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
        # Without gradient checkpointing 8 rows keep 80 GB of activations, more than there is beside weights and engine.
        self.ours = 4 if large else self.micro


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
        self.imports = time.perf_counter() - BORN
        self.began = self.ready = time.perf_counter()

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

    def instrument(self, trainer: type) -> None:
        """Time the parts of a trainer class, which all arms inherit from TRL."""
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
                self.profiler = cProfile.Profile() if clock.profile and state.global_step + 1 == clock.steps else None
                if self.profiler:
                    self.profiler.enable()

            def on_step_end(self, _args: Any, state: Any, *_: Any, **__: Any) -> None:
                torch.cuda.synchronize()
                wall = time.perf_counter() - self.start
                if self.profiler:
                    self.profiler.disable()
                    text = io.StringIO()
                    pstats.Stats(self.profiler, stream=text).sort_stats("tottime").print_stats(40)
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


def stock(arm: str, folder: Path, shape: Shape, steps: int, four_bit: bool, clock: Clock) -> None:
    """TRL's or Unsloth's trainer as their documentation sets it up."""
    if arm == "stock-unsloth":
        from unsloth import FastLanguageModel
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    from pipeline_config.training import ALL_PROJECTIONS

    clock.imports = time.perf_counter() - BORN
    clock.began = time.perf_counter()
    model: Any = str(folder)
    more: dict[str, Any] = {"peft_config": LoraConfig(r=32, lora_alpha=64, target_modules=list(ALL_PROJECTIONS))}
    if arm == "stock-unsloth":
        model, _ = FastLanguageModel.from_pretrained(
            model_name=str(folder), max_seq_length=shape.context, load_in_4bit=four_bit, fast_inference=True,
            max_lora_rank=32, gpu_memory_utilization=shape.share,
        )  # fmt: skip
        model = FastLanguageModel.get_peft_model(
            model, r=32, lora_alpha=64, target_modules=list(ALL_PROJECTIONS), use_gradient_checkpointing="unsloth"
        )
        more = {}
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = [
        {"prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]}
        for text in questions(shape, shape.prompts * (steps + 1))
    ]
    arguments = GRPOConfig(
        output_dir=str(clock.path.with_suffix("")), max_steps=steps, logging_steps=1, report_to="none", save_strategy="no", bf16=True,
        learning_rate=5e-6, per_device_train_batch_size=shape.micro, gradient_accumulation_steps=shape.accumulation,
        num_generations=8, max_completion_length=shape.tokens, temperature=1.0, beta=0.0, loss_type="grpo",
        use_vllm=True, vllm_mode="colocate", vllm_gpu_memory_utilization=shape.share,
        generation_kwargs={"ignore_eos": True},
        **({} if arm == "stock-unsloth" else {"vllm_max_model_length": shape.context, "model_init_kwargs": {"dtype": "bfloat16"}}),
    )  # fmt: skip

    def reward(completions: list[Any], **_: Any) -> list[float]:
        return [random.random() for _ in completions]

    clock.instrument(GRPOTrainer)
    trainer = GRPOTrainer(
        model=model, reward_funcs=reward, args=arguments, train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer, callbacks=[clock.callback()], **more,
    )  # fmt: skip
    trainer.train()


def ours(
    arm: str, folder: Path, shape: Shape, steps: int, four_bit: bool, clock: Clock, work: Path, sets: list[str]
) -> None:
    """The stage `grpo`, with its trainer's methods timed and completions that always reach the limit."""
    from tasks.training.unsloth import BACKEND_VARIABLE, import_first

    os.environ[BACKEND_VARIABLE] = backend = arm.removeprefix("ours-")
    import_first()
    import pyarrow as pa
    import pyarrow.parquet as pq

    from pipeline_config.loading import load_config
    from tasks.grpo import entry
    from tasks.process.context import StageContext

    micro = shape.ours if backend == "trl" else shape.micro
    config = load_config(
        "smollm2-135m-gpu",
        overrides=[
            f"model.source={folder}", f"model.max_context={shape.context}", f"model.load_in_4bit={four_bit}".lower(),
            f"run.backend={backend}", "sft.method=lora", "grpo.method=lora", f"grpo.max_steps={steps}", "grpo.learning_rate=5e-6",
            f"grpo.per_device_train_batch_size={micro}", f"grpo.gradient_accumulation_steps={shape.prompts * 8 // micro}",
            f"grpo.max_completion_length={shape.tokens}", "grpo.loss_type=grpo", "grpo.save_steps=1000000",
            "grpo.watchdog=off", "grpo.checkpoint_choice.enabled=false", "vllm.enabled=on",
            f"vllm.gpu_memory_utilization={shape.share}", *sets,
        ],
    )  # fmt: skip
    for name in ("out", "checkpoints", "sft", "dataset"):
        (work / name).mkdir(parents=True, exist_ok=True)
    (work / "sft" / "model").symlink_to(folder)
    rows = [
        {"id": str(i), "question": text, "answer": str(i), "source": "steps"}
        for i, text in enumerate(questions(shape, shape.prompts * (steps + 1)))
    ]
    for name in ("train", "gate"):
        pq.write_table(pa.Table.from_pylist(rows), work / "dataset" / f"{name}.parquet")
    asked = entry.grpo_arguments

    def with_full_length(*args: Any, **kwargs: Any) -> Any:
        arguments = asked(*args, **kwargs)
        arguments.generation_kwargs = {**(arguments.generation_kwargs or {}), "ignore_eos": True}
        return arguments

    entry.grpo_arguments = with_full_length
    clock.imports = time.perf_counter() - BORN
    clock.began = time.perf_counter()
    clock.instrument(entry.LedgerTrainer)
    clocked = entry.LedgerTrainer.__init__

    def init(trainer: Any, *args: Any, **kwargs: Any) -> None:
        clocked(trainer, *args, **kwargs)
        trainer.add_callback(clock.callback())

    entry.LedgerTrainer.__init__ = init  # type: ignore[method-assign,assignment]
    entry.run(StageContext(config, {"sft": work / "sft", "dataset": work / "dataset"}, work, seed=0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("one", "all", "caches", "model"))
    parser.add_argument("--arm", choices=ARMS, default="ours-trl", help="of `one`")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS[:3]), help="of `all` and `caches`")
    parser.add_argument("--shape", choices=("small", "large"), default="small")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--limit", type=float, default=400.0, help="seconds for one arm of `all` and `caches`")
    parser.add_argument("--model", type=Path, help="another path of the model, for `one`")
    parser.add_argument("--four-bit", action="store_true", help="unsloth only")
    parser.add_argument("--label", default="", help="added to the name of the result")
    parser.add_argument("--set", action="append", default=[], dest="sets", help="a further setting of ours")
    parser.add_argument("--cap-gib", type=float, help="as if the GPU had only so much memory")
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    arms = [arguments.arm] if arguments.what == "one" else arguments.arms
    if arguments.four_bit and not all(arm.endswith("unsloth") for arm in arms):
        parser.error("--four-bit is for the unsloth arms only")
    arguments.folder = arguments.folder.resolve()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.what in ("all", "caches"):
        where = ["--shape", arguments.shape, "--folder", str(arguments.folder)]
        subprocess.run([sys.executable, __file__, "model", *where], check=True)
    model = model_folder(arguments.folder, arguments.shape)
    if arguments.what == "all":
        sys.exit(1 if [arm for arm in arms if not child(arguments, arm, arguments.label)] else 0)
    if arguments.what == "caches":
        sys.exit(1 if [arm for arm in arms if not twice(arguments, arm, model)] else 0)
    if arguments.what == "one":
        one(arguments, arguments.model or model)


def name_of(arguments: argparse.Namespace, arm: str, label: str) -> str:
    return f"{arguments.shape}-{arm}{'-4bit' if arguments.four_bit else ''}{label}"


def one(arguments: argparse.Namespace, model: Path) -> None:
    """One arm in this process, which ends with it."""
    name, shape = name_of(arguments, arguments.arm, arguments.label), Shape(arguments.shape)
    if arguments.cap_gib:
        import torch

        share = arguments.cap_gib * 2**30 / torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction(share)
        shape.share *= share
    clock = Clock(name, arguments.folder / f"{name}.json", arguments.steps, arguments.profile)
    if arguments.arm.startswith("stock"):
        stock(arguments.arm, model, shape, arguments.steps, arguments.four_bit, clock)
    else:
        work = arguments.folder / f"work-{name}-{os.getpid()}"
        ours(arguments.arm, model, shape, arguments.steps, arguments.four_bit, clock, work, arguments.sets)


def child(
    arguments: argparse.Namespace, arm: str, label: str, more: tuple[str, ...] = (), env: dict[str, str] | None = None
) -> bool:
    """Run one arm in a process of its own and put its result with the others; False when it failed."""
    name = name_of(arguments, arm, label)
    path: Path = arguments.folder / f"{name}.json"
    path.unlink(missing_ok=True)
    put(name, None)
    line = [sys.executable, __file__, "one", "--arm", arm, "--shape", arguments.shape, "--steps", str(arguments.steps)]
    line += ["--folder", str(arguments.folder), f"--label={label}", *more]
    line += [part for text in arguments.sets for part in ("--set", text)]
    line += ["--four-bit"] * arguments.four_bit + ["--profile"] * arguments.profile
    line += ["--cap-gib", str(arguments.cap_gib)] if arguments.cap_gib else []
    try:
        code = subprocess.run(line, env={**os.environ, **(env or {})}, timeout=arguments.limit, check=False).returncode
    except subprocess.TimeoutExpired:
        code = 124
    if code or not path.exists():
        print(f"{name}: failed, exit code {code}", file=sys.stderr, flush=True)
        return False
    put(name, json.loads(path.read_text()))
    return True


def put(name: str, result: dict[str, Any] | None) -> None:
    """Write one arm's result beside the others, which stay; None takes an earlier one away."""
    found = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    found.pop(name, None)
    RESULT.write_text(json.dumps({**found, **({name: result} if result else {})}, indent=1) + "\n")


def twice(arguments: argparse.Namespace, arm: str, model: Path) -> bool:
    """One arm with empty compile caches, then with those that it left and the model at another path."""
    caches: Path = arguments.folder / f"caches-{arm}"
    shutil.rmtree(caches, ignore_errors=True)
    env = {name: str(caches / name.lower()) for name in CACHES}
    link = arguments.folder / f"{model.name}-again"
    link.unlink(missing_ok=True)
    link.symlink_to(model)
    return child(arguments, arm, f"{arguments.label}-cold", env=env) and child(
        arguments, arm, f"{arguments.label}-warm", ("--model", str(link)), env
    )


if __name__ == "__main__":
    main()
