"""SwanLab tracking of a stage, by a thread that follows the stage's files; it can neither stop nor delay the stage.

The thread reads metrics.jsonl as it grows, so that file stays the truth: SwanLab gets what is in it, late or never,
and a retry starts by sending what earlier attempts left there. No SwanLab code runs in the stage's main thread, which
also keeps SwanLab's SIGINT handler out of the process.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import threading
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.errors import Interrupted
from tasks.process.context import StageContext
from tasks.process.secrets import mask_secrets
from tasks.training.swanlab_setup import (
    WHOLE,
    described,
    ease_dashboard,
    forget_attempts,
    group_of,
    model_name,
    redirect_console,
    run_id_of,
    say,
    stage_name,
    usable_mode,
)

PROJECT = "grpo-pipeline"
UNTRACKED = "model"
"""The stage without an experiment of its own: it fetches the base model and measures nothing."""
FIRST = (
    "reward",
    "outcomes/right",
    "outcomes/wrong",
    "frac_reward_zero_std",
    "kl",
    "entropy",
    "completions/mean_length",
    "loss",
)
"""Charts that come first: SwanLab shows them in the order in which their names are logged."""
ROLLOUTS = {"grpo": "rollouts.jsonl"}
"""Files of sampled completions that grow with the training; a row's `step` is the number of steps done before it."""
SAMPLES = {"format_gate": "out/samples.jsonl", "evaluate": "out/items.jsonl"}
"""Files of completions that are complete when the stage ends."""
COLUMNS = ("question", "answer", "completion", "reward", "right", "kind", "tokens")
COMPLETIONS_PER_STEP = 4
COMPLETIONS_AT_END = 16
MAX_TEXT = 4000
MAX_FINAL = 200
"""Most final numbers that are sent."""
LOCAL_S = 30.0
"""How long the end of a stage waits for SwanLab to write its files."""
ONLINE_S = 10.0
"""How long it waits for the last uploads."""
STOP_S = 4.0
"""The same after SIGTERM, which leaves 25 s for everything."""


def open_tracker(ctx: StageContext) -> Tracker | None:
    """The tracker of a stage; None when tracking is off or the stage has nothing to track. Starts nothing yet."""
    if ctx.config.run.tracking == "off" or ctx.stage == UNTRACKED:
        return None
    return Tracker(ctx)


@dataclass(frozen=True)
class Ending:
    """How the stage ended: with final numbers, or with an error."""

    metrics: Mapping[str, Any]
    error: BaseException | None

    @property
    def state(self) -> str:
        """SwanLab's word for it."""
        if self.error is None:
            return "success"
        return "aborted" if isinstance(self.error, Interrupted | KeyboardInterrupt) else "crashed"


class Tracker:
    """Sends one stage's rows, completions and final numbers to SwanLab. No method raises or blocks for long."""

    def __init__(self, ctx: StageContext) -> None:
        self._ctx = ctx
        self._rows = Tail(ctx.metrics_path)
        self._rollouts = Tail(ctx.work_dir / ROLLOUTS[ctx.stage]) if ctx.stage in ROLLOUTS else None
        self._waiting: dict[int, deque[dict[str, Any]]] = defaultdict(lambda: deque(maxlen=COMPLETIONS_PER_STEP))
        self._step = 0
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._done = threading.Event()
        self._ending: Ending | None = None
        self._swanlab: Any = None
        self._mode = ""
        self._later = ""

    def row_written(self) -> None:
        """A row was appended to metrics.jsonl."""
        # Not earlier: before the first row of an attempt, metrics.jsonl is cut back to the checkpoint.
        if self._thread is None:
            self._start()
        self._wake.set()

    def finish(self, metrics: Mapping[str, Any] | None = None, error: BaseException | None = None) -> None:
        """Send the final numbers and close the experiment, waiting for it a limited time."""
        self._ending = Ending(metrics or {}, error)
        if self._thread is None:
            if error is not None or not metrics:
                return
            self._start()
        self._wake.set()
        limit = STOP_S if self._ending.state == "aborted" else LOCAL_S
        limit = min(limit, ONLINE_S) if self._ctx.config.run.tracking == "cloud" else limit
        if not self._done.wait(limit):
            say(f"SwanLab has not finished after {limit:.0f} s, the stage goes on without it{self._later}; {WHOLE}")

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._follow, name="tracking", daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        """The thread's work, from the import of SwanLab, which takes about a second, to its finish."""
        try:
            self._swanlab = importlib.import_module("swanlab")
            run = self._open()
            while True:
                self._wake.wait()
                self._wake.clear()
                ending = self._ending
                self._send(run)
                if ending is not None:
                    break
            self._close(run, ending)
        except Exception as error:  # noqa: BLE001 - SwanLab's and peewee's errors have no common base
            say(f"no SwanLab for this stage ({type(error).__name__}: {error}); {WHOLE}")
        self._done.set()

    def _open(self) -> Any:
        redirect_console(self._swanlab)
        self._mode = usable_mode(self._ctx.config.run.tracking, self._swanlab)
        try:
            return self._init()
        except Exception as error:
            if self._mode != "online":
                raise
            say(f"the service refused ({type(error).__name__}: {error}); kept offline instead")
            self._mode = "offline"
            return self._init()

    def _init(self) -> Any:
        ctx, swanlab = self._ctx, self._swanlab
        log_dir = Path(ctx.config.run.home).resolve() / "swanlab"
        run_id = run_id_of(ctx)
        if self._mode == "local":
            ease_dashboard()
        if self._mode != "online":
            forget_attempts(log_dir, run_id, self._mode == "local")
        name = stage_name(ctx)
        off = dict.fromkeys(("hardware", "runtime", "requirements", "conda", "git", "swanlab", "monitor"), False)
        settings = {"interactive": False, "terminal": {"proxy_type": "none"}, "probe": off}
        if self._mode == "online":
            settings["api_key"] = os.environ["SWANLAB_API_KEY"].strip()
        run = swanlab.init(
            mode=self._mode,
            project=PROJECT,
            name=f"{name}-{ctx.fingerprint[:8]}",
            id=run_id,
            resume="allow",
            group=group_of(ctx.config),
            job_type=name,
            tags=[name, model_name(ctx.config)],
            log_dir=str(log_dir),
            config=described(ctx),
            settings=swanlab.Settings(**settings),
        )
        upload = f"; to upload it: swanlab sync --id {run_id} {run.dir}"
        if self._mode == "online":
            say(f"SwanLab experiment {run.name} at {run.url}")
            self._later = upload
        elif self._mode == "local":
            say(f"SwanLab experiment {run.name}; to look at it: swanlab watch {log_dir}")
        else:
            say(f"SwanLab experiment {run.name}, offline{upload}")
        return run

    def _send(self, run: Any) -> None:
        """Rows and completions that were written since the last call."""
        for row in self._rows.read():
            step = row.get("step")
            if not isinstance(step, int):
                continue
            self._step = max(self._step, step)
            values = in_order(numbers({key: value for key, value in row.items() if key != "step"}))
            if values:
                run.log(values, step=step)
        for row in self._rollouts.read() if self._rollouts is not None else []:
            done = row.get("step")
            self._waiting[(done if isinstance(done, int) else 0) + 1].append(row)
        # Those of later steps wait for the row of theirs.
        for step in sorted(step for step in self._waiting if step <= self._step):
            run.log({"completions": self._table(list(self._waiting.pop(step)))}, step=step)

    def _close(self, run: Any, ending: Ending) -> None:
        """Final numbers, samples, and the end of the experiment."""
        final = numbers(ending.metrics, f"{self._ctx.stage}/")
        if final:
            run.log(dict(list(final.items())[:MAX_FINAL]), step=self._step)
        if ending.error is None and self._ctx.stage in SAMPLES:
            rows = Tail(self._ctx.work_dir / SAMPLES[self._ctx.stage]).read(COMPLETIONS_AT_END)
            if rows:
                run.log({"completions": self._table(rows)}, step=self._step)
        error = None if ending.error is None else mask_secrets(str(ending.error), os.environ) or "stopped"
        run.finish(state=ending.state, error=error)

    def _table(self, rows: Sequence[Mapping[str, Any]]) -> Any:
        """A table; the local dashboard has none, so there it is a list of texts."""
        if self._mode == "local":
            return [self._swanlab.Text(as_text(row), caption=caption(row)) for row in rows]
        headers = [name for name in COLUMNS if any(name in row for row in rows)]
        table = self._swanlab.echarts.Table()
        table.add(headers, [[cell(row.get(name)) for name in headers] for row in rows])
        return self._swanlab.ECharts(table)


class Tail:
    """A JSON-lines file that grows; each `read` gives the objects on lines completed since the last one."""

    def __init__(self, path: Path) -> None:
        self.path, self.offset = path, 0

    def read(self, limit: int | None = None) -> list[dict[str, Any]]:
        """New rows, at most `limit`; a line that is not a JSON object is passed over, a missing file is empty."""
        rows: list[dict[str, Any]] = []
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                while (limit is None or len(rows) < limit) and (line := file.readline()).endswith(b"\n"):
                    self.offset += len(line)
                    with contextlib.suppress(ValueError):
                        row = json.loads(line)
                        if isinstance(row, dict):
                            rows.append(row)
        except FileNotFoundError:
            return []
        return rows


def numbers(values: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The finite numbers among `values`, nested ones with their path as name: `{"a": {"b": 1}}` gives `a/b`."""
    found: dict[str, float] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found |= numbers(value, f"{prefix}{key}/")
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            found[f"{prefix}{key}"] = value
    return found


def in_order(values: Mapping[str, float]) -> dict[str, float]:
    """The same numbers, those of `FIRST` in front and every outcome share behind them, the rest as it came."""

    def place(name: str) -> int:
        if name in FIRST:
            return FIRST.index(name)
        return len(FIRST) + (not name.startswith("outcomes/"))

    return dict(sorted(values.items(), key=lambda item: place(item[0])))


def cell(value: Any) -> str | float:
    """A table's cell: a number rounded, a text cut at `MAX_TEXT`."""
    if isinstance(value, float):
        return round(value, 4)
    text = "" if value is None else str(value)
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}... ({len(text) - MAX_TEXT} more characters)"


def caption(row: Mapping[str, Any]) -> str:
    """What stands beside a completion: everything but the texts, the shortest and most telling first."""
    short = [name for name in ("reward", "right", "kind", "tokens", "answer") if row.get(name) is not None]
    return " | ".join(f"{name} {str(cell(row[name]))[:80]}" for name in short)


def as_text(row: Mapping[str, Any]) -> str:
    """Question and completion as one text."""
    return f"{cell(row.get('question'))}\n\n{cell(row.get('completion'))}"
