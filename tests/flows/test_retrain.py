"""A night: nothing new, something new, refused, failed, and two at once. Stages hand out stored artifacts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import pytest

from artifacts.manifest import Manifest
from artifacts.store import Store
from flows import retrain as module
from flows.carry_out import Choice
from flows.retrain import Night, retrain
from pipeline_config.loading import load_config
from pipeline_config.pipeline import PipelineConfig
from tasks.errors import DataError, GateRefused, Retryable, RunStopped
from tasks.evaluate.scores import score
from tasks.promote.promotion import Decision
from tasks.stage import Outcome, Settings, Stage


class Bench:
    """One home and store; `made` are the artifacts of the configuration of the night, as its stages would make them."""

    def __init__(self, home: Path, store: Store, make: Callable[..., dict[str, Manifest]]) -> None:
        self.home, self.store, self.make = home, store, make
        self.ran: list[str] = []
        self.judged: list[str] = []
        self.said: list[str] = []
        self.fail: dict[str, BaseException] = {}
        self.verdict: Literal["promoted", "refused", "unchanged"] = "promoted"
        self.wait: Callable[[], None] = lambda: None

    def config(self, *overrides: str) -> PipelineConfig:
        return load_config(
            "tiny", overrides=[f"run.home={self.home}", "run.min_free_gb=0", "gate.enabled=false", *overrides]
        )

    def night(self, *overrides: str, force: tuple[str, ...] = ()) -> Night:
        config = self.config(*overrides)
        self.ran.clear()
        made: dict[str, Manifest] = {}

        def run_stage(stage: Stage, settings: Settings, parents: Mapping[str, Manifest], *, force: bool) -> Outcome:
            self.ran.append(stage.name)
            self.wait()
            if stage.name in self.fail:
                raise self.fail[stage.name]
            if not made:
                item = {
                    "right": True,
                    "lenient": True,
                    "well_formed": True,
                    "truncated": False,
                    "tokens": 9,
                    "sampled_right": 1,
                }
                scores = {f"evaluate_{name}": score([item], 1) for name in ("base", "sft", "grpo")}
                made.update(self.make(config, metrics=scores))
            return Outcome(made[stage.name], False, "because")

        return retrain(config, Choice(force=force), run_stage, self.said.append, self.said.append)


@pytest.fixture
def bench(tmp_path: Path, chain_store: Store, make_chain: Any, monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = Bench(tmp_path / "home", chain_store, make_chain)

    def promote(store: Store, ref: str, settings: Any, name: str, **more: Any) -> Decision:
        made.judged.append(ref)
        return Decision(name, made.verdict, "better", "61.0% against 52.5%, p = 0.003")

    monkeypatch.setattr(module, "promote", promote)
    monkeypatch.setattr(module, "store_of", lambda config: chain_store)
    monkeypatch.setattr("flows.carry_out.store_of", lambda config: chain_store)
    return made


def test_the_second_night_has_nothing_new(bench: Bench) -> None:
    first = bench.night()
    assert first.outcome == "promoted" and first.text == "tiny: 61.0% against 52.5%, p = 0.003 [better]"
    assert bench.judged == [first.run_id] and Path(first.report).exists()
    second = bench.night()
    assert second.outcome == "nothing_new" and second.run_id is None and bench.ran == []
    assert "(promoted: 61.0% against 52.5%, p = 0.003)" in second.text
    assert len(bench.store.list_records("runs")) == 1


@pytest.mark.parametrize(
    "changed",
    ["data.seed=7", "grpo.beta=0.1", "gate.max_dead_groups=0.8", "promotion.alpha=0.01", "export.formats=[f16]"],
)
def test_new_data_or_settings_are_trained_and_judged(bench: Bench, changed: str) -> None:
    bench.night()
    bench.verdict = "refused"
    assert bench.night(changed).outcome == "not_promoted" and len(bench.judged) == 2
    assert bench.night(changed).outcome == "nothing_new" and len(bench.judged) == 2


@pytest.mark.parametrize(
    "changed", ["data.window=2026-12-01", "run.threads=1", "grpo.logging_steps=5", "run.language=zh"]
)
def test_what_changes_no_result_is_nothing_new(bench: Bench, changed: str) -> None:
    bench.night()
    assert bench.night(changed).outcome == "nothing_new"


def test_a_changed_file_is_new(bench: Bench, tmp_path: Path) -> None:
    rows = '{"question": "1+1", "answer": "2", "w": "2"}\n'
    (tmp_path / "monday.jsonl").write_text(rows)
    (tmp_path / "tuesday.jsonl").write_text(rows * 2)
    source = f'data.train=[{{kind: file, url: "{tmp_path}/{{window}}.jsonl", columns: {{working: w}}}}]'
    assert bench.night(source, "data.window=monday").outcome == "promoted"
    assert bench.night(source, "data.window=monday").outcome == "nothing_new"
    assert bench.night(source, "data.window=tuesday").outcome == "promoted"
    (tmp_path / "tuesday.jsonl").write_text(rows * 3)
    assert bench.night(source, "data.window=tuesday").outcome == "promoted"
    with pytest.raises(DataError, match="no such file"):
        bench.night(source, "data.window=wednesday")


def test_a_damaged_artifact_is_made_again(bench: Bench) -> None:
    bench.night()
    model = bench.store.find("sft:latest")
    (bench.store.local_folder(model) / "model" / "model.safetensors").write_text("something else")
    assert bench.night().outcome == "promoted"


def test_force_trains_in_any_case(bench: Bench) -> None:
    bench.night()
    assert bench.night(force=("grpo",)).outcome == "promoted" and "grpo" in bench.ran


def test_the_same_model_as_in_production_is_no_news(bench: Bench) -> None:
    bench.verdict = "unchanged"
    assert bench.night().outcome == "nothing_new"


@pytest.mark.parametrize(
    "error", [GateRefused("all wrong", cause="too_hard"), RunStopped("entropy", cause="entropy_collapse")]
)
def test_what_would_end_the_same_way_is_not_tried_every_night(bench: Bench, error: Exception) -> None:
    bench.fail["grpo"] = error
    with pytest.raises(type(error)):
        bench.night()
    again = bench.night()
    assert again.outcome == "nothing_new" and bench.ran == [] and bench.judged == []
    assert f"({error.cause}: {error.message})" in again.text  # type: ignore[attr-defined]
    bench.fail.clear()
    assert bench.night("gate.max_dead_groups=0.8").outcome == "promoted"


def test_what_can_go_away_is_tried_again(bench: Bench) -> None:
    bench.fail["grpo"] = Retryable("the hub was gone")
    with pytest.raises(Retryable):
        bench.night()
    bench.fail.clear()
    assert bench.night().outcome == "promoted"


def test_killed_between_training_and_decision(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*arguments: Any, **more: Any) -> Decision:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "promote", killed)
        with pytest.raises(KeyboardInterrupt):
            bench.night()
    assert bench.night().outcome == "promoted"


def test_a_record_that_cannot_be_read_costs_a_night_and_no_more(bench: Bench) -> None:
    bench.night()
    root = bench.store.root
    assert root is not None
    (record,) = root.rglob("nightly/tiny.json")
    record.write_text("{")
    assert bench.night().outcome == "promoted" and any("is done again" in line for line in bench.said)


def test_of_two_at_once_one_works(bench: Bench) -> None:
    inside, go = threading.Event(), threading.Event()

    def wait() -> None:
        inside.set()
        assert go.wait(10)

    bench.wait = wait
    nights: list[Night] = []
    first = threading.Thread(target=lambda: nights.append(bench.night()))
    first.start()
    assert inside.wait(10)
    second = threading.Thread(target=lambda: nights.append(bench.night()))
    second.start()
    while not any("another retraining is in progress" in line for line in bench.said):
        assert second.is_alive()
    go.set()
    first.join(10)
    second.join(10)
    assert sorted(night.outcome for night in nights) == ["nothing_new", "promoted"] and len(bench.judged) == 1
