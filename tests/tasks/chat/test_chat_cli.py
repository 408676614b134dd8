"""`grpo-pipeline chat` on a real GGUF file: one shot, a pipe, JSON, a terminal, and clean errors."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flows import cli
from tasks.chat.choose import CONTRACT_FILE

ROOT = Path(__file__).resolve().parents[3]
LONGEST = 6


@pytest.fixture
def file(exported: Any, tmp_path: Path) -> Path:
    """A random model with its contract beside it, in a folder of its own."""
    made = Path(shutil.copy(exported.q4, tmp_path / "model-q4_k_m.gguf"))
    limits = {"contract": exported.contract.model_dump(mode="json"), "max_tokens": LONGEST, "n_ctx": 256}
    (tmp_path / CONTRACT_FILE).write_text(json.dumps(limits))
    return made


def call(*arguments: str, **more: Any) -> Any:
    return CliRunner().invoke(cli.app, ["chat", *arguments], env={"NO_COLOR": "1", "TERM": "dumb"}, **more)


def test_one_shot_as_json(file: Path) -> None:
    result = call(str(file), "--prompt", "What is 1 + 1?", "--json")
    assert result.exit_code == 0, result.output
    reply = json.loads(result.stdout)
    assert reply["question"] == "What is 1 + 1?" and reply["file"] == str(file)
    # A random model writes no tags: all of it is reasoning, cut at the limit.
    assert reply["truncated"] and reply["answer"] == "" and reply["reasoning"] == reply["completion"].strip()
    assert 0 < reply["tokens"] <= LONGEST
    # Greedy, so the same again, from a pipe and from the folder.
    again = json.loads(call(str(file.parent), "--json", input="What is 1 + 1?\n").stdout)
    assert again["completion"] == reply["completion"]


def test_the_limit_is_said(file: Path) -> None:
    result = call(str(file), "--prompt", "What is 1 + 1?", "--max-tokens", "3")
    assert result.exit_code == 0 and "stopped after 3 tokens" in result.output


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["none.gguf"], 10, "there is no such file"),
        (["FILE"], 10, "nothing is asked"),
        (["production"], 13, "no model was ever promoted"),
        (["latest"], 13, "there is no artifact of export yet"),
        (["FILE", "--prompt", "9 " * 300], 12, "and the context 256"),
        (["FOLDER", "--format", "q8_0"], 10, "there is no file of format q8_0"),
    ],
)
def test_errors_are_one_message(file: Path, tmp_path: Path, arguments: list[str], code: int, part: str) -> None:
    names = {"FILE": str(file), "FOLDER": str(file.parent)}
    result = call(*[names.get(text, text) for text in arguments], "--store", str(tmp_path / "store"), input="")
    assert result.exit_code == code and part in result.output.replace("\n", " ")
    assert "Traceback" not in result.output


def test_the_store_is_that_of_the_configuration(tmp_path: Path) -> None:
    result = call("latest", "--set", f"run.home={tmp_path}/mine", "--prompt", "What is 1 + 1?")
    assert result.exit_code == 13 and f"{tmp_path}/mine/store" in result.output.replace("\n", "")


def test_a_conversation_in_a_terminal(file: Path) -> None:
    """A real terminal: questions, an unknown command, a new conversation, and Ctrl-D."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "dumb", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "flows.cli", "chat", str(file), "--conversation"]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=file.parent)
    os.close(theirs)
    seen = ""

    def until(text: str, limit_s: float = 120) -> str:
        nonlocal seen
        end = time.monotonic() + limit_s
        while text not in seen:
            assert time.monotonic() < end, seen
            if select.select([ours], [], [], 0.2)[0]:
                seen += os.read(ours, 4096).decode(errors="replace")
        before, _, seen = seen.partition(text)
        return before

    try:
        assert "model-q4_k_m.gguf" in until(">>> ")
        for line, expected in (
            ("What is 1 + 1?", f"stopped after {LONGEST} tokens"),
            ("And 2 + 2?", f"stopped after {LONGEST} tokens"),
            ("9 " * 120, "ask a shorter question, or start anew with /new"),
            ("/what", "/quit"),
            ("/new", ""),
        ):
            os.write(ours, f"{line}\n".encode())
            assert expected in until(">>> ").replace("\r\n", "")
        os.write(ours, b"\x04")
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        os.close(ours)
