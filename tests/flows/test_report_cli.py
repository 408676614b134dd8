"""`grpo-pipeline report`: which run is meant, in which language, and where the page goes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from artifacts.store import Store, open_store
from flows import cli
from flows.record import RunRecord
from pipeline_config.loading import load_config


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli.out, "width", 200)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, list(arguments), env={"NO_COLOR": "1", "TERM": "dumb"})


def finished_run(store: Store, *overrides: str) -> dict[str, Any]:
    record = RunRecord.start(load_config("tiny", overrides=overrides))
    record.finish()
    store.write_record(f"runs/{record.run_id}.json", record.to_json())
    return record.to_json()


def home(path: Path) -> Store:
    return open_store(str(path / "store"))


def test_a_run_that_is_not_there() -> None:
    result = call("report", "20260101-000000-abcdef", "--profile", "tiny")
    assert result.exit_code == 13
    assert "error [no_such_run]" in result.stderr and "no single run '20260101-000000-abcdef'" in result.stderr
    assert "the newest runs: none" in result.stderr
    assert call("report").exit_code == 13


def test_a_run_by_its_id_its_beginning_and_latest(tmp_path: Path) -> None:
    run_id = finished_run(home(tmp_path / "grpo-runs"))["run_id"]
    path = tmp_path / "grpo-runs" / "reports" / run_id / "report.html"
    for reference in ("latest", run_id, run_id[:15]):
        result = call("report", reference, "--profile", "tiny")
        assert result.exit_code == 0 and result.stdout.strip() == str(path)
        assert run_id in path.read_text()
        path.unlink()


def test_a_run_below_another_home(tmp_path: Path) -> None:
    run_id = finished_run(home(tmp_path / "elsewhere"))["run_id"]
    path = tmp_path / "elsewhere" / "reports" / run_id / "report.html"
    for arguments in (
        ["elsewhere"],
        ["elsewhere/latest"],
        [f"elsewhere/{run_id}"],
        ["latest", "--home", "elsewhere"],
        [run_id[:15], "--home", "elsewhere"],
        ["latest", "--profile", "tiny", "--set", "run.home=elsewhere"],
        [
            "latest",
            "--profile",
            "tiny",
            "--set",
            f"run.store={tmp_path}/elsewhere/store",
            "--set",
            "run.home=elsewhere",
        ],
    ):
        result = call("report", *arguments)
        assert result.exit_code == 0 and result.stdout.strip() == str(path), (arguments, result.output)
        path.unlink()
    assert call("report", "elsewhere/20200101-000000-abcdef").exit_code == 13
    assert call("report", "nowhere/latest").exit_code == 13


def test_languages(tmp_path: Path) -> None:
    chinese = finished_run(home(tmp_path / "zh"), "run.language=zh")
    folder = tmp_path / "zh" / "reports" / chinese["run_id"]
    assert call("report", "zh").stdout.strip() == str(folder / "report.html")
    assert 'lang="zh-CN"' in (folder / "report.html").read_text()
    assert call("report", "zh", "--lang", "en").stdout.strip() == str(folder / "report.en.html")
    assert 'lang="en"' in (folder / "report.en.html").read_text()
    assert call("report", "zh", "--lang", "zh").stdout.strip() == str(folder / "report.html")
    assert call("report", "zh", "--lang", "de").exit_code == 2


def test_compare(tmp_path: Path) -> None:
    store = home(tmp_path / "grpo-runs")
    first = finished_run(store)
    other = finished_run(home(tmp_path / "elsewhere"), "grpo.beta=0.1", "run.language=zh")
    page = tmp_path / "grpo-runs" / "reports" / f"compare-{first['run_id']}-{other['run_id']}.html"
    result = call("compare", "latest", "elsewhere", "--profile", "tiny")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("These runs cannot be compared: no model was evaluated in both.")
    assert "grpo.beta" in result.stdout and result.stdout.rstrip().endswith(str(page))
    assert 'lang="en"' in page.read_text()
    chosen = tmp_path / "new" / "page.html"
    result = call(
        "compare", "elsewhere", f"grpo-runs/{first['run_id']}", "--json", "--html", str(chosen), "--lang", "en"
    )
    data = json.loads(result.stdout)
    assert data["page"] == str(chosen) and "curves" not in data
    assert {row["name"]: (row["a"], row["b"]) for row in data["settings"]} == {
        "grpo.beta": (0.1, 0.0),
        "run.language": ("zh", "en"),
    }
    assert data["verdict"]["comparable"] is False and 'lang="en"' in chosen.read_text()
    assert call("compare", "latest", "nowhere/latest", "--profile", "tiny").exit_code == 13
    assert 'lang="zh-CN"' in Path(call("compare", "elsewhere", "grpo-runs").stdout.split("\n")[-2].strip()).read_text()


def test_a_page_that_cannot_be_written_is_one_message(tmp_path: Path) -> None:
    run = finished_run(home(tmp_path / "grpo-runs"))
    file = tmp_path / "file"
    file.write_text("")
    for page in (tmp_path, file / "below.html"):
        result = call("compare", "grpo-runs", "grpo-runs", "--html", str(page))
        assert result.exit_code == 13 and "error [store]" in result.stderr and "what to do" in result.stderr
    (tmp_path / "grpo-runs" / "reports" / run["run_id"] / "report.html").mkdir(parents=True)
    result = call("report", "grpo-runs")
    assert result.exit_code == 13 and "cannot write the page" in result.stderr and "what to do" in result.stderr
