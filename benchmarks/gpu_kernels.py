"""What the GPU does in one micro-batch and in a few decode steps: its busiest kernels, and how long it waits for the CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

ROWS = 25
DECODE_STEPS = range(100, 120)
"""Calls of the engine that are looked at: past the prompts, before the first completions end."""


class Kernels:
    """Profiles of the step that `on` is set in; a text file gets them as they come.

    `paused` surrounds each, to switch another profiler off.
    """

    def __init__(self, path: Path, paused: Callable[[], AbstractContextManager[Any]]) -> None:
        self.path, self.paused = path, paused
        self.on = False
        self.micro_batches = self.decoded = 0

    def begin_step(self, on: bool) -> None:
        self.on, self.micro_batches, self.decoded = on, 0, 0

    def instrument(self, trainer: type, accumulation: int) -> None:
        """Look at the last micro-batch of a step (the first one makes the rollouts) and at some of the engine's steps."""
        inner = trainer.training_step  # type: ignore[attr-defined]

        def training_step(*args: Any, **kwargs: Any) -> Any:
            self.micro_batches += 1
            if not self.on or self.micro_batches < accumulation:
                return inner(*args, **kwargs)
            with self.paused(), profiled() as found:
                result = inner(*args, **kwargs)
            self.write("the last micro-batch, forward and backward", found)
            return result

        trainer.training_step = training_step  # type: ignore[attr-defined]
        try:
            from vllm.v1.engine.llm_engine import LLMEngine
        except ImportError:
            return
        step = LLMEngine.step

        def engine_step(engine: Any) -> Any:
            if not self.on:
                return step(engine)
            self.decoded += 1
            if self.decoded != DECODE_STEPS.start:
                return step(engine)
            outputs: list[Any] = []
            with self.paused(), profiled() as found:
                for _ in DECODE_STEPS:
                    outputs += step(engine)
            self.write(f"{len(DECODE_STEPS)} decode steps", found)
            return outputs

        LLMEngine.step = engine_step

    def write(self, title: str, found: dict[str, Any]) -> None:
        events = [event for event in found["profile"].key_averages() if str(event.device_type).endswith("CUDA")]
        events.sort(key=lambda event: -event.self_device_time_total)
        busy = sum(event.self_device_time_total for event in events) / 1e6
        lines = [f"{title}: {found['seconds']:.4f} s, kernels {busy:.4f} s ({busy / found['seconds']:.0%})"]
        lines += [
            f"{event.self_device_time_total / 1e3:10.2f} ms {event.count:6d} x  {event.key[:150]}"
            for event in events[:ROWS]
        ]
        with self.path.open("a", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n\n")


@contextmanager
def profiled() -> Iterator[dict[str, Any]]:
    """Yields what will hold the `profile` and the `seconds` between two synchronizations of the device."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    found: dict[str, Any] = {}
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found["profile"]:
        start = time.perf_counter()
        yield found
        torch.cuda.synchronize()
        found["seconds"] = time.perf_counter() - start
