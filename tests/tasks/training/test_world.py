"""Two processes train as one does with the same batch, write one set of files, and stop and resume together.

Tolerance: sums over a batch are added up in another order, so that after a few steps of AdamW losses agree to 1e-3 of their size and
weights to a hundredth of what a step may move them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_config.loading import load_config
from tasks.models.tiny import build_tiny
from tasks.process.checkpoints import newest_complete
from tasks.process.context import StageContext, StageSpec, write_spec
from tasks.process.launch import run_supervised, stage_argv
from tasks.process.outcome import to_error

pytest.importorskip("trl")
ROOT = Path(__file__).resolve().parents[3]
SCRIPT = Path(__file__).with_name("two_processes.py")
REWARD = "def digit(completions, **_):\n    return [int(c[0]['content']) / 10 for c in completions]\n"
SFT = ["sft.max_steps=6", "sft.save_steps=2", "sft.warmup_steps=1"]
GRPO = [
    "grpo.max_steps=4",
    "grpo.save_steps=2",
    "grpo.checkpoint_choice.enabled=false",
    "grpo.num_generations=4",
    "grpo.max_completion_length=4",
    "grpo.watchdog=off",
    "grpo.beta=0.01",
    "grpo.rewards.preset=null",
    "grpo.rewards.functions=[{path: 'digit_reward:digit'}]",
]
STEP = {"sft": 1e-3, "grpo": 5e-5}
"""Learning rates of the profile: about what a step of AdamW moves a weight."""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("inputs")
    build_tiny(folder / "model" / "model", seed=0)
    rows = [
        {"id": f"p{i}", "question": f"{i} + 3 = ?", "working": f"{i} + 3", "answer": str(i + 3), "source": "sum"}
        for i in range(64)
    ]
    (folder / "dataset").mkdir()
    for name in ("train", "sft"):
        pq.write_table(pa.Table.from_pylist(rows), folder / "dataset" / f"{name}.parquet")
    (folder / "digit_reward.py").write_text(REWARD)
    return {"model": folder / "model", "sft": folder / "model", "dataset": folder / "dataset"}


def prepare(stage: str, work: Path, inputs: dict[str, Path], processes: int, *more: str) -> Path:
    """A work directory with its spec; the whole batch has 8 rows or completions."""
    config = load_config(
        "tiny",
        overrides=[
            *(SFT if stage == "sft" else GRPO),
            f"{stage}.per_device_train_batch_size={8 // processes}",
            *(["grpo.per_device_train_batch_size=4"] if stage == "sft" else []),
            *(["grpo.num_generations=4"] if stage == "sft" else []),
            f"parallel.processes={processes}",
            *more,
        ],
    )
    work.mkdir(exist_ok=True)
    return write_spec(
        StageSpec(
            stage=stage,
            fingerprint="f",
            config=config.model_dump(mode="json"),
            inputs={name: str(folder) for name, folder in inputs.items()},
            work_dir=work,
            seed=7,
        )
    )


def command(spec: Path, script: bool) -> list[str]:
    if script:
        return [sys.executable, str(SCRIPT), str(spec.parent)]
    return [sys.executable, "-P", "-m", "tasks.process.stage_main", "--spec", str(spec)]


def start(spec: Path, inputs: dict[str, Path], script: bool = False) -> subprocess.Popen[str]:
    paths = os.pathsep.join([str(ROOT), str(inputs["dataset"].parent)])
    env = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(
        command(spec, script), env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT
    )


def run(spec: Path, inputs: dict[str, Path], script: bool = False) -> dict[str, Any]:
    process = start(spec, inputs, script)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output[-3000:]
    result: dict[str, Any] = json.loads((spec.parent / "result.json").read_text())
    return result


def rows(work: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (work / "metrics.jsonl").read_text().splitlines()]


def weights(work: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return {name: tensor.float() for name, tensor in load_file(work / "out" / "model" / "model.safetensors").items()}


def assert_same(stage: str, one: Path, two: Path, keys: tuple[str, ...]) -> None:
    ours, theirs = rows(one), rows(two)
    assert [row["step"] for row in ours] == [row["step"] for row in theirs]  # each row once
    for key in keys:
        assert [row[key] for row in theirs] == pytest.approx([row[key] for row in ours], rel=1e-3, abs=1e-5), key
    a, b = weights(one), weights(two)
    apart = max((a[name] - b[name]).abs().mean().item() for name in a)
    assert apart < 0.01 * STEP[stage], apart


def alone(stage: str, work: Path, inputs: dict[str, Path], *more: str) -> None:
    """The stage in this process."""
    from importlib import import_module

    spec = json.loads(prepare(stage, work, inputs, 1, *more).read_text())
    ctx = StageContext(load_config_of(spec), inputs, work, seed=spec["seed"], stage=stage)
    import_module(f"tasks.{stage}.entry").run(ctx)


def load_config_of(spec: dict[str, Any]) -> Any:
    from pipeline_config.pipeline import PipelineConfig

    return PipelineConfig.model_validate(spec["config"])


def test_sft_on_two_processes(inputs: dict[str, Path], tmp_path: Path) -> None:
    alone("sft", tmp_path / "one", inputs)
    result = run(prepare("sft", tmp_path / "two", inputs, 2), inputs)
    assert_same("sft", tmp_path / "one", tmp_path / "two", ("loss", "grad_norm", "learning_rate"))
    assert result["metrics"]["steps"] == 6 and result["metrics"]["rows"] == 64
    memory = result["metrics"]["memory"]
    assert memory["parts"]["weights"] == 4 * result["metrics"]["parameters"]
    assert memory["predicted"] > 10**9 and memory["resident"] > 10**8 and "relative_error" not in memory
    checkpoint = newest_complete(tmp_path / "two" / "checkpoints", print)
    assert checkpoint is not None and (checkpoint / "rng_state_1.pth").exists()
    marked = json.loads((checkpoint / "complete.json").read_text())["files"]
    assert {"rng_state_0.pth", "rng_state_1.pth"} <= set(marked)  # not before every process has written its part


def test_grpo_on_two_processes(inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(inputs["dataset"].parent))
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import two_processes

    from tasks.grpo.trainer import LedgerTrainer

    with monkeypatch.context() as patch:
        patch.setattr(LedgerTrainer, "_generate_single_turn", two_processes.fixed_rollouts())
        alone("grpo", tmp_path / "one", inputs)
    result = run(prepare("grpo", tmp_path / "two", inputs, 2), inputs, script=True)
    keys = (
        "loss",
        "grad_norm",
        "kl",
        "reward",
        "reward_std",
        "rewards/digit/mean",
        "completions/mean_length",
        "outcomes/right",
    )
    assert_same("grpo", tmp_path / "one", tmp_path / "two", keys)
    assert max(row["grad_norm"] for row in rows(tmp_path / "one")) > 0  # something was learnt at all
    assert result["metrics"]["completions"] == 4 * 8
    kept = [json.loads(line) for line in (tmp_path / "two" / "out" / "rollouts.jsonl").read_text().splitlines()]
    assert len(kept) == 4 * 4  # the first four of rank 0, once a step


@pytest.mark.parametrize("stage", ["sft", "grpo"])
def test_half_the_micro_batch_is_the_same_optimization(
    inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """What a stage that ran out of memory does next (`tasks.process.step_down`)."""
    monkeypatch.syspath_prepend(str(inputs["dataset"].parent))
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import two_processes

    from tasks.grpo.trainer import LedgerTrainer

    monkeypatch.setattr(LedgerTrainer, "_generate_single_turn", two_processes.fixed_rollouts())
    alone(stage, tmp_path / "one", inputs)
    smaller = [f"{stage}.per_device_train_batch_size=4", f"{stage}.gradient_accumulation_steps=2"]
    alone(stage, tmp_path / "two", inputs, *smaller)
    assert_same(stage, tmp_path / "one", tmp_path / "two", ("loss", "grad_norm"))


@pytest.mark.slow
def test_a_killed_rank_ends_the_stage_under_its_supervisor(inputs: dict[str, Path], tmp_path: Path) -> None:
    spec = prepare("sft", tmp_path / "two", inputs, 2, "sft.max_steps=400", "sft.save_steps=2")
    killed: list[int] = []

    def kill_rank_1() -> None:
        if killed or not list((tmp_path / "two" / "checkpoints").glob("*/complete.json")):
            return
        for process in psutil.Process().children(recursive=True):
            if process.environ().get("RANK") == "1":
                killed.append(process.pid)
                process.kill()

    result = run_supervised(
        stage_argv(spec),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        log_path=tmp_path / "two" / "stage.log",
        on_line=lambda _: None,
        on_poll=kill_rank_1,
        poll_s=0.2,
        timeout_s=200,
    )
    error = to_error(result, tmp_path / "two")
    assert killed and (result.exit_code, error.cause, error.retryable) == (137, "killed", True)
    assert newest_complete(tmp_path / "two" / "checkpoints", print) is not None
    left = [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(p.info["cmdline"] or [])]
    assert left == []


@pytest.mark.slow
def test_stop_and_resume_on_two_processes(inputs: dict[str, Path], tmp_path: Path) -> None:
    more = ["sft.max_steps=40", "sft.save_steps=50"]
    run(prepare("sft", tmp_path / "whole", inputs, 2, *more), inputs)
    spec = prepare("sft", tmp_path / "two", inputs, 2, *more)
    process = start(spec, inputs)
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and not (spec.parent / "metrics.jsonl").exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 143, output[-3000:]
    checkpoint = newest_complete(tmp_path / "two" / "checkpoints", print)
    assert checkpoint is not None and checkpoint.name != "checkpoint-40"
    prepare("sft", tmp_path / "two", inputs, 2, *more)
    result = run(spec, inputs)
    assert result["metrics"]["resumed_from_step"] == int(checkpoint.name.rpartition("-")[2])
    assert_same("sft", tmp_path / "whole", tmp_path / "two", ("loss", "learning_rate"))
