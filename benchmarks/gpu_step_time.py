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
checkpointing. Each part is timed between two synchronizations of the device, which costs all arms alike. Writes <folder>/<shape>-<arm>.json; `all` and `caches` also put them together in
benchmarks/gpu_step_time.json; an arm that fails leaves the others to run. In `caches` the second process gets its model by another path, as every
SFT model has its own. `--profile` adds Python's own profile of the last step, and the GPU's kernels in a micro-batch and in 20 decode steps of it; `--cap-gib` takes a smaller GPU for granted (with
`--set grpo.max_completion_length=...` and `--set model.max_context=...`: what fits into it).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.gpu_step_parts import BORN, Clock, Shape, model_folder, questions  # noqa: E402

RESULT = ROOT / "benchmarks" / "gpu_step_time.json"
CACHES = ("VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "UNSLOTH_MEGA_CACHE_DIR")
"""Where graphs and kernels are kept between processes."""
ARMS = ("stock-trl", "stock-unsloth", "ours-trl", "ours-unsloth")
SYSTEM = "Work in <start_working_out> <end_working_out>, answer in <SOLUTION> </SOLUTION>."


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

    clock.instrument(GRPOTrainer, shape.accumulation)
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

    config = load_config(
        "smollm2-135m-gpu",
        overrides=[
            f"model.source={folder}", f"model.max_context={shape.context}", f"model.load_in_4bit={four_bit}".lower(),
            f"run.backend={backend}", "sft.method=lora", "grpo.method=lora", f"grpo.max_steps={steps}", "grpo.learning_rate=5e-6",
            f"grpo.per_device_train_batch_size={shape.micro}", f"grpo.gradient_accumulation_steps={shape.accumulation}",
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
    clock.instrument(entry.LedgerTrainer, shape.accumulation)
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
    for old in (path, path.with_suffix(".kernels.txt")):
        old.unlink(missing_ok=True)
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
    kernels = path.with_suffix(".kernels.txt")
    more_lines = {"kernels": kernels.read_text().splitlines()} if arguments.profile and kernels.exists() else {}
    put(name, {**json.loads(path.read_text()), **more_lines})
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
