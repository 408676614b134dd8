"""Findings as JSON, as a table, as an error; and the preflight by itself, with its command."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from pipeline_config.loading import load_config
from tasks.errors import ConfigError, DataError, ModelError, Retryable
from tasks.findings import Finding
from tasks.preflight import alone, verdict
from tasks.preflight.alone import Alone, preflight_alone

OK = Finding("config.batch", "ok", "4 groups of 8")
WARN = Finding("config.sampling", "warn", "top_p=0.9", "set grpo.top_p=1")
FAIL = Finding("data.zero_golds", "fail", "all golds are 0", "name the column")
TAG = Finding("tag.answer_end", "fail", "special [token]", "ordinary text")


def test_the_first_fail_in_the_order_of_the_groups() -> None:
    error = verdict.first_failure({"data": [FAIL], "tokenizer": [TAG], "config": [OK, WARN]})
    assert isinstance(error, ModelError) and (error.cause, error.where) == ("tag.answer_end", "preflight, tokenizer")
    assert error.message == "special [token] (and 1 more: data.zero_golds)" and error.fix == "ordinary text"
    assert verdict.first_failure({"config": [OK, WARN]}) is None


def test_a_finding_about_data_that_the_rewards_made_is_an_error_of_data() -> None:
    error = verdict.first_failure({"rewards": [Finding("data.gold_scores_maximum", "fail", "x")]})
    assert isinstance(error, DataError)


def test_json_and_back(tmp_path: Path) -> None:
    found = {"config": [OK, WARN], "data": [FAIL]}
    verdict.write(found, tmp_path, plans={"a": 1})
    data = json.loads((tmp_path / "findings.json").read_text())
    assert data["passed"] is False and data["plans"] == {"a": 1}
    assert data["counts"] == {"ok": 1, "warn": 1, "fail": 1, "not_measured": 0}
    assert data["findings"][2] == {
        "group": "data",
        "name": "data.zero_golds",
        "status": "fail",
        "evidence": "all golds are 0",
        "fix": "name the column",
    }
    assert verdict.read(tmp_path) == found
    (tmp_path / "findings.json").write_text("{half")
    assert verdict.read(tmp_path) == {} == verdict.read(tmp_path / "nowhere")


def test_the_table() -> None:
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(verdict.table({"tokenizer": [TAG], "config": [OK]}))
    text = console.export_text()
    assert "Preflight: 1 ok, 1 fail" in text and "special [token]" in text and "what to do" in text
    console.print(verdict.table({"config": [OK]}))
    assert "what to do" not in console.export_text()


# -- alone --------------------------------------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path: Path) -> Any:
    return load_config("tiny", overrides=[f"run.home={tmp_path}/home", "run.min_free_gb=0"])


def outcome(name: str, reused: bool = False) -> Any:
    return SimpleNamespace(manifest=name, reused=reused)


def test_a_preflight_that_passes(config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, list[str], bool]] = []

    def execute(stage: Any, settings: Any, parents: dict[str, Any], *, force: bool) -> Any:
        ran.append((stage.name, sorted(parents), force))
        return outcome(stage.name, reused=True)

    folder = tmp_path / "artifact"
    folder.mkdir()
    verdict.write({"config": [OK]}, folder)
    monkeypatch.setattr(alone, "execute", execute)
    store = alone.store_of(config)
    monkeypatch.setattr(type(store), "local_folder", lambda self, manifest: folder)
    result = preflight_alone(config, "run", print, force=True)
    assert result == Alone({"config": [OK]}, None, True)
    assert ran == [("model", [], False), ("dataset", ["model"], False), ("preflight", ["dataset", "model"], True)]


def test_a_preflight_that_fails_shows_what_it_wrote(
    config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = DataError("x", cause="data.zero_golds")

    def execute(stage: Any, *_: Any, **__: Any) -> Any:
        if stage.name == "preflight":
            out = tmp_path / "home" / "work" / "preflight-0123456789abcdef" / "out"
            out.mkdir(parents=True)
            verdict.write({"data": [FAIL]}, out)
            raise failure
        return outcome(stage.name)

    monkeypatch.setattr(alone, "execute", execute)
    monkeypatch.setattr(alone, "all_terms", lambda *_: {})
    monkeypatch.setattr(alone, "fingerprint", lambda _: "0123456789abcdef0000")
    assert preflight_alone(config, "run", print) == Alone({"data": [FAIL]}, failure, False)


def test_what_stops_an_earlier_stage_is_the_only_finding(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    error = ModelError("is missing", where="model.source", fix="give a path", cause="no_model")

    def execute(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(alone, "execute", execute)
    result = preflight_alone(config, "run", print)
    assert result.found == {"tokenizer": [Finding("no_model", "fail", "model.source: is missing", "give a path")]}
    assert result.error is error


def test_a_killed_preflight_is_an_error(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def execute(stage: Any, *_: Any, **__: Any) -> Any:
        if stage.name == "preflight":
            raise Retryable("the process was killed")
        return outcome(stage.name)

    monkeypatch.setattr(alone, "execute", execute)
    monkeypatch.setattr(alone, "all_terms", lambda *_: {})
    with pytest.raises(Retryable):
        preflight_alone(config, "run", print)


# -- the command --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "error", "code"),
    [
        ({"config": [OK, WARN]}, None, 0),
        ({"data": [FAIL]}, DataError("x"), 11),
        ({"config": [FAIL]}, ConfigError("x"), 10),
    ],
)
def test_the_command(monkeypatch: pytest.MonkeyPatch, found: Any, error: Any, code: int) -> None:
    from flows.cli import app

    seen: list[Any] = []

    def run(config: Any, run_id: str, log: Any, *, force: bool) -> Alone:
        log("model: runs (nothing stored yet)")
        log("model | a line of the stage")
        seen.append((config.grpo.beta, force))
        return Alone(found, error, False)

    monkeypatch.setattr(alone, "preflight_alone", run)
    arguments = ["preflight", "--profile", "tiny", "--set", "grpo.beta=0.5"]
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert done.exit_code == code, done.output
    data = json.loads(done.stdout)
    assert data["passed"] is (code == 0) and data["profile"] == "tiny"
    assert "model: runs" in done.stderr and "a line of the stage" not in done.stderr
    done = CliRunner().invoke(app, [*arguments, "--force"])
    assert done.exit_code == code and "Preflight of tiny" in done.stdout
    assert seen == [(0.5, False), (0.5, True)]


def test_the_command_refuses_a_wrong_setting() -> None:
    from flows.cli import app

    done = CliRunner().invoke(app, ["preflight", "--profile", "tiny", "--set", "grpo.loss_type=nonsense"])
    assert done.exit_code == 10 and "grpo.loss_type" in done.stderr
