"""Exceptions and exit codes become the right typed error."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from tasks import errors
from tasks.process.failures import blame_full_disk, classify
from tasks.process.launch import ProcessResult
from tasks.process.outcome import read_result, to_error


def named(name: str, message: str = "text", base: type[Exception] = Exception, **attributes: object) -> Exception:
    """An exception of a type with the given name, as a library would raise it."""
    return type(name, (base,), attributes)(message)


class Response:
    def __init__(self, status_code: int) -> None:
        self.status_code = status_code


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MemoryError(), errors.OutOfMemory),
        (RuntimeError("CUDA out of memory. Tried to allocate"), errors.OutOfMemory),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), errors.OutOfMemory),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), errors.OutOfMemory),
        (OSError(errno.ENOSPC, "No space left on device"), errors.StoreError),
        (OSError(errno.EROFS, "Read-only file system"), errors.StoreError),
        (named("SafetensorError", "I/O error: No space left on device (os error 28)"), errors.StoreError),
        (FloatingPointError("nan"), errors.NonFinite),
        (RuntimeError("probability tensor contains either `inf`, `nan` or element < 0"), errors.NonFinite),
        (ConnectionResetError("reset"), errors.Retryable),
        (TimeoutError("timed out"), errors.Retryable),
        (named("ReadTimeout"), errors.Retryable),
        (named("HfHubHTTPError", response=Response(503)), errors.Retryable),
        (named("HfHubHTTPError", response=Response(404)), errors.PipelineError),
        (named("RepositoryNotFoundError", base=ConnectionError, response=Response(401)), errors.PipelineError),
        (RuntimeError("NCCL error: unhandled system error"), errors.Retryable),
        (AssertionError("Error in memory profiling. Initial free memory 128.36 GiB, current"), errors.Retryable),
        (RuntimeError("CUDA error: device-side assert triggered"), errors.PipelineError),
        (ValueError("bad value"), errors.PipelineError),
        (FileNotFoundError(2, "No such file"), errors.PipelineError),
        (errors.GateRefused("too few"), errors.GateRefused),
        (KeyboardInterrupt(), errors.Interrupted),
    ],
)
def test_classify(error: BaseException, kind: type[errors.PipelineError]) -> None:
    assert type(classify(error)) is kind


def test_a_full_disk_behind_an_error_that_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch_says = classify(RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 6168320 vs 6168212"))
    assert blame_full_disk(torch_says, tmp_path) is torch_says
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=4096))
    full = blame_full_disk(torch_says, tmp_path)
    assert (type(full), full.cause, full.where) == (errors.StoreError, "disk", str(tmp_path))
    assert "the disk is full (RuntimeError: [enforce fail" in full.message
    known = errors.GateRefused("too few")
    assert blame_full_disk(known, tmp_path) is known


def test_an_error_that_could_not_be_written_is_taken_from_the_output(tmp_path: Path) -> None:
    data = errors.StoreError("the disk is full", where="here", fix="free some").to_json()
    lines = ("step 3", f"[error] {json.dumps(data)}", "[error] {torn", "bye")
    error = to_error(ProcessResult(13, None, lines, 5.0, "itself"), tmp_path)
    assert (type(error), str(error)) == (errors.StoreError, "here: the disk is full\n  what to do: free some")
    other = to_error(ProcessResult(30, None, lines, 5.0, "itself"), tmp_path)
    assert type(other) is errors.OutOfMemory


def test_a_stop_during_a_librarys_import_is_a_stop() -> None:
    stop = errors.Interrupted("the stage was asked to stop")
    try:
        raise ModuleNotFoundError("Could not import module 'LlamaForCausalLM'") from stop
    except ModuleNotFoundError as error:
        assert classify(error) is stop


def test_only_explicit_causes_count() -> None:
    try:
        try:
            raise ConnectionError("first")
        except ConnectionError:
            raise ValueError("second")  # noqa: B904 - the point of the test
    except ValueError as error:
        assert type(classify(error)) is errors.PipelineError


@pytest.mark.parametrize(
    ("result", "kind", "cause"),
    [
        (ProcessResult(143, 15, (), 5.0, "timeout"), errors.Retryable, "timeout"),
        (ProcessResult(137, 9, (), 5.0, "stall"), errors.Retryable, "stall"),
        (ProcessResult(137, 9, (), 5.0, "supervisor_lost"), errors.Retryable, "supervisor_lost"),
        (ProcessResult(137, 9, (), 5.0, "itself"), errors.Retryable, "killed"),
        (ProcessResult(143, 15, (), 5.0, "interrupt"), errors.Interrupted, "interrupted"),
        (ProcessResult(139, 11, (), 5.0, "itself"), errors.PipelineError, "signal_sigsegv"),
        (ProcessResult(30, None, (), 5.0, "itself"), errors.OutOfMemory, "out_of_memory"),
        (ProcessResult(127, None, (), 5.0, "itself"), errors.PipelineError, "not_started"),
        (ProcessResult(2, None, (), 5.0, "itself"), errors.PipelineError, "error"),
    ],
)
def test_exit_codes_without_error_file(
    tmp_path: Path, result: ProcessResult, kind: type[errors.PipelineError], cause: str
) -> None:
    error = to_error(result, tmp_path)
    assert (type(error), error.cause) == (kind, cause)


def test_the_last_twenty_lines_are_a_note_not_the_message(tmp_path: Path) -> None:
    result = ProcessResult(2, None, tuple(f"line {i}" for i in range(200)), 5.0, "itself")
    error = to_error(result, tmp_path)
    assert "line" not in str(error)
    assert error.__notes__[0].splitlines()[1:] == [f"  | line {i}" for i in range(180, 200)]


def test_error_json_wins_over_the_exit_code(tmp_path: Path) -> None:
    (tmp_path / "error.json").write_text('{"exit_code": 11, "message": "row 3", "cause": "no_gold"}')
    error = to_error(ProcessResult(11, None, (), 5.0, "itself"), tmp_path)
    assert (type(error), error.message, error.cause) == (errors.DataError, "row 3", "no_gold")


@pytest.mark.parametrize("code", ['"eleven"', "null", "[11]", "999", "true"])
def test_a_damaged_error_json_is_still_an_error(tmp_path: Path, code: str) -> None:
    (tmp_path / "error.json").write_text(f'{{"exit_code": {code}, "message": "row 3"}}')
    assert to_error(ProcessResult(11, None, (), 5.0, "itself"), tmp_path).message == "row 3"


@pytest.mark.parametrize("text", ["[]", "1", '{"metrics": 5}', '{"metrics": {}, "extra": 1}', '{"notes": "a"}'])
def test_a_damaged_result_is_tried_again(tmp_path: Path, text: str) -> None:
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(errors.Retryable, match=r"result\.json: the stage's result cannot be used") as caught:
        read_result(ProcessResult(0, None, (), 5.0, "itself"), tmp_path)
    assert caught.value.cause == "result_damaged"
