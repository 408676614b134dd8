"""Keep a readable sample of the rollouts beside the metrics."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tasks.process.jsonio import finite

KEPT_PER_CALL = 4
MAX_BYTES = 32 << 20


def logging_rollouts(reward: Callable[..., Any], path: Path) -> Callable[..., Any]:
    """Wrap a reward so that the first completions of every training batch go to `path` as JSON lines (at most 32 MiB)."""

    @functools.wraps(reward)
    def logged(prompts: list[Any], completions: list[Any], **columns: Any) -> Any:
        values = reward(prompts=prompts, completions=completions, **columns)
        if any(columns.get("held_out") or ()):
            return values
        state = columns.get("trainer_state")
        answers = columns.get("answer") or [None] * len(prompts)
        if not path.exists() or path.stat().st_size < MAX_BYTES:
            with path.open("a", encoding="utf-8") as file:
                for i in range(min(KEPT_PER_CALL, len(prompts))):
                    row = {
                        "step": state.global_step if state is not None else None,
                        "question": text_of(prompts[i]),
                        "answer": answers[i],
                        "completion": text_of(completions[i]),
                        "reward": finite(values[i]),
                    }
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")
        return values

    return logged


def truncate_rollouts(path: Path, steps_done: int) -> None:
    """Drop what was sampled from step `steps_done` on (counted from 0): a run that resumes there samples it again.

    The torn line of a killed attempt goes too; the file is replaced as a whole, and a missing one stays missing.
    """
    if not path.exists():
        return
    kept = []
    # Not splitlines(): a completion may hold U+2028, which that takes for the end of a line.
    for line in path.read_bytes().split(b"\n"):
        try:
            step = json.loads(line)["step"]
        except (ValueError, TypeError, KeyError):
            continue
        if step is None or step < steps_done:
            kept.append(line + b"\n")
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_bytes(b"".join(kept))
    os.replace(part, path)


def text_of(turn: Any) -> str:
    """The last message's text of a conversation, or the string itself."""
    return str(turn[-1]["content"]) if isinstance(turn, list) and turn else str(turn)
