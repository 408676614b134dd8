"""What a run would carry out: options of `run` turned into a selection, and the plan with its reasons."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from artifacts.manifest import Manifest
from artifacts.store import Store
from pipeline_config.loading import load_config
from pipeline_config.pipeline import PipelineConfig
from tasks.chain import stages_for
from tasks.errors import ConfigError, StoreError
from tasks.plan import Step, plan, select

TINY = load_config("tiny")
NAMES = tuple(stage.name for stage in stages_for(TINY) if stage.name != "preflight")
"""The preflight depends on nearly everything, and nothing on it."""
Chain = dict[str, Manifest]


def configured(*overrides: str) -> PipelineConfig:
    return load_config("tiny", overrides=overrides)


def steps(config: PipelineConfig, store: Store, **options: Any) -> dict[str, Step]:
    found = plan(config, store, select(config, store, **options))
    return {step.stage: step for step in found if step.stage in NAMES}


def actions(config: PipelineConfig, store: Store, **options: Any) -> dict[str, str]:
    return {name: step.action for name, step in steps(config, store, **options).items()}


def damage(store: Store, manifest: Manifest, name: str) -> None:
    (store.local_folder(manifest) / name).unlink()


# -- plan ---------------------------------------------------------------------------------------------------------


def test_an_empty_store(chain_store: Store) -> None:
    found = steps(TINY, chain_store)
    assert list(found) == list(NAMES)
    assert found["model"].action == "run" and found["model"].reason == "nothing stored yet"
    assert found["dataset"] == Step("dataset", "wait", "its input model is made first", None)
    assert found["evaluate_grpo"].reason == "its input grpo, evaluation_sets is made first"


def test_all_is_stored(chain_store: Store, make_chain: Any) -> None:
    made = make_chain(TINY)
    found = steps(TINY, chain_store)
    assert {step.action for step in found.values()} == {"reuse"}
    assert {name: step.fingerprint for name, step in found.items()} == {n: made[n].fingerprint for n in NAMES}


@pytest.mark.parametrize(
    ("override", "stage", "reason"),
    [
        ("grpo.beta=0.04", "grpo", f"grpo.beta: {TINY.grpo.beta:g} -> 0.04"),
        ("sft.learning_rate=2e-3", "sft", f"sft.learning_rate: {TINY.sft.learning_rate} -> 0.002"),
        ("data.sft_rows=10", "dataset", f"data.sft_rows: {TINY.data.sft_rows} -> 10"),
        (
            "gate.prompts=20",
            "format_gate",
            f"prompts: {TINY.gate.prompts} -> 20; up to 2 more SFT rounds may follow, by what it measures",
        ),
        ("model.revision=abc", "model", 'revision: null -> "abc"'),
        ("export.formats=[f16]", "export", 'export.formats: ["f16","q4_k_m"] -> ["f16"]'),
    ],
)
def test_the_changed_term_is_named(chain_store: Store, make_chain: Any, override: str, stage: str, reason: str) -> None:
    make_chain(TINY)
    found = steps(configured(override), chain_store)
    assert (found[stage].action, found[stage].reason) == ("run", reason)
    assert [name for name, step in found.items() if step.action == "run"] == [stage]


def test_a_changed_grpo_setting_reuses_all_that_does_not_depend_on_it(chain_store: Store, make_chain: Any) -> None:
    make_chain(TINY)
    found = actions(configured("grpo.beta=0.04"), chain_store)
    waiting = {"evaluate_grpo": "wait", "export": "wait"}
    assert found == dict.fromkeys(NAMES, "reuse") | {"grpo": "run"} | waiting


def test_log_settings_and_gate_thresholds_rerun_nothing(chain_store: Store, make_chain: Any) -> None:
    make_chain(TINY)
    changed = configured("grpo.logging_steps=5", "run.language=zh", "run.tracking=off", "gate.min_format_rate=0.1")
    assert set(actions(changed, chain_store).values()) == {"reuse"}


def test_many_changes_are_counted(chain_store: Store, make_chain: Any) -> None:
    make_chain(TINY)
    changed = [
        f"grpo.{name}" for name in ("beta=0.1", "epsilon=0.1", "weight_decay=0.1", "max_steps=3", "warmup_steps=1")
    ]
    reason = steps(configured(*changed), chain_store)["grpo"].reason
    assert reason.count("->") == 4 and reason.endswith("and 1 more")


def test_the_reason_is_against_the_most_similar_artifact(chain_store: Store, make_chain: Any) -> None:
    make_chain(configured("grpo.beta=0.1", "grpo.epsilon=0.3"), day=1)
    make_chain(configured("grpo.beta=0.1", "grpo.epsilon=0.4", "grpo.max_steps=7"), day=2)
    assert steps(configured("grpo.beta=0.2", "grpo.epsilon=0.3"), chain_store)["grpo"].reason == "grpo.beta: 0.1 -> 0.2"


def test_a_damaged_artifact_is_planned_and_left_for_the_run(chain_store: Store, make_chain: Any) -> None:
    made = make_chain(TINY)
    damage(chain_store, made["sft"], "metrics.jsonl")
    step = steps(TINY, chain_store)["sft"]
    assert step.action == "run" and step.reason.startswith("the stored artifact is damaged: metrics.jsonl")
    assert chain_store.lookup("sft", made["sft"].fingerprint) == made["sft"]


def test_stages_that_are_switched_off(chain_store: Store, make_chain: Any) -> None:
    config = configured("gate.enabled=false", "evaluation.baseline=false")
    make_chain(config)
    assert actions(config, chain_store) == {n: "reuse" for n in NAMES if n not in ("format_gate", "evaluate_base")}


# -- what the gate measured ----------------------------------------------------------------------------------------

GOOD = {
    "prompts": 48, "completions": 384, "format_rate": 0.99, "format_rate_low": 0.97, "truncation_rate": 0.0, "pass_at_1": 0.5,
    "dead_groups": 0.1, "dead_all_right": 0.0, "dead_all_wrong": 0.1, "kinds": {"right": 192, "wrong": 192},
}  # fmt: skip
RAW = {**GOOD, "format_rate": 0.4, "format_rate_low": 0.35, "kinds": {"no_answer": 230, "wrong": 154}}


def shown(config: PipelineConfig, store: Store, **options: Any) -> list[tuple[str, str]]:
    """Steps from SFT on."""
    found = [(step.stage, step.action) for step in plan(config, store, select(config, store, **options))]
    return found[[name for name, _ in found].index("sft") :]


def test_the_plan_names_the_verdict(chain_store: Store, make_chain: Any) -> None:
    make_chain(TINY, metrics={"format_gate": GOOD})
    assert steps(TINY, chain_store)["format_gate"].reason == "unchanged; its verdict: go"
    refused = steps(configured("gate.max_dead_groups=0.05"), chain_store)
    assert refused["format_gate"].reason == "unchanged; its verdict: data_too_hard"
    assert (refused["grpo"].action, refused["grpo"].reason) == ("wait", "the gate refuses GRPO: data_too_hard")
    given = steps(configured("gate.max_dead_groups=0.05"), chain_store, resume_from="grpo:latest")
    assert given["evaluate_grpo"].action == "reuse"


def test_the_plan_of_an_early_stop_that_does_not_decide(chain_store: Store, make_chain: Any) -> None:
    make_chain(TINY, metrics={"format_gate": {**GOOD, "prompts": 32, "stopped_early": True, "looks": 3}})
    assert shown(TINY, chain_store)[1] == ("format_gate", "reuse")
    assert shown(configured("gate.min_format_rate=0.95"), chain_store)[1:4] == [
        ("format_gate", "reuse"),
        ("format_gate", "run"),
        ("grpo", "reuse"),
    ]


def test_the_plan_follows_stored_rounds(chain_store: Store, make_chain: Any, store_round: Any) -> None:
    made = make_chain(TINY, metrics={"sft": {"steps": 400}, "format_gate": RAW}, until="format_gate")
    assert shown(TINY, chain_store) == [
        ("sft", "reuse"),
        ("format_gate", "reuse"),
        ("sft", "run"),
        ("grpo", "wait"),
        ("evaluate_base", "run"),
        ("evaluate_sft", "wait"),
        ("evaluate_grpo", "wait"),
        ("export", "wait"),
    ]
    last = [step for step in plan(TINY, chain_store, select(TINY, chain_store)) if step.stage == "sft"][-1]
    assert last.reason == "the gate asks for more SFT: round 1 of at most 2"
    after = store_round(TINY, made, 1, 400, GOOD)
    assert shown(TINY, chain_store)[:5] == [
        ("sft", "reuse"),
        ("format_gate", "reuse"),
        ("sft", "reuse"),
        ("format_gate", "reuse"),
        ("grpo", "run"),
    ]
    # GRPO starts from the round's model, also when the stages before it are not looked at one by one.
    assert select(TINY, chain_store, start_from="grpo").given["sft"] == after["sft"]
    assert select(configured("gate.max_sft_rounds=0"), chain_store, start_from="grpo").given["sft"] == made["sft"]
    assert shown(configured("gate.max_sft_rounds=0"), chain_store)[:3] == [
        ("sft", "reuse"),
        ("format_gate", "reuse"),
        ("grpo", "wait"),
    ]


# -- select -------------------------------------------------------------------------------------------------------


def test_stop_after(chain_store: Store) -> None:
    until_sft = ["model", "dataset", "evaluation_sets", "sft"]
    assert list(actions(TINY, chain_store, stop_after="sft")) == until_sft
    assert list(actions(TINY, chain_store, stop_after="evaluate")) == list(NAMES[:-1])
    without = configured("gate.enabled=false")
    assert list(actions(without, chain_store, stop_after="format_gate")) == until_sft


def test_force(chain_store: Store, make_chain: Any) -> None:
    make_chain(TINY)
    found = steps(TINY, chain_store, force=["grpo", "evaluate"])
    forced = {name for name, step in found.items() if step.reason == "forced"}
    # evaluate_grpo is forced too, but has to wait for the new model first.
    assert forced == {"grpo", "evaluate_base", "evaluate_sft"} and found["evaluate_grpo"].action == "wait"
    assert select(TINY, chain_store, force=["evaluate"]).forced == {"evaluate_base", "evaluate_sft", "evaluate_grpo"}


def test_start_from_takes_what_is_stored(chain_store: Store, make_chain: Any) -> None:
    made = make_chain(TINY)
    found = steps(configured("grpo.beta=0.04"), chain_store, start_from="grpo")
    assert {name: step.action for name, step in found.items()} == {
        "model": "given",
        "dataset": "given",
        "evaluation_sets": "reuse",
        "sft": "given",
        "grpo": "run",
        "evaluate_base": "reuse",
        "evaluate_sft": "reuse",
        "evaluate_grpo": "wait",
        "export": "wait",
    }
    assert found["sft"].fingerprint == made["sft"].fingerprint


def test_start_from_prefers_what_this_configuration_made(chain_store: Store, make_chain: Any) -> None:
    """Several configurations share a store: the newest SFT model may be another profile's."""
    mine = make_chain(TINY, day=1)
    newer = make_chain(configured("sft.learning_rate=2e-3"), mark=" of another", day=2)
    given = select(TINY, chain_store, start_from="grpo").given
    assert {name: manifest.fingerprint for name, manifest in given.items()} == {
        name: mine[name].fingerprint for name in ("model", "dataset", "sft")
    }
    # With a setting that nothing stored has, the newest is taken, and the data that it was trained on.
    given = select(configured("sft.learning_rate=3e-3"), chain_store, start_from="grpo").given
    assert given["sft"] == newer["sft"] and given["dataset"] == newer["dataset"]


def test_start_from_with_stop_after_needs_only_what_it_reads(chain_store: Store, make_chain: Any) -> None:
    made = make_chain(TINY, until="sft")
    chain_store.remove(made["model"])
    found = actions(TINY, chain_store, start_from="grpo", stop_after="grpo")
    assert found == {"dataset": "given", "sft": "given", "grpo": "run"}


def test_the_evaluation_sets_follow_the_configuration(chain_store: Store, make_chain: Any) -> None:
    """They stand before training, and no later start takes those of another configuration; none needs them in vain."""
    make_chain(TINY)
    changed = configured("evaluation.problems=10")
    for start in ("sft", "grpo", "evaluate", "evaluate_grpo"):
        found = actions(changed, chain_store, start_from=start)
        assert (found["evaluation_sets"], found["evaluate_grpo"]) == ("run", "wait")
        assert found["dataset"] == "given"
    assert "evaluation_sets" not in actions(changed, chain_store, start_from="grpo", stop_after="grpo")
    assert actions(changed, chain_store, start_from="export")["export"] == "reuse"
    with pytest.raises(ConfigError, match="add --start-from evaluate"):
        steps(changed, chain_store, resume_from="evaluation_sets:latest")


def test_start_from_nothing(chain_store: Store) -> None:
    with pytest.raises(StoreError, match="there is no artifact of sft yet"):
        select(TINY, chain_store, start_from="grpo")


def test_start_from_forgets_forced_stages_before_it(chain_store: Store, make_chain: Any) -> None:
    make_chain(TINY)
    assert select(TINY, chain_store, start_from="grpo", force=["sft", "export"]).forced == {"export"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start_from": "train"}, "there is no stage 'train'"),
        ({"stop_after": "train"}, "there is no stage 'train'"),
        ({"force": ["train"]}, "there is no stage 'train'"),
        ({"start_from": "grpo", "stop_after": "sft"}, "--stop-after sft comes before --start-from grpo"),
    ],
)
def test_stages_that_do_not_fit(chain_store: Store, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        select(TINY, chain_store, **options)
    assert caught.value.fix


# -- resume_from --------------------------------------------------------------------------------------------------


def test_resume_from_latest_is_the_newest_sft_model(chain_store: Store, make_chain: Any) -> None:
    make_chain(TINY, day=1)
    newer = make_chain(configured("sft.learning_rate=2e-3"), until="sft", day=2)
    found = steps(configured("sft.learning_rate=9e-3"), chain_store, resume_from="latest")
    assert [name for name, step in found.items() if step.action == "given"] == ["model", "dataset", "sft"]
    assert found["sft"].fingerprint == newer["sft"].fingerprint


def test_resume_from_an_artifact(chain_store: Store, make_chain: Any) -> None:
    made = make_chain(TINY)
    config = configured("sft.learning_rate=9e-3", "data.sft_rows=5")
    for reference in (
        made["grpo"].fingerprint,
        made["grpo"].fingerprint[:12],
        f"grpo/{made['grpo'].fingerprint[:12]}",
        "grpo:latest",
        chain_store.uri(made["grpo"]),
    ):
        found = actions(config, chain_store, resume_from=reference)
        assert [name for name, action in found.items() if action == "given"] == ["model", "dataset", "sft", "grpo"]
    # What does not descend from it is judged by the configuration, here against the given data.
    assert found["evaluate_grpo"] == "reuse" and found["format_gate"] == "reuse"


@pytest.mark.parametrize("reference", ["nonsense", "deadbeef", "sft/deadbeef", "nowhere/manifest.json", "gate:latest"])
def test_resume_from_something_unknown(chain_store: Store, make_chain: Any, reference: str) -> None:
    make_chain(TINY)
    with pytest.raises(StoreError) as caught:
        select(TINY, chain_store, resume_from=reference)
    assert caught.value.fix


def test_resume_from_something_damaged(chain_store: Store, make_chain: Any) -> None:
    made = make_chain(TINY)
    damage(chain_store, made["dataset"], "train.parquet")
    with pytest.raises(StoreError, match=r"dataset/[0-9a-f]{16}: the stored artifact is damaged: train\.parquet"):
        select(TINY, chain_store, resume_from="latest")


def test_damage_that_nobody_reads_does_not_matter(chain_store: Store, make_chain: Any) -> None:
    damage(chain_store, make_chain(TINY)["model"], "model/config.json")
    found = actions(TINY, chain_store, start_from="grpo", stop_after="grpo")
    assert (found["model"], found["grpo"]) == ("given", "reuse")


def record_run(store: Store, run_id: str, stages: list[dict[str, Any]]) -> None:
    made = [{"action": "made", **item} for item in stages]
    record = {
        "run_id": run_id,
        "status": "failed",
        "started_at": "2026-05-01T12:00:00+00:00",
        "config": {},
        "stages": made,
    }
    store.write_record(f"runs/{run_id}.json", record)


def test_resume_from_a_run(chain_store: Store, make_chain: Any) -> None:
    made = make_chain(TINY, day=1)
    make_chain(configured("sft.learning_rate=2e-3"), mark=" of another", day=2)
    finished = [{"stage": n, "fingerprint": made[n].fingerprint} for n in ("model", "dataset", "sft", "format_gate")]
    record_run(chain_store, "20260501-120000-abcdef", [*finished, {"stage": "grpo", "action": "failed"}])
    for reference in ("20260501-120000-abcdef", "20260501-120000"):
        given = select(configured("seed=9"), chain_store, resume_from=reference).given
        assert given == {name: made[name] for name in ("model", "dataset", "sft", "format_gate")}
    # Another GRPO from the same run's SFT model.
    whole = [{"stage": name, "fingerprint": manifest.fingerprint} for name, manifest in made.items()]
    record_run(chain_store, "20260501-130000-123456", whole)
    found = actions(configured("grpo.beta=0.04"), chain_store, resume_from="20260501-130000", start_from="grpo")
    assert found["grpo"] == "run" and found["sft"] == "given"


def test_resume_from_a_run_that_left_nothing(chain_store: Store, make_chain: Any) -> None:
    made = make_chain(TINY, until="model")["model"]
    record_run(chain_store, "20260501-120000-abcdef", [{"stage": "model", "fingerprint": made.fingerprint}])
    chain_store.remove(made)
    with pytest.raises(StoreError, match="nothing of the run 20260501-120000-abcdef is stored"):
        select(TINY, chain_store, resume_from="20260501-120000-abcdef")
    with pytest.raises(StoreError, match=r"no single run '20991231-000000'(?s:.*)20260501-120000-abcdef"):
        select(TINY, chain_store, resume_from="20991231-000000")


def test_paths_of_manifests_from_another_place(chain_store: Store, make_chain: Any, tmp_path: Path) -> None:
    """A manifest that was copied elsewhere still names its artifact."""
    made = make_chain(TINY, until="sft")["sft"]
    copy = tmp_path / "my-best.json"
    copy.write_bytes(made.to_bytes())
    assert select(TINY, chain_store, resume_from=str(copy)).given["sft"] == made
