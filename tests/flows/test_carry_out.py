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
        self.stages: list[Stage] = []
        self.looks: list[dict[str, Any]] = []
        """What the gate measures at its further looks."""

    def __call__(self, stage: Stage, settings: Settings, parents: Mapping[str, Manifest], *, force: bool) -> Outcome:
        assert set(parents) == set(stage.parents)
        self.ran.append(stage.name)
        self.stages.append(stage)
        self.forced += [stage.name] if force else []
        self.seen += [settings.store.read_record(f"runs/{settings.run_id}.json") or {}]
        if stage.name in self.fail:
            raise self.fail[stage.name]
        manifest = self.made[stage.name]
        if stage.name == "format_gate" and self.ran.count(stage.name) > 1:
            manifest = manifest.model_copy(update={"metrics": self.looks.pop(0)})
        if "round" in stage.options:
            manifest = manifest.model_copy(update={"fingerprint": f"{stage.options['round']:064}"})
        return Outcome(manifest, stage.name == "model", "because")


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
    made = make_chain(load_config("tiny"), metrics={"sft": {"steps": 400}, "format_gate": GATE, **scores})
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
    assert caught.value.cause == "data_too_hard"
    assert bench.runner.ran[-1] == "format_gate"
    record = bench.record()
    assert (record["status"], record["error"]["exit_code"]) == ("failed", 20)
    assert record["stages"][-1]["action"] == "made"


def test_the_gate_is_passed_by_when_grpo_is_given(bench: Bench) -> None:
    bench.run("gate.max_dead_groups=0.4", resume_from="grpo:latest")
    assert "grpo" not in bench.runner.ran and bench.runner.ran[-1] == "export"


RAW = {**GATE, "format_rate": 0.5, "format_rate_low": 0.4, "kinds": {"no_answer": 48, "wrong": 48}}


def since_sft(runner: Runner) -> list[str]:
    return runner.ran[runner.ran.index("sft") :]


def raw(bench: Bench, *looks: dict[str, Any]) -> Runner:
    """A runner whose first look sees a model that does not write the format yet, and whose later ones see `looks`."""
    runner = bench.runner
    runner.made["format_gate"] = runner.made["format_gate"].model_copy(update={"metrics": RAW})
    runner.looks = list(looks)
    return runner


def test_more_sft_until_the_gate_opens(bench: Bench) -> None:
    runner = raw(bench, GATE)
    result = bench.run(stop_after="grpo")
    assert since_sft(runner) == ["sft", "format_gate", "sft", "format_gate", "grpo"]
    assert runner.stages[-3].options == {"round": 1, "max_steps": 400}
    record = bench.record()
    assert [(look["sft_rounds"], look["verdict"]) for look in record["gate"]] == [(0, "more_sft"), (1, "go")]
    assert record["gate"][0]["evidence"].startswith("whole format in 50.0% of 96 completions")
    again = [item for item in record["stages"] if item["stage"] == "sft"][1:]
    assert [item["reason"] for item in again] == ["the gate asks for more SFT: round 1 of at most 2"]
    assert result["stages"]["sft"] == f"{1:064}"  # the round's model is the one that counts
    assert "format gate: the gate asks for more SFT: round 1 of at most 2" in bench.said


def test_rounds_are_bounded_and_a_refusal_keeps_what_was_trained(bench: Bench) -> None:
    runner = raw(bench, RAW, RAW)
    with pytest.raises(GateRefused) as caught:
        bench.run("gate.sft_round_steps=7")
    assert caught.value.cause == "more_sft"
    assert since_sft(runner) == ["sft", "format_gate", "sft", "format_gate", "sft", "format_gate"]
    assert [stage.options.get("max_steps") for stage in runner.stages if stage.name == "sft"] == [None, 7, 7]
    record = bench.record()
    assert [look["sft_rounds"] for look in record["gate"]] == [0, 1, 2]
    assert {item["action"] for item in record["stages"][1:]} == {"made"}


def test_no_round_when_another_verdict_or_a_given_model_forbids_it(bench: Bench) -> None:
    raw(bench)
    with pytest.raises(GateRefused):
        bench.run("gate.max_sft_rounds=0")
    bench.runner.ran.clear()
    with pytest.raises(GateRefused):
        bench.run(resume_from="sft:latest")
    assert "sft" not in bench.runner.ran and bench.runner.ran[-1] == "format_gate"


def test_an_early_stop_that_does_not_decide_under_these_thresholds(bench: Bench) -> None:
    runner = bench.runner
    early = {**GATE, "prompts": 32, "stopped_early": True, "looks": 3}
    runner.made["format_gate"] = runner.made["format_gate"].model_copy(update={"metrics": early})
    runner.looks = [GATE]
    bench.run("gate.min_format_rate=0.94", stop_after="grpo")
    assert since_sft(runner) == ["sft", "format_gate", "format_gate", "grpo"]
    assert runner.stages[-2].options == {"whole": True}
    assert len(bench.record()["gate"]) == 1


def test_given_artifacts_are_in_the_record(bench: Bench) -> None:
    bench.run(start_from="grpo")
    actions = {item["stage"]: item["action"] for item in bench.record()["stages"]}
    assert actions["sft"] == "given" and actions["grpo"] == "made"
    assert "format_gate" not in actions
