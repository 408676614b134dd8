"""One pass instead of two: the same training as TRL's, and the ratio by hand."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from side_by_side import differences, run

torch = pytest.importorskip("torch")
pytest.importorskip("trl")


@pytest.mark.parametrize(
    ("mode", "low", "high", "wanted"),
    [
        ("token_truncate", None, 2.0, [[2.0, 0.5, 1.0]]),
        ("token_truncate", 0.8, 2.0, [[2.0, 0.8, 1.0]]),
        ("token_mask", None, 2.0, [[0.0, 0.5, 1.0]]),
        ("token_mask", 0.6, 4.0, [[3.0, 0.0, 1.0]]),
        ("sequence_truncate", None, 1.2, [[1.2]]),
        ("sequence_mask", 0.5, 1.2, [[0.0]]),
        ("sequence_mask", 0.5, 2.0, [[1.5]]),
    ],
)
def test_the_ratio(mode: str, low: float | None, high: float, wanted: list[list[float]]) -> None:
    from tasks.grpo.one_pass import importance_ratio

    # Ratios 3 and 1/2; the third token was not scored, the fourth is masked.
    old = torch.tensor([[math.log(0.6), math.log(0.1), -1.0, -9.0]])
    sampled = torch.tensor([[math.log(0.2), math.log(0.2), math.nan, -1.0]])
    ratio = importance_ratio(old, sampled, torch.tensor([[1, 1, 1, 0]]), mode, low, high)
    assert torch.allclose(ratio[:, :3], torch.tensor(wanted))
    assert ratio.shape == ((1, 4) if mode.startswith("token") else (1, 1))
    if mode == "token_truncate":
        assert ratio[0, 3] == 1.0


CASES: list[dict[str, Any]] = [
    {"loss_type": "dapo", "gradient_accumulation_steps": 2, "beta": 0.04, "mask_truncated_completions": True},
    {"loss_type": "dr_grpo", "lora": True, "beta": 0.04, "gradient_accumulation_steps": 2},
    {"loss_type": "grpo", "vllm_importance_sampling_mode": "sequence_truncate", "evaluate": True},
    {"loss_type": "grpo", "vllm_importance_sampling_mode": "token_mask", "gradient_accumulation_steps": 4, "steps_per_generation": 2},
    {"loss_type": "vespo", "vllm_importance_sampling_mode": "token_truncate", "lora": True},
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(str(value) for value in case.values()))
def test_the_same_training_as_trls(random_sft: Path, tmp_path: Path, case: dict[str, Any]) -> None:
    from trl import GRPOTrainer

    from tasks.grpo.one_pass import OnePassTrainer

    ours = run(OnePassTrainer, random_sft / "model", tmp_path / "ours", **case)
    theirs = run(GRPOTrainer, random_sft / "model", tmp_path / "trl", **case)
    found = differences(ours, theirs)
    print(found)
    assert max(found.values()) < 1e-5
    assert any("sampling/importance_sampling_ratio/mean" in row for row in ours.logged)
    # One forward pass less for every micro-batch and for each of the two evaluations.
    micro = 3 * case.get("gradient_accumulation_steps", 1)
    assert theirs.forwards - ours.forwards == micro + (2 if case.get("evaluate") else 0)


def test_a_batch_that_is_not_on_policy_goes_trls_way(random_sft: Path, tmp_path: Path) -> None:
    from trl import GRPOTrainer

    from tasks.grpo.one_pass import OnePassTrainer

    case = {"num_iterations": 2}
    ours = run(OnePassTrainer, random_sft / "model", tmp_path / "ours", **case)
    theirs = run(GRPOTrainer, random_sft / "model", tmp_path / "trl", **case)
    assert ours.forwards == theirs.forwards and max(differences(ours, theirs).values()) == 0.0


def test_with_dynamic_sampling(random_sft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from functools import partial

    from tasks.contract.grading import Grade
    from tasks.grpo.one_pass import OnePassTrainer
    from tasks.grpo.trainer import LedgerTrainer

    def graded(given: dict[str, Any]) -> list[Grade]:
        return [Grade("right", "1", True, True) for _ in given["completions"]]

    def trained(name: str) -> Any:
        file = tmp_path / f"{name}.jsonl"
        made = partial(LedgerTrainer, grader=graded, groups_file=file, rule="mixed", max_refills=2)
        return run(made, random_sft / "model", tmp_path / name, gradient_accumulation_steps=2), file.read_text()

    (ours, groups) = trained("ours")
    monkeypatch.setattr(OnePassTrainer, "_corrects_in_loss", lambda self: False)
    (theirs, same) = trained("trl")
    assert groups == same and ours.logged[0]["refill/tried"] > 0
    assert theirs.forwards - ours.forwards == 6 and max(differences(ours, theirs).values()) < 1e-5


@pytest.mark.slow
def test_two_processes(random_sft: Path, tmp_path: Path) -> None:
    script = Path(__file__).with_name("one_pass_rank.py")
    command = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", script, random_sft / "model", tmp_path]
    done = subprocess.run([sys.executable, "-m", *map(str, command)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout.count("same") == 2, done.stderr[-3000:]
