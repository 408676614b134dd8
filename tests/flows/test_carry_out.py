"""A run from its first stage to its record: what is kept however it ends, and when the gate decides."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from artifacts.manifest import Manifest
from artifacts.store import Store
from flows import carry_out as module
from flows.carry_out import Choice, carry_out
from pipeline_config.loading import load_config
from pipeline_config.pipeline import PipelineConfig
from tasks.errors import GateRefused, Retryable, StoreError
from tasks.evaluate.scores import score
from tasks.stage import Outcome, Settings, Stage

GATE = {
    "prompts": 12,
    "completions": 96,
    "format_rate": 0.99,
    "format_rate_low": 0.95,
    "truncation_rate": 0.0,
    "pass_at_1": 0.5,
    "dead_groups": 0.5,
    "dead_all_right": 0.0,
    "dead_all_wrong": 0.5,
    "kinds": {"right": 48, "wrong": 48},
}


class Runner:
    """Carries out no stage: hands out what is stored, and fails where it is told to."""

    def __init__(self, made: dict[str, Manifest]) -> None:
        self.made, self.ran, self.forced = made, list[str](), list[str]()
        self.fail: dict[str, BaseException] = {}
        self.seen: list[dict[str, Any]] = []

    def __call__(self, stage: Stage, settings: Settings, parents: Mapping[str, Manifest], *, force: bool) -> Outcome:
        assert set(parents) == set(stage.parents)
        self.ran.append(stage.name)
        self.forced += [stage.name] if force else []
        self.seen += [settings.store.read_record(f"runs/{settings.run_id}.json") or {}]
        if stage.name in self.fail:
            raise self.fail[stage.name]
        return Outcome(self.made[stage.name], stage.name == "model", "because")


class Bench:
    def __init__(self, home: Path, store: Store, made: dict[str, Manifest]) -> None:
        self.home, self.store, self.runner = home, store, Runner(made)
        self.said: list[str] = []
        self.warned: list[str] = []

    def config(self, *overrides: str) -> PipelineConfig:
        return load_config("tiny", overrides=[f"run.home={self.home}", "run.min_free_gb=0", *overrides])

    def run(self, *overrides: str, **choice: Any) -> dict[str, Any]:
        config = self.config(*overrides)
        return carry_out(config, Choice(**choice), self.runner, self.said.append, self.warned.append)

    def record(self) -> dict[str, Any]:
        """The only run's record."""
        (path,) = self.store.list_records("runs")
        return self.store.read_record(path) or {}


@pytest.fixture
def bench(tmp_path: Path, chain_store: Store, make_chain: Any) -> Bench:
    item = {"right": True, "lenient": True, "well_formed": True, "truncated": False, "tokens": 9, "sampled_right": 1}
    scores = {f"evaluate_{name}": score([item], 1) for name in ("base", "sft", "grpo")}
    made = make_chain(load_config("tiny"), metrics={"format_gate": GATE, **scores})
    return Bench(tmp_path / "home", chain_store, made)


def test_a_run_that_completes(bench: Bench) -> None:
    result = bench.run(force=("sft",), stop_after="export")
    assert bench.runner.ran == list(bench.runner.made) and bench.runner.forced == ["sft"]
    record = bench.record()
    assert (record["run_id"], record["status"], record["error"]) == (result["run_id"], "completed", None)
    assert record["choice"] == {"start_from": None, "stop_after": "export", "force": ["sft"], "resume_from": None}
    assert result["stages"] == {name: manifest.fingerprint for name, manifest in bench.runner.made.items()}
    assert record["stages"][0]["action"] == "reused" and record["stages"][1]["action"] == "made"
    assert result["run_id"] in Path(result["report"]).read_text(encoding="utf-8")
    assert any(line.startswith("format gate: go: whole format 99.0%") for line in bench.said)
    assert bench.warned == []


def test_the_record_is_there_while_the_run_goes_on(bench: Bench) -> None:
    """So that a run that is killed is known, with the stage that it was in."""
    bench.run(stop_after="dataset")
    first, second = bench.runner.seen[:2]
    assert first["status"] == second["status"] == "running" and first["finished_at"] is None
    assert [(item["stage"], item["action"]) for item in second["stages"]] == [
        ("model", "reused"),
        ("dataset", "running"),
    ]


def test_a_run_that_fails(bench: Bench) -> None:
    bench.runner.fail["sft"] = Retryable("the hub was gone", where="sft", cause="network")
    with pytest.raises(Retryable, match="the hub was gone"):
        bench.run()
    record = bench.record()
    assert (record["status"], record["error"]["cause"]) == ("failed", "network")
    work = f"sft-{bench.runner.made['sft'].fingerprint[:16]}"
    expected = {"stage": "sft", "action": "failed", "started_at": "", "work": work}
    assert record["stages"][-1] | {"started_at": ""} == expected
    assert len(list((bench.home / "reports").glob("*/report.html"))) == 1


def test_a_run_that_is_interrupted(bench: Bench) -> None:
    bench.runner.fail["grpo"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        bench.run()
    assert bench.record()["status"] == "interrupted"


def test_a_report_that_fails_hides_neither_error_nor_result(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Path:
        raise ZeroDivisionError("no rows")

    monkeypatch.setattr(module, "write_report", broken)
    assert bench.run(stop_after="model")["run_id"]
    assert bench.warned == ["the report could not be written: ZeroDivisionError: no rows"]
    bench.runner.fail["model"] = Retryable("the hub was gone")
    with pytest.raises(Retryable, match="the hub was gone"):
        bench.run(stop_after="model")


def test_a_record_that_cannot_be_kept_does_not_end_the_run(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise StoreError("there is no space left", where="the store")

    monkeypatch.setattr(Store, "write_record", full)
    assert bench.run(stop_after="model")["stages"].keys() == {"model"}
    assert "the run's record could not be written: the store: there is no space left" in bench.warned


def test_the_gate_refuses_by_the_thresholds_of_this_run(bench: Bench) -> None:
    with pytest.raises(GateRefused) as caught:
        bench.run("gate.max_dead_groups=0.4")
    assert caught.value.cause == "too_hard"
    assert bench.runner.ran[-1] == "format_gate"
    record = bench.record()
    assert (record["status"], record["error"]["exit_code"]) == ("failed", 20)
    assert record["stages"][-1]["action"] == "made"


def test_the_gate_is_passed_by_when_grpo_is_given(bench: Bench) -> None:
    bench.run("gate.max_dead_groups=0.4", resume_from="grpo:latest")
    assert "grpo" not in bench.runner.ran and bench.runner.ran[-1] == "export"


def test_given_artifacts_are_in_the_record(bench: Bench) -> None:
    bench.run(start_from="grpo")
    actions = {item["stage"]: item["action"] for item in bench.record()["stages"]}
    assert actions["sft"] == "given" and actions["grpo"] == "made"
    assert "format_gate" not in actions
