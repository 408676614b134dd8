"""What the attacks share: how much memory was used, whether a run was refused, a data source."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from benchmarks.reliability.lab import Ended, Lab, error_line, said

ROW = {"question": "What is 1 + 2?", "answer": "3", "working": "1 + 2 = 3"}


@contextmanager
def memory_of(command: str) -> Iterator[list[int]]:
    """Largest resident memory (bytes) of any one process whose command line holds `command`, in a list of one."""
    largest, stop = [0], threading.Event()

    def watch() -> None:
        while not stop.wait(0.1):
            for process in psutil.process_iter():
                try:
                    if command in " ".join(process.cmdline()):
                        largest[0] = max(largest[0], process.memory_info().rss)
                except psutil.Error:
                    continue

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield largest
    finally:
        stop.set()
        thread.join()


def result(lost: list[str], ended: Ended, went_on: str = "", **more: Any) -> dict[str, Any]:
    at, words = said(ended)
    noticed = error_line(ended) or words
    return {"lost": lost, "noticed_s": at, "noticed": noticed, "went_on": went_on or "refused; nothing ran", **more}


def refused(ended: Ended, code: int, within_s: float = 60.0) -> list[str]:
    wrong = [] if ended.code == code else [f"exit code {ended.code} instead of {code}: {ended.tail(3)}"]
    return wrong + ([f"it took {ended.seconds:.0f} s"] if ended.seconds > within_s else [])


def dataset_from(lab: Lab, home: Path, url: str, *more: str) -> Ended:
    source = json.dumps(
        [{"kind": "file", "url": url, "columns": {"question": "question", "answer": "answer", "working": "working"}}]
    )
    return lab.run(
        home,
        "--stop-after",
        "dataset",
        sets=[
            f"data.train={source}",
            "data.sft=[]",
            "data.eval_rows=24",
            "data.sft_rows=20",
            "data.train_rows=20",
            "data.gate_rows=16",
            "data.deduplicate=true",
            *more,
        ],
    )
