"""The stage process: `python -m tasks.process.stage_main --spec <work_dir>/spec.json`.

Imports `tasks.<stage>.entry`, calls its `run(ctx)`, and writes result.json (exit code 0) or error.json (the exit
codes of `tasks.errors`; 1 for an error that is not one of them).
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from pipeline_config.pipeline import PipelineConfig
from tasks.errors import ConfigError
from tasks.process.context import ERROR_FILE, ERROR_LINE, LOG_FILE, RESULT_FILE, StageContext, StageResult, StageSpec
from tasks.process.failures import blame_full_disk, classify
from tasks.process.jsonio import read_json, write_json
from tasks.process.ranks import SEVERAL, rank, run_ranks
from tasks.process.secrets import mask_secrets
from tasks.process.watchdog import Watchdog
from tasks.training.reporters import set_environment
from tasks.training.tracking import Tracker, open_tracker
from tasks.training.unsloth import import_first

Entry = Callable[[StageContext], StageResult]

ENTRIES: dict[str, str] = {
    name: f"tasks.{name}.entry"
    for name in (
        "model",
        "dataset",
        "preflight",
        "evaluation_sets",
        "sft",
        "format_gate",
        "pass_rates",
        "selection",
        "grpo",
        "evaluate",
        "export",
    )
}
"""Stage name -> the module with its `run`. Nothing else is ever imported on a spec's word."""

EXIT_S = 20.0
"""How long the interpreter may take to shut down; a hanging thread or exit hook does not get more."""


def main(args: Sequence[str]) -> int:
    """Run the stage that `--spec` names and return the exit code."""
    parser = argparse.ArgumentParser(prog="tasks.process.stage_main")
    parser.add_argument("--spec", type=Path, required=True)
    path = parser.parse_args(args).spec
    processes = processes_of(path)
    if processes > 1 and "RANK" not in os.environ:
        work_dir = path.absolute().parent
        watchdog = Watchdog(
            work_dir / LOG_FILE
        )  # this process is the one that its supervisor watches; the ranks are below it
        try:
            return run_ranks([sys.executable, "-P", "-m", "tasks.process.stage_main", *args], processes, work_dir)
        finally:
            watchdog.sweep()
    return run_spec(path, load_entry)


def processes_of(path: Path) -> int:
    """How many processes the stage of a spec file runs on; 1 for a spec that cannot be read, which `run_spec` then says."""
    try:
        spec = read_spec(path)
        return make_context(spec).config.parallel.processes if spec.stage in SEVERAL else 1
    except ConfigError:
        return 1


def run_spec(path: Path, find_entry: Callable[[str], Entry]) -> int:
    """Run the stage of a spec file, as this process's only work, and return the exit code."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    work_dir = path.absolute().parent
    watchdog = Watchdog(work_dir / LOG_FILE)
    tracker: Tracker | None = None
    metrics: dict[str, Any] = {}
    failure: BaseException | None = None
    try:
        spec = read_spec(path)
        context = make_context(spec)
        install_stop_handler(context)
        if context.rank == 0:
            context.tracker = tracker = open_tracker(context)
        set_environment(context)
        result = find_entry(spec.stage)(context)
        ignore_stop()
        if not isinstance(result, StageResult):
            raise TypeError(f"the entry of stage {spec.stage} returned {type(result).__name__}, not a StageResult")
        if context.rank == 0:
            write_json(work_dir / RESULT_FILE, result.model_dump())
        code, metrics = 0, result.metrics
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - every failure becomes error.json
        ignore_stop()
        code, failure = report_failure(error, work_dir), error
    finally:
        if tracker is not None:
            tracker.finish(metrics, failure)
        watchdog.sweep()
    return code


def read_spec(path: Path) -> StageSpec:
    """Read and check a spec file.

    Raises:
        ConfigError: it is missing, not JSON or not a spec.
    """
    data = read_json(path)
    if data is None:
        raise ConfigError("the spec is missing or is not JSON", where=str(path), fix="start the stage by the pipeline")
    try:
        return StageSpec.model_validate(data)
    except ValidationError as error:
        raise ConfigError(str(error), where=str(path), fix="start the stage by the pipeline") from error


def make_context(spec: StageSpec) -> StageContext:
    """The context for a spec, with its configuration checked once more."""
    try:
        config = PipelineConfig.model_validate(spec.config)
    except ValidationError as error:
        raise ConfigError(str(error), where="config in spec.json", fix="start the stage by the pipeline") from error
    return StageContext(
        config=config,
        inputs={name: Path(folder) for name, folder in spec.inputs.items()},
        work_dir=spec.work_dir,
        seed=spec.seed,
        attempt=spec.attempt,
        resume=spec.resume,
        stage=spec.stage,
        fingerprint=spec.fingerprint,
        rank=rank(),
        options=spec.options,
    )


def load_entry(stage: str) -> Entry:
    """The `run` function of a stage.

    Raises:
        ConfigError: there is no such stage.
    """
    if stage not in ENTRIES:
        raise ConfigError(
            f"there is no stage {stage!r}", where="stage in spec.json", fix=f"one of {', '.join(ENTRIES)}"
        )
    import_first()
    return cast(Entry, importlib.import_module(ENTRIES[stage]).run)


def install_stop_handler(context: StageContext) -> None:
    """Have SIGTERM and SIGINT ask the stage to stop.

    A forked worker inherits the handler, but not the duty to save: there the signal ends the process.
    """
    owner = os.getpid()

    def stop(signum: int, _frame: object) -> None:
        if os.getpid() != owner:
            os._exit(128 + signum)
        context.request_stop()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)


def ignore_stop() -> None:
    """From here on the stage only writes down how it ended, which a signal must not cut short."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def report_failure(error: BaseException, work_dir: Path) -> int:
    """Print the traceback, write error.json, both without secrets, and return the exit code."""
    known = blame_full_disk(classify(error), work_dir)
    text = "".join(traceback.format_exception(error))
    print(mask_secrets(text, os.environ), file=sys.stderr, flush=True)
    data = {name: mask_secrets(v, os.environ) if isinstance(v, str) else v for name, v in known.to_json().items()}
    try:
        name = f"error-rank{rank()}.json" if rank() else ERROR_FILE
        write_json(work_dir / name, {**data, "type": type(error).__name__})
    except OSError as failure:  # a full disk, say
        print(f"error.json could not be written: {failure}", file=sys.stderr)
        print(f"{ERROR_LINE}{json.dumps(data)}", file=sys.stderr, flush=True)
    return known.exit_code


def exit_with(code: int) -> None:
    """Exit, by force once `EXIT_S` have passed: libraries' threads and exit hooks sometimes never end."""

    def force() -> None:
        time.sleep(EXIT_S)
        os._exit(code)

    sys.stdout.flush()
    threading.Thread(target=force, daemon=True).start()
    sys.exit(code)


if __name__ == "__main__":
    exit_with(main(sys.argv[1:]))
