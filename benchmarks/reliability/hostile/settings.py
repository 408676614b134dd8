"""Configuration, data and reward functions."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.reliability.hostile.common import ROW, dataset_from, memory_of, refused, result
from benchmarks.reliability.lab import Lab, below, losses

GIGABYTE = 10**9


def yaml_file(text: str) -> Callable[[Lab, Path], dict[str, Any]]:
    def carry_out(lab: Lab, home: Path) -> dict[str, Any]:
        path, canary = home / "bad.yaml", home / "canary"
        path.write_text(text.replace("CANARY", str(canary)))
        with memory_of(str(path)) as memory:
            ended = lab.run(home, "--config", str(path), command="plan")
        lost = refused(ended, 10, 30) + (["code ran"] if canary.exists() else [])
        lost += [f"{memory[0] >> 20} MiB"] if memory[0] > 500 << 20 else []
        return result(lost, ended, memory_mib=memory[0] >> 20)

    return carry_out


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)


def endless_line(lab: Lab, home: Path) -> dict[str, Any]:
    path = home / "rows.jsonl"
    with path.open("wb") as file:
        file.write(json.dumps(ROW).encode() + b"\n" + b'{"question": "')
        for _ in range(GIGABYTE // 10**7):
            file.write(b"x" * 10**7)
    with memory_of(f"{home}/work/") as memory:
        ended = dataset_from(lab, home, str(path))
    path.unlink()
    lost = refused(ended, 11, 120) + ([f"{memory[0] >> 20} MiB"] if memory[0] > 2 << 30 else [])
    return result(
        lost, ended, "the file and the line are named; the line was never held in memory", memory_mib=memory[0] >> 20
    )


def reward_module(text: str | None, *, code: int = 10, within_s: float = 120) -> Callable[[Lab, Path], dict[str, Any]]:
    """`text` is the module; None for a module that does not exist."""

    def carry_out(lab: Lab, home: Path) -> dict[str, Any]:
        folder = home / "code"
        folder.mkdir()
        if text is not None:
            (folder / "hostile_reward.py").write_text(text)
        env = {"PYTHONPATH": os.pathsep.join((lab.env()["PYTHONPATH"], str(folder)))}
        ended = lab.run(home, sets=['grpo.rewards.functions=[{"path": "hostile_reward:pay"}]'], env=env, timeout=300)
        lost = refused(ended, code, within_s) + losses(home, "preflight")
        left = [process.pid for process in below(home)]
        return result(
            lost + [f"process {pid} is left" for pid in left],
            ended,
            "refused by the preflight, before anything trained",
        )

    return carry_out
