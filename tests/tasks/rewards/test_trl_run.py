"""Bad rewards in a real GRPOTrainer: the run goes on, failed rows carry no advantage, or it stops with the sample."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline_config.contract import ContractConfig
from pipeline_config.rewards import RewardConfig, RewardFunction
from tasks.errors import RunStopped
from tasks.models.tiny import build_tiny
from tasks.rewards.build import Rewards, build_rewards

trl = pytest.importorskip("trl", reason="trl is not installed")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    build_tiny(path, seed=0)
    return path


@pytest.fixture
def trainer(model: Path, tmp_path: Path) -> Callable[..., Any]:
    from datasets import Dataset
    from transformers import AutoTokenizer

    def make(rewards: Rewards, steps: int, batch: int = 8) -> Any:
        functions, weights = rewards
        arguments = trl.GRPOConfig(
            output_dir=str(tmp_path / "trainer"), max_steps=steps, save_steps=2,
            num_generations=4, max_completion_length=4,
            per_device_train_batch_size=batch, gradient_accumulation_steps=1, logging_steps=1, report_to="none",
            reward_weights=weights, use_cpu=True, bf16=False, gradient_checkpointing=False,
        )  # fmt: skip
        rows = [{"prompt": [{"role": "user", "content": f"What is 3 + {i}?"}], "answer": str(3 + i)} for i in range(8)]
        return trl.GRPOTrainer(
            model=str(model), reward_funcs=functions, args=arguments, train_dataset=Dataset.from_list(rows),
            processing_class=AutoTokenizer.from_pretrained(model),
        )  # fmt: skip

    return make


def test_failed_rows_have_no_advantage_and_shares_are_logged(
    contract: ContractConfig, trainer: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "odd_rows.py").write_text(
        "def odd(completions, **kwargs):\n"
        "    return [float('nan') if row % 2 else float(row) for row in range(len(completions))]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    config = RewardConfig(functions=(RewardFunction(path="odd_rows:odd"),), max_error_rate=1.0)
    with build_rewards(config, contract, max_completion_length=4) as rewards:
        run = trainer(rewards, 1)
        run.train()
    advantages = list(run._logs["advantages"])
    assert len(advantages) == 8
    assert all(a == 0.0 for a in advantages[1::2]) and all(a != 0.0 for a in advantages[0::2])
    assert advantages[0] == pytest.approx(-advantages[2])  # the mean is that of the two scored rows of the group
    row = next(row for row in run.state.log_history if "reward" in row)
    assert row["reward_errors/odd"] == row["outcomes/error"] == 0.5 and row["reward_errors/sound"] == 0.0
    assert row["outcomes/right"] == 0.0 and row["rewards/odd/mean"] == 3.0  # rows 0, 2, 4, 6
    assert sum(v for k, v in row.items() if k.startswith("outcomes/") and k != "outcomes/error") == pytest.approx(1.0)
    assert len(run._logs["extra"]["grade"]) == 8


def test_a_reward_that_always_raises_stops_with_a_usable_checkpoint(
    build: Callable[..., Rewards], trainer: Callable[..., Any], tmp_path: Path
) -> None:
    run = trainer(build("raises"), 20, batch=16)
    with pytest.raises(RunStopped, match="'raises' failed on 100% of the last 64 completions"):
        run.train()
    assert run.state.global_step == 3  # the fourth batch of 16 completions was being scored
    assert (tmp_path / "trainer" / "checkpoint-2" / "model.safetensors").exists()
    rows = [row for row in run.state.log_history if "reward" in row]
    assert all(row["reward"] is None and row["reward_errors/raises"] == 1.0 for row in rows)
