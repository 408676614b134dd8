"""Shared: the default contract, completions in it, and bad reward functions of a user's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline_config.contract import ContractConfig
from pipeline_config.rewards import RewardConfig, RewardFunction
from tasks.rewards.build import Rewards, build_rewards

CORPUS = Path(__file__).parents[3].parent / "shared" / "corpora" / "hacks.jsonl"

USER_MODULE = """
import asyncio, os, re, subprocess, sys, time

def text(completion):
    return completion if isinstance(completion, str) else completion[0]["content"]

def length(completions, **kwargs):
    return [float(len(text(c))) for c in completions]

def few_arguments(completions, answer):
    return [1.0 if a in text(c) else 0.0 for c, a in zip(completions, answer)]

async def waits(completions, **kwargs):
    await asyncio.sleep(0.01)
    return [2.0 for _ in completions]

def raises(completions, **kwargs):
    raise ValueError("the parser gave up")

def raises_on_bad(completions, log_metric=None, **kwargs):
    log_metric("mine/rows", len(completions))
    return [1 / 0 if "bad" in text(c) else 1.0 for c in completions]

def ranks(completions, **kwargs):
    if any("bad" in text(c) for c in completions):
        raise ValueError("bad")
    order = sorted(text(c) for c in completions)
    return [float(order.index(text(c))) for c in completions]

def returns_none(completions, **kwargs):
    return None

def one_element(completions, **kwargs):
    return [1.0]

def too_many(completions, **kwargs):
    return [1.0] * (len(completions) + 1)

def a_number(completions, **kwargs):
    return 1.0

def holes(completions, **kwargs):
    return [None, float("nan"), float("inf"), "1", True][: len(completions)]

def array(completions, **kwargs):
    import numpy
    return numpy.arange(len(completions), dtype="float32")

def hangs_on_bad(completions, **kwargs):
    for c in completions:
        while "bad" in text(c):
            pass
    return [1.0 for _ in completions]

def hangs_holding_the_lock(completions, **kwargs):
    re.match(r"(a+)+$", "a" * 60 + "b")
    return [1.0 for _ in completions]

def prints_1_gb(completions, **kwargs):
    block = "x" * (1 << 20)
    for _ in range(1024):
        sys.stdout.write(block)
    return [1.0 for _ in completions]

def returns_1_gb(completions, log_extra=None, **kwargs):
    log_extra("huge", ["x" * (1 << 29)] * len(completions))
    return ["x" * (1 << 29)] * len(completions)

def dies(completions, **kwargs):
    os._exit(3)

def exits(completions, **kwargs):
    sys.exit("no")

def starts_a_child_and_hangs(completions, **kwargs):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    with open(os.environ["PID_FILE"], "w") as file:
        file.write(f"{os.getpid()} {child.pid}")
    time.sleep(60)

def needs_a_column(completions, solution, **kwargs):
    return [1.0 for _ in completions]

def logs(completions, log_metric, log_extra, trainer_state, **kwargs):
    log_metric("mine/step", trainer_state.global_step)
    log_extra("length", [len(text(c)) for c in completions])
    return [1.0 for _ in completions]

def not_for_these(completions, **kwargs):
    return [None for _ in completions]

def no_completions(prompts):
    return []

def by_position(completions, /, **kwargs):
    return []

value = 3

class Reward:
    def __call__(self, completions, **kwargs):
        return [4.0 for _ in completions]

instance = Reward()
"""


@pytest.fixture
def contract() -> ContractConfig:
    return ContractConfig()


@pytest.fixture
def write() -> Callable[..., str]:
    """A completion in the default format."""

    def completion(answer: str, working: str = "3 + 5 = 8") -> str:
        return f"\n{working}\n<end_working_out>\n<SOLUTION>{answer}</SOLUTION>"

    return completion


@pytest.fixture
def hacks() -> list[dict[str, Any]]:
    if not CORPUS.exists():
        pytest.skip("../shared/corpora/hacks.jsonl is not there")
    return [json.loads(line) for line in CORPUS.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An importable module of good and bad reward functions; its name is new for every test."""
    name = f"user_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(USER_MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


class Batch:
    """Arguments as TRL passes them, and what was logged."""

    def __init__(self, texts: list[str], gold: str = "8", step: int = 7) -> None:
        self.metrics: dict[str, float] = {}
        self.extras: dict[str, list[Any]] = {}
        self.arguments: dict[str, Any] = {
            "prompts": [[{"role": "user", "content": "What is 3 + 5?"}] for _ in texts],
            "completions": [[{"role": "assistant", "content": text}] for text in texts],
            "completion_ids": [[1, 2, 3] for _ in texts],
            "answer": [gold for _ in texts],
            "trainer_state": SimpleNamespace(global_step=step, max_steps=10, epoch=0.5),
            "log_metric": self.metrics.__setitem__,
            "log_extra": self.extras.__setitem__,
        }


@pytest.fixture
def batch() -> type[Batch]:
    return Batch


@pytest.fixture
def build(user_module: str, contract: ContractConfig, tmp_path: Path) -> Iterator[Callable[..., Rewards]]:
    """Build rewards from names of functions in the user's module; closed after the test."""
    built: list[Rewards] = []

    def make(*names: str, preset: str | None = None, options: dict[str, Any] | None = None, **settings: Any) -> Rewards:
        functions = tuple(RewardFunction(path=f"{user_module}:{name}", **(options or {})) for name in names)
        config = RewardConfig(preset=preset, functions=functions, **settings)  # type: ignore[arg-type]
        built.append(build_rewards(config, contract, max_completion_length=100, work_dir=tmp_path))
        return built[-1]

    yield make
    for rewards in built:
        rewards.close()
