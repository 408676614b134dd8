"""The whole chain on the `tiny` profile: it learns, it is cached, and it resumes after any kind of death."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from chain_support import ROOT, Chain, environment

from artifacts.manifest import Manifest
from artifacts.store import Store, open_store

STAGES = [
    "model",
    "dataset",
    "preflight",
    "evaluation_sets",
    "sft",
    "format_gate",
    "grpo",
    "evaluate_base",
    "evaluate_sft",
    "evaluate_grpo",
    "export",
]
QUICK_GRPO = ["grpo.max_steps=6", "grpo.save_steps=1", "grpo.per_device_train_batch_size=32", "grpo.watchdog=off"]


def store(chain: Chain) -> Store:
    return open_store(str(chain.home / "store"))


def latest(chain: Chain, stage: str) -> Manifest:
    return store(chain).find(f"{stage}:latest")


def plan(chain: Chain, *sets: str) -> dict[str, dict[str, Any]]:
    options = [text for item in sets for text in ("--set", item)]
    done = chain.call("plan", *chain.options, *options, "--json")
    assert done.returncode == 0, done.stderr
    return {step["stage"]: step for step in json.loads(done.stdout)}


def test_every_stage_leaves_an_artifact_and_the_run_a_report(chain: Chain) -> None:
    assert list(plan(chain)) == STAGES
    assert {step["action"] for step in plan(chain).values()} == {"reuse"}
    names = {entry.path for entry in latest(chain, "export").files}
    assert {"model-f16.gguf", "model-q4_k_m.gguf", "proof.json", "Modelfile"} <= names
    (report,) = (chain.home / "reports").glob("*/report.html")
    assert "pass@1" in report.read_text(encoding="utf-8")


def test_the_sft_model_passes_the_gate_and_grpo_makes_it_better(chain: Chain) -> None:
    gate = latest(chain, "format_gate").metrics
    assert gate["format_rate_low"] > 0.8
    before, after = latest(chain, "evaluate_sft").metrics, latest(chain, "evaluate_grpo").metrics
    # Above by more than both 95 % intervals, at the training temperature.
    assert after["pass_at_1"]["low"] > before["pass_at_1"]["high"]
    assert after["strict"]["rate"] >= before["strict"]["low"]


def test_reward_goes_up(chain: Chain) -> None:
    folder = store(chain).local_folder(latest(chain, "grpo"))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    rewards = [row["reward"] for row in rows]
    quarter = max(1, len(rewards) // 4)
    assert sum(rewards[-quarter:]) / quarter > sum(rewards[:quarter]) / quarter


def test_the_reference_policy_is_the_sft_model(chain: Chain) -> None:
    folder = store(chain).local_folder(latest(chain, "grpo"))
    first = json.loads((folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[0])
    if "kl" in first:
        assert abs(first["kl"]) < 1e-3
    assert latest(chain, "grpo").parents["sft"].fingerprint == latest(chain, "sft").fingerprint


def test_llama_cpp_answers_like_the_model(chain: Chain) -> None:
    for name in ("f16", "q4_k_m"):
        assert latest(chain, "export").metrics[name]["verdict"] in ("released", "released_with_warning")


def test_a_second_run_reuses_every_stage(chain: Chain) -> None:
    done = chain.call("run", *chain.options)
    assert done.returncode == 0, done.stderr
    newest = sorted((chain.home / "store" / "runs").glob("*.json"))[-1]
    record = json.loads(newest.read_text(encoding="utf-8"))
    assert [item["action"] for item in record["stages"]] == ["reused"] * len(STAGES)


def test_the_plan_names_the_changed_term_and_only_what_depends_on_it_reruns(chain: Chain) -> None:
    steps = plan(chain, "grpo.learning_rate=2e-5")
    assert "learning_rate" in steps["grpo"]["reason"]
    assert {name for name, step in steps.items() if step["action"] != "reuse"} == {"grpo", "evaluate_grpo", "export"}
    assert plan(chain, "data.seed=5")["dataset"]["action"] == "run"
    assert plan(chain, "data.seed=5")["model"]["action"] == "reuse"
    assert {step["action"] for step in plan(chain, "grpo.logging_steps=3", "sft.logging_steps=7").values()} == {"reuse"}


def test_another_evaluation_set_trains_nothing_again(chain: Chain) -> None:
    steps = plan(
        chain, "evaluation.sets=[{name: three, source: {kind: generated, problem: sum, max_terms: 3}, problems: 5}]"
    )
    again = {name for name, step in steps.items() if step["action"] != "reuse"}
    assert again == {"evaluation_sets", "evaluate_base", "evaluate_sft", "evaluate_grpo", "export"}
    # The export reads the answers to the held-out problems only, which stay as they are: it will be reused in the run.
    assert steps["export"]["action"] == "wait"


def test_the_kept_checkpoint_was_chosen_by_held_out_accuracy(chain: Chain) -> None:
    grpo = latest(chain, "grpo").metrics
    choice = grpo["checkpoint_choice"]
    assert [candidate["step"] for candidate in choice["candidates"]] == [6, 12, grpo["steps"]]
    assert all(0 <= c["low"] <= c["rate"] <= c["high"] <= 1 and c["n"] == 48 for c in choice["candidates"])
    by_step = {candidate["step"]: candidate["rate"] for candidate in choice["candidates"]}
    assert by_step[choice["chosen"]] >= by_step[choice["last"]]


def test_an_altered_file_is_noticed_and_only_that_stage_is_made_again(chain: Chain, tmp_path: Path) -> None:
    copy = Chain(tmp_path / "copy")
    shutil.copytree(chain.home, copy.home)
    folder = store(copy).local_folder(latest(copy, "export"))
    file = folder / "samples.jsonl"
    file.write_bytes(file.read_bytes()[:-1] + b" ")
    assert "damaged" in plan(copy)["export"]["reason"]
    done = copy.call("run", *copy.options)
    assert done.returncode == 0, done.stderr
    newest = sorted((copy.home / "store" / "runs").glob("*.json"))[-1]
    actions = {item["stage"]: item["action"] for item in json.loads(newest.read_text(encoding="utf-8"))["stages"]}
    assert {stage for stage, action in actions.items() if action == "made"} == {"export"}
    assert "samples.jsonl" in done.stdout + done.stderr
    # The local server was told everything before it was ended.
    assert "Error logging to API" not in done.stdout + done.stderr


def alive(home: Path) -> list[psutil.Process]:
    """Processes that work below `home`."""
    found = []
    for process in psutil.process_iter():
        try:
            text = " ".join(process.cmdline())
            if str(home) in text and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def running(processes: list[psutil.Process]) -> list[psutil.Process]:
    found = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def start_grpo(chain: Chain, seed: int) -> subprocess.Popen[bytes]:
    """Start a short GRPO from the cached SFT model; returns once a few steps have been logged."""
    command = chain.command("run", *chain.options, "--stop-after", "grpo")
    for item in [*QUICK_GRPO, f"grpo.epsilon=0.{seed}"]:
        command += ["--set", item]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and process.poll() is None:
        logs = list((chain.home / "work").glob("grpo-*/metrics.jsonl"))
        if logs and logs[0].read_text(encoding="utf-8").count("\n") >= 3:
            return process
        time.sleep(0.1)
    raise AssertionError("GRPO did not get to its third step")


def victims(process: subprocess.Popen[bytes], home: Path, which: str) -> list[int]:
    mine = alive(home)
    trainers = [
        p.pid
        for p in mine
        if "tasks.process.stage_main" in " ".join(p.cmdline()) and "supervisor" not in " ".join(p.cmdline())
    ]
    supervisors = [p.pid for p in mine if "tasks.process.supervisor" in " ".join(p.cmdline())]
    return {
        "flow": [process.pid],
        "supervisor": supervisors,
        "trainer": trainers,
        "flow+supervisor": [process.pid, *supervisors],
    }[which]


@pytest.mark.parametrize(
    ("which", "number", "seed"),
    [
        ("flow", signal.SIGKILL, 21),
        pytest.param("supervisor", signal.SIGKILL, 22, marks=pytest.mark.slow),
        ("trainer", signal.SIGKILL, 23),
        ("flow", signal.SIGTERM, 24),
    ],
)
def test_after_any_death_nothing_is_left_and_the_next_run_resumes(
    chain: Chain, tmp_path: Path, which: str, number: int, seed: int
) -> None:
    copy = Chain(tmp_path / "copy")
    shutil.copytree(chain.home, copy.home)
    process = start_grpo(copy, seed)
    # The local Prefect server and its supervisor are among these.
    family = psutil.Process(process.pid).children(recursive=True)
    for pid in victims(process, copy.home, which):
        os.kill(pid, number)
    if which == "flow":
        process.wait(timeout=60)
        deadline = time.monotonic() + 20
        while (alive(copy.home) or running(family)) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert alive(copy.home) == []
        assert running(family) == []
        options = [text for item in [*QUICK_GRPO, f"grpo.epsilon=0.{seed}"] for text in ("--set", item)]
        done = copy.call("run", *copy.options, "--stop-after", "grpo", *options)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    else:
        # The flow is alive: it retries by itself.
        assert process.wait(timeout=300) == 0
    manifest = latest(copy, "grpo")
    assert manifest.metrics["steps"] == 6
    assert manifest.resumed_from_step is not None and manifest.resumed_from_step >= 1
    folder = store(copy).local_folder(manifest)
    steps = [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert steps == sorted(set(steps))
