"""Training logs of any origin, read into rows: one dict a logged row, keys as TRL names them, numbers as floats.

Read are `trainer_state.json`, a checkpoint or run folder, JSON lines (ours or anybody's), CSV (also the long form of
trackers' exports), captured standard output with its printed dicts, TensorBoard event files, and JSON lines of reward
groups. `None`, `null` and empty mean that the metric was logged without a value; `NaN` and infinities are kept, since they are what a
diagnosis looks for. Any of them may be packed with gzip, or in UTF-16. A last line that is only half written (the run is still going) is left out.
"""

from __future__ import annotations

import re
from pathlib import Path

from tasks.diagnosis.files import kind, read_text
from tasks.diagnosis.formats import (
    KINDS,
    read_csv,
    read_event_files,
    read_jsonl,
    read_stdout,
    read_trainer_state,
)
from tasks.diagnosis.keys import is_metric
from tasks.diagnosis.rows import Row, drop_rewound, in_order, joined
from tasks.errors import DataError


def read_log(path: str | Path) -> list[Row]:
    """Rows of a training log, in order of logging.

    Raises:
        DataError: nothing is there, it cannot be read, or it holds no row of a training log; names file and row.
    """
    path = Path(path)
    try:
        path.stat()
    except FileNotFoundError as error:
        raise DataError("there is no such file or folder", where=str(path), fix=f"give {KINDS}") from error
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror or error}", where=str(path), fix=f"give {KINDS}") from error
    rows = _read_folder(path) if path.is_dir() else _read_file(path)
    if not any(is_metric(key) for row in rows for key in row):
        raise DataError("holds no row of a training log", where=str(path), fix=f"give {KINDS}")
    return joined(drop_rewound(in_order(rows)))


def _read_folder(folder: Path) -> list[Row]:
    if (folder / "metrics.jsonl").is_file():
        return read_jsonl(folder / "metrics.jsonl")
    states = sorted(folder.glob("**/trainer_state.json"), key=lambda file: (_global_step(file), len(file.parts)))
    if states:
        return read_trainer_state(states[-1])
    logs = sorted(folder.glob("**/metrics.jsonl"), key=lambda file: file.stat().st_mtime)
    if logs:
        return read_jsonl(logs[-1])
    events = sorted(folder.glob("**/*tfevents*"))
    if events:
        return read_event_files(events)
    raise DataError(
        "holds neither trainer_state.json nor metrics.jsonl nor TensorBoard event files",
        where=str(folder),
        fix="give the run's output folder or one of its checkpoints",
    )


def _global_step(state_file: Path) -> int:
    """Step in the name of the checkpoint folder; a state outside of one counts as the newest (it is written at the end)."""
    name = state_file.parent.name
    return int(name.rpartition("-")[2]) if re.fullmatch(r"checkpoint-\d+", name) else 1 << 62


def _read_file(path: Path) -> list[Row]:
    if "tfevents" in path.name:
        return read_event_files([path])
    ending = kind(path)
    if ending == ".csv":
        return read_csv(path)
    if ending == ".json":
        return read_trainer_state(path)
    if ending in (".jsonl", ".ndjson"):
        return read_jsonl(path)
    text = read_text(path)
    if '"log_history"' in text[:100_000]:
        return read_trainer_state(path, text)
    try:
        return read_stdout(path, text)
    except DataError:
        if "," in text.split("\n", 1)[0] and "{" not in text:
            return read_csv(path, text)
        raise
