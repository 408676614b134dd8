"""The stage process with the real supervisor and an entry of the test's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tasks.errors import (
    ConfigError,
    DataError,
    Interrupted,
    NonFinite,
    OutOfMemory,
    PipelineError,
    Retryable,
    StoreError,
)
from tasks.process.context import StageResult, StageSpec, write_spec
from tasks.process.launch import ProcessResult, run_supervised, stage_argv
from tasks.process.outcome import read_result, to_error
from tasks.process.stage_main import ENTRIES, load_entry, make_context

ROOT = Path(__file__).resolve().parents[3]

STAGE = """
import sys, time
from pathlib import Path
from tasks.errors import DataError, Interrupted
from tasks.process import stage_main
from tasks.process.context import StageResult

class OutOfMemoryError(RuntimeError):
    pass

def entry(ctx):
{body}

if __name__ == "__main__":
    stage_main.exit_with(stage_main.run_spec(Path(sys.argv[1]), lambda stage: entry))
"""


ASK_TO_STOP = """
import os, signal
os.kill(os.getppid(), signal.SIGTERM)  # the supervisor, as its launcher would
"""


def run(tmp_path: Path, body: str, **options: object) -> ProcessResult:
    """Run an entry with the given body as a stage."""
    script = tmp_path / "stage.py"
    script.write_text(STAGE.format(body="\n".join("    " + line for line in body.strip().splitlines())))
    work_dir = tmp_path / "work"
    spec = write_spec(
        StageSpec(
            stage="sft",
            fingerprint="f",
            config={"run": {"tracking": "off"}},
            work_dir=work_dir,
            seed=5,
            inputs={"a": "b"},
        )
    )
    settings = {"poll_s": 0.1, "grace_s": 3.0, "on_line": lambda line: None, "env": dict(os.environ), **options}
    return run_supervised(
        [sys.executable, str(script), str(spec)], cwd=tmp_path, log_path=work_dir / "stage.log", **settings
    )


def test_a_result(tmp_path: Path) -> None:
    body = """
(ctx.out / "file").write_text("x")
ctx.log(f"seed {ctx.seed}, {ctx.inputs['a'].name}, {type(ctx.config).__name__}")
return StageResult(metrics={"loss": float("nan"), "n": 3}, effective_config={"lr": 0.1}, notes=["fine"])
"""
    result = run(tmp_path, body)
    assert result.tail == ("seed 5, b, PipelineConfig",)
    assert read_result(result, tmp_path / "work") == StageResult(
        metrics={"loss": None, "n": 3}, effective_config={"lr": 0.1}, notes=["fine"]
    )


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        ("raise DataError('row 3 has no gold', where='train.jsonl:3', fix='add it')", DataError, "row 3 has no gold"),
        ("raise OutOfMemoryError('Tried to allocate 2 GiB')", OutOfMemory, "2 GiB"),
        ("raise OSError(28, 'No space left on device')", StoreError, "No space left"),
        ("raise FloatingPointError('loss is nan')", NonFinite, "loss is nan"),
        ("raise OSError('no hub') from ConnectionError('reset')", Retryable, "reset"),
        ("{}['missing']", PipelineError, "KeyError: 'missing'"),
        ("return 3", PipelineError, "returned int, not a StageResult"),
        ("import os; os._exit(0)", PipelineError, "without a result"),
        ("import os; os.kill(os.getpid(), 9)", Retryable, "often: out of memory"),
        ("import os; os.abort()", PipelineError, "SIGABRT"),
    ],
)
def test_failures_are_typed(tmp_path: Path, body: str, kind: type[PipelineError], text: str) -> None:
    result = run(tmp_path, body)
    error = to_error(result, tmp_path / "work")
    assert type(error) is kind and text in str(error)
    assert result.exit_code in (kind.exit_code, 0, 137, 134)
    with pytest.raises(kind):
        read_result(result, tmp_path / "work")


def test_an_unknown_error_shows_its_place_and_the_last_lines(tmp_path: Path) -> None:
    error = to_error(run(tmp_path, "print('before')\n1 / 0"), tmp_path / "work")
    assert "ZeroDivisionError" in str(error) and "in entry" in error.where and "stage.py" in error.where
    assert "| before" in error.__notes__[0] and "Traceback" in error.__notes__[0]
    assert json.loads((tmp_path / "work" / "error.json").read_text())["type"] == "ZeroDivisionError"


def test_error_json_holds_no_secret(tmp_path: Path) -> None:
    result = run(
        tmp_path,
        "import os\nraise RuntimeError('401 for ' + os.environ['HF_TOKEN'])",
        env={**os.environ, "HF_TOKEN": "hf_abcdefgh"},
    )
    written = (tmp_path / "work" / "error.json").read_text() + (tmp_path / "work" / "stage.log").read_text()
    assert "401 for ***" in written and "hf_abcdefgh" not in written + "".join(result.tail)


def test_stop_interrupts_a_plain_stage_even_if_it_swallows_the_first_exception(tmp_path: Path) -> None:
    # The signal may arrive at the very line that asks for it.
    waiting = (
        ASK_TO_STOP
        + """
for i in range(600):
    ctx.log(f"step {i}")
    time.sleep(0.1)
"""
    )
    body = (
        "try:\n"
        + textwrap.indent(waiting, "    ")
        + """
except Exception:
    print("swallowed", flush=True)
ctx.log("one more step")
"""
    )
    result = run(tmp_path, body)
    assert result.exit_code == 143 and "swallowed" in result.tail
    assert json.loads((tmp_path / "work" / "error.json").read_text())["cause"] == "interrupted"
    assert type(to_error(result, tmp_path / "work")) is Interrupted


def test_a_stage_that_saves_on_stop_finishes_its_step(tmp_path: Path) -> None:
    body = (
        """
ctx.saves_on_stop = True
"""
        + ASK_TO_STOP
        + """
while not ctx.stop_requested():
    time.sleep(0.3)
    ctx.log("step done")
(ctx.checkpoints / "saved").write_text("")
raise Interrupted("stopped after saving")
"""
    )
    result = run(tmp_path, body)
    assert (tmp_path / "work" / "checkpoints" / "saved").exists()
    assert result.exit_code == 143


def test_a_hanging_thread_does_not_keep_the_process(tmp_path: Path) -> None:
    body = """
import threading
stage_main.EXIT_S = 0.5
threading.Thread(target=time.sleep, args=(60,)).start()
return StageResult()
"""
    result = run(tmp_path, body)
    assert result.exit_code == 0 and result.duration_s < 10


def test_python_m_stage_main_refuses_a_bad_spec(tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text('{"stage": "sft", ')
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(stage_argv(tmp_path / "spec.json"), env=env, capture_output=True, text=True)
    assert done.returncode == ConfigError.exit_code
    assert "not JSON" in json.loads((tmp_path / "error.json").read_text())["message"]


def test_only_known_stages_are_imported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no stage 'os'"):
        load_entry("os")
    assert all(module == f"tasks.{stage}.entry" for stage, module in ENTRIES.items())


def test_a_bad_configuration_is_refused(tmp_path: Path) -> None:
    spec = StageSpec(stage="sft", fingerprint="f", config={"sftt": {}}, work_dir=tmp_path)
    with pytest.raises(ConfigError, match="sftt"):
        make_context(spec)


def test_torch_and_prefect_are_not_imported() -> None:
    code = (
        "import sys, tasks.process.stage_main, tasks.process.outcome, tasks.process.launch, tasks.process.supervisor; "
        "print([m for m in ('torch', 'transformers', 'prefect') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_interrupted_without_error_file(tmp_path: Path) -> None:
    result = ProcessResult(143, 15, ("a line",), 1.0, "interrupt")
    assert isinstance(to_error(result, tmp_path), Interrupted)
