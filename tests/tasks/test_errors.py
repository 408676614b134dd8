"""The exit codes: each class has its own, all are documented, and errors survive the way through JSON."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from flows import doctor_cli, inspect_cli
from tasks import errors
from tasks.errors import BY_EXIT_CODE, ConfigError, PipelineError, Retryable, from_json
from tasks.format_gate import verdict

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "errors.md").read_text(encoding="utf-8")
CLASSES = [item for _, item in inspect.getmembers(errors, inspect.isclass) if issubclass(item, PipelineError)]


def documented() -> dict[int, list[str]]:
    """Cells of every row of the table, by exit code."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in DOCUMENT.splitlines() if line.startswith("| ")
    ]
    return {int(row[0]): row[1:] for row in rows if row[0].isdigit()}


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_class_is_documented_with_its_code(kind: type[PipelineError]) -> None:
    name, english, chinese, retried = documented()[kind.exit_code]
    assert name == f"`{kind.__name__}`"
    assert english and re.search(r"[\u4e00-\u9fff]", chinese)
    assert retried.startswith("yes" if kind.retryable else "no")


def test_codes_of_commands_are_documented() -> None:
    rows = documented()
    assert "reward audit" in rows[inspect_cli.NOT_SOUND][1] and "doctor" in rows[doctor_cli.UNHEALTHY][1]
    assert list(rows) == sorted(rows)


def test_codes_are_distinct_and_known_to_the_parent_process() -> None:
    codes = [kind.exit_code for kind in CLASSES]
    assert len(set(codes)) == len(codes)
    assert {kind.exit_code: kind for kind in CLASSES if kind is not PipelineError} == BY_EXIT_CODE
    # 126 to 128 mean something to a shell; 128 + n a signal: only SIGTERM's is used.
    assert all(0 < code < 126 or code == 143 for code in codes)


def test_causes_of_the_gate_are_documented() -> None:
    documented_causes = set(re.findall(r"^\| `(\w+)`", DOCUMENT.split("## Causes of the format gate")[1], re.MULTILINE))
    assert documented_causes == set(verdict.VERDICTS) - {"go"}


def test_a_message_says_what_where_and_what_to_do() -> None:
    error = ConfigError("is above 1", where="grpo.beta", fix="lower it")
    assert str(error) == "grpo.beta: is above 1\n  what to do: lower it"
    assert (error.cause, str(ConfigError("alone"))) == ("config", "alone")


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_through_json(kind: type[PipelineError]) -> None:
    back = from_json(kind("what", where="here", fix="that", cause="why").to_json())
    assert type(back) is kind
    assert (back.message, back.where, back.fix, back.cause) == ("what", "here", "that", "why")


def test_json_from_another_version() -> None:
    assert type(from_json({"exit_code": 99, "message": "new"})) is PipelineError
    assert from_json({}).message == ""
    assert from_json({"exit_code": 75, "cause": ""}).cause == Retryable.default_cause
