"""rollouts.jsonl: a readable sample of what was sampled, each step once."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

from tasks.grpo.rollouts import logging_rollouts, truncate_rollouts


def steps(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text(encoding="utf-8").split("\n") if line]


def test_a_resumed_run_keeps_the_steps_before_its_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    reward = logging_rollouts(lambda completions, **_: [1.0] * len(completions), path)
    for step in range(5):
        state = SimpleNamespace(global_step=step)
        reward(prompts=["1 + 1?"], completions=["\u2028two"], answer=["2"], trainer_state=state)
    with path.open("a") as file:
        file.write('{"step": 5, "quest')  # killed
    # checkpoint-3 holds three steps, 0 to 2: step 3 is sampled again
    truncate_rollouts(path, 3)
    assert steps(path) == [0, 1, 2]
    reward(prompts=["1 + 1?"], completions=["two"], answer=["2"], trainer_state=SimpleNamespace(global_step=3))
    assert steps(path) == [0, 1, 2, 3]
    truncate_rollouts(path, 0)
    assert steps(path) == []


def test_a_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    truncate_rollouts(tmp_path / "rollouts.jsonl", 3)
    assert list(tmp_path.iterdir()) == []
