"""Which settings and which files each stage depends on: the whole table of what reruns when."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from artifacts.manifest import Manifest, complete
from pipeline_config.loading import load_config
from pipeline_config.pipeline import PipelineConfig
from pipeline_config.run import RunConfig
from tasks.chain import CHAIN, SFT, names_of, stages_for
from tasks.chain import NAMES as EVERY_STAGE
from tasks.errors import ConfigError
from tasks.selection import switch
from tasks.sft_rounds import sft_round
from tasks.stage import all_terms
from tasks.terms import reward_terms

NAMES = tuple(name for name in EVERY_STAGE if name != "preflight")
"""The preflight depends on nearly everything, and nothing on it."""
EVALUATIONS = {"evaluate_base", "evaluate_sft", "evaluate_grpo"}
ALL = set(NAMES)
COMPUTING = ALL - {"model", "dataset", "evaluation_sets", "selection", "export"}
UP_TO_SELECTION = {"format_gate", "pass_rates", "grpo"}
"""Stages that sample with GRPO's settings, and GRPO."""
SELECTS = ["pass_rates.enabled=on"]


def terms_of(config: PipelineConfig, parents: dict[str, Manifest]) -> dict[str, Any]:
    return {stage.name: all_terms(stage, config, parents) for stage in stages_for(config)}


def altered(manifest: Manifest, *paths: str) -> Manifest:
    """The manifest as if these files had other contents."""
    assert set(paths) <= {entry.path for entry in manifest.files}
    files = [e.model_copy(update={"sha256": "0" * 64}) if e.path in paths else e for e in manifest.files]
    return complete(manifest, files)


@pytest.fixture
def base() -> PipelineConfig:
    return load_config("tiny", overrides=SELECTS)


@pytest.fixture
def parents(tiny_chain: dict[str, Manifest]) -> dict[str, Manifest]:
    return tiny_chain


@pytest.fixture
def reruns(base: PipelineConfig, parents: dict[str, Manifest]) -> Any:
    """Stages whose own terms change with some --set texts, their inputs being the same."""

    def find(*overrides: str, start: Iterable[str] = ()) -> set[str]:
        before = terms_of(load_config("tiny", overrides=[*SELECTS, *start]), parents)
        after = terms_of(load_config("tiny", overrides=[*SELECTS, *start, *overrides]), parents)
        return {name for name in NAMES if name in after and before[name] != after[name]}

    return find


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("seed=1", ALL),
        ("model.revision=abc", {"model"}),
        ("model.dtype=bfloat16", COMPUTING),
        ("model.max_context=300", ALL - {"model", "sft", "evaluation_sets", "selection"}),
        ("contract.system_prompt=Think.", ALL - {"model", "evaluation_sets", "selection"}),
        ("contract.answer_end=</ANSWER>", ALL - {"model", "evaluation_sets", "selection"}),
        ("data.sft_rows=10", {"dataset"}),
        ("data.seed=1", {"dataset"}),
        ("sft.learning_rate=2e-3", {"sft"}),
        ("sft.max_length=100", {"dataset", "sft"}),
        ("gate.prompts=20", {"format_gate"}),
        ("gate.early_stop=false", {"format_gate"}),
        ("grpo.learning_rate=2e-3", {"grpo"}),
        ("grpo.beta=0.04", {"grpo"}),
        ("grpo.max_steps=7", {"grpo"}),
        ("grpo.save_steps=7", {"grpo"}),  # the checkpoints to choose from
        ("grpo.checkpoint_choice.problems=20", {"grpo"}),
        ("pass_rates.samples=8", {"pass_rates"}),
        ("pass_rates.max_prompts=100", {"pass_rates"}),
        ("pass_rates.low=0.2", {"selection"}),
        ("pass_rates.high=0.8", {"selection"}),
        ("pass_rates.min_kept=100", {"selection"}),
        ("grpo.num_generations=16", {"format_gate", "selection", "grpo"}),
        ("grpo.max_refills=2", {"grpo"}),
        ("grpo.live_when=spread", {"grpo"}),
        ("grpo.eval_steps=5", {"grpo"}),
        ("grpo.remedies=suggest", {"grpo"}),
        ("grpo.remedy_bounds.max_steps=1", {"grpo"}),
        ("grpo.watchdog=warn", {"grpo"}),  # it then takes no remedy
        ("grpo.rewards.format_weight=0.1", {"format_gate", "grpo"}),
        ("grpo.temperature=0.9", {*UP_TO_SELECTION, *EVALUATIONS}),
        ("grpo.max_completion_length=60", ALL - {"model", "sft", "evaluation_sets", "selection"}),
        ("evaluation.samples=4", EVALUATIONS),
        ("evaluation.seed=4", EVALUATIONS),
        ("evaluation.overlap.ngram=5", {"evaluation_sets"}),
        ("evaluation.max_new_tokens=70", {"dataset", "export", *EVALUATIONS}),
        ("export.formats=[f16]", {"export"}),
        ("vllm.enabled=off", {*UP_TO_SELECTION, *EVALUATIONS}),
        ("parallel.processes=2", {"sft", "grpo"}),
        ("run.device=auto", COMPUTING),
    ],
)
def test_what_a_setting_reruns(reruns: Any, override: str, expected: set[str]) -> None:
    assert reruns(override) == expected


@pytest.mark.parametrize(
    "override",
    [
        "sft.logging_steps=5",
        "sft.save_steps=7",
        "sft.lora.r=8",  # `method` is full
        "grpo.logging_steps=5",
        "grpo.save_total_limit=5",
        "grpo.max_initial_kl=0.5",
        "grpo.canary_steps=5",
        "grpo.max_canary_gap=0.5",
        "grpo.eval_problems=16",  # no `eval_steps`
        "grpo.rewards.timeout_s=3",
        "grpo.rewards.max_error_rate=0.3",
        "gate.enabled=false",
        "gate.min_format_rate=0.1",
        "gate.max_truncation_rate=0.9",
        "gate.max_dead_groups=0.5",
        "gate.wanted_dead_groups=0.2",
        "gate.max_sft_rounds=0",
        "gate.sft_round_steps=7",
        "evaluation.baseline=false",
        "evaluation.batch_size=3",
        "vllm.enforce_eager=true",
        "vllm.gpu_memory_utilization=0.5",
        "vllm.sleep_mode=true",
        "parallel.strategy=ddp",
        "preflight.reward_audit=warn",
        "run.backend=trl",
        "promotion.name=nightly",
        "promotion.rule=non_inferiority",
        "promotion.eval_set=gsm8k",
        "promotion.alpha=0.01",
        "promotion.margin=0.1",
        "promotion.floor=0.5",
    ],
)
def test_what_reruns_nothing(reruns: Any, override: str) -> None:
    assert reruns(override) == set()


def test_nothing_under_run_is_a_term_but_the_device_and_the_back_end(reruns: Any) -> None:
    other: dict[str, Any] = {
        "home": "elsewhere",
        "store": "s3://bucket/x",
        "threads": 1,
        "min_free_gb": 0.5,
        "stage_timeout_s": 5,
        "stall_timeout_s": 5,
        "retries": 0,
        "retry_delay_s": 1,
        "grace_s": 2,
        "gpu_limit": "gpus",
        "tracking": "off",
        "report_to": "[tensorboard]",
        "language": "zh",
        "max_lateness_s": 9,
    }
    assert other.keys() == RunConfig.model_fields.keys() - {"device", "backend"}, "a new setting: is it a term?"
    assert reruns(*[f"run.{key}={value}" for key, value in other.items()]) == set()


def test_a_run_that_takes_no_remedy_does_not_depend_on_how_it_would(reruns: Any) -> None:
    start = ["grpo.remedies=suggest"]
    for override in ("grpo.remedies=off", "grpo.watchdog=warn", "grpo.remedy_bounds.max_steps=1"):
        assert reruns(override, start=start) == set()


def test_held_out_problems_count_where_they_are_looked_at(reruns: Any) -> None:
    assert reruns("grpo.eval_problems=16", start=["grpo.eval_steps=5"]) == {"grpo"}


def test_lora_settings_count_where_an_adapter_is_trained(reruns: Any) -> None:
    lora = ["sft.method=lora", "grpo.method=lora"]
    assert reruns("sft.lora.r=8", start=lora) == {"sft"}
    assert reruns("grpo.lora.alpha=8", start=lora) == {"grpo"}


def evaluation_terms(parents: dict[str, Manifest], *overrides: str) -> dict[str, Any]:
    """Terms of the sets' stage and of one evaluation behind it, for a configuration with one more set."""
    source = "{kind: generated, problem: sum, max_operand: 999}"
    config = load_config(
        "tiny", overrides=[f"evaluation.sets=[{{name: other, source: {source}, problems: 5}}]", *overrides]
    )
    sets = next(stage for stage in CHAIN if stage.name == "evaluation_sets")
    terms = all_terms(sets, config, parents)
    entry = parents["evaluation_sets"].files[0]
    files = ("sets/held_out.parquet", "overlap/held_out.jsonl", "sets/other.parquet", "overlap/other.jsonl")
    made = complete(
        parents["evaluation_sets"].model_copy(update={"terms": terms}),
        [entry.model_copy(update={"path": path}) for path in files],
    )
    evaluate = next(stage for stage in CHAIN if stage.name == "evaluate_sft")
    return {"evaluation_sets": terms, "evaluate": all_terms(evaluate, config, {**parents, "evaluation_sets": made})}


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("evaluation.problems=10", {"evaluation_sets", "evaluate"}),
        ("grpo.max_completion_length=60", {"evaluation_sets", "evaluate"}),
        ("model.max_context=300", {"evaluation_sets", "evaluate"}),
        ("contract.system_prompt=Think.", {"evaluation_sets", "evaluate"}),
        ("data.on_long_prompt=drop", {"evaluation_sets"}),
        ("data.sft_rows=10", set()),
        ("grpo.learning_rate=1e-6", set()),
    ],
)
def test_what_concerns_a_further_evaluation_set(
    parents: dict[str, Manifest], override: str, expected: set[str]
) -> None:
    before, after = evaluation_terms(parents), evaluation_terms(parents, override)
    changed = {name for name in before if before[name] != after[name]}
    # The number of held-out problems acts through the file that the sets' stage writes; here it stays the same.
    assert changed == (expected - {"evaluate"} if override == "evaluation.problems=10" else expected)


def test_a_further_set_is_beside_the_held_out_one(base: PipelineConfig, parents: dict[str, Manifest]) -> None:
    evaluate = next(stage for stage in CHAIN if stage.name == "evaluate_sft")
    alone = all_terms(evaluate, base, parents)
    both = evaluation_terms(parents)["evaluate"]
    assert both["sets"].keys() == {"held_out", "other"}
    assert {key: value for key, value in both.items() if key != "sets"} == {
        key: value for key, value in alone.items() if key != "sets"
    }


def test_training_does_not_read_the_evaluation_sets() -> None:
    readers = {stage.name for stage in CHAIN if "evaluation_sets" in stage.parents}
    assert readers == EVALUATIONS


def test_sets_of_another_configuration_are_not_evaluated(base: PipelineConfig, parents: dict[str, Manifest]) -> None:
    other = parents["evaluation_sets"].model_copy(update={"terms": {"sets": [{"name": "other"}], "problems": 400}})
    with pytest.raises(ConfigError, match="not those of this configuration"):
        terms_of(base, {**parents, "evaluation_sets": other})


def test_without_the_choice_of_a_checkpoint_neither_saves_nor_held_out_problems_matter(
    reruns: Any, parents: dict[str, Manifest]
) -> None:
    off = ["grpo.checkpoint_choice.enabled=false"]
    assert reruns("grpo.save_steps=7", "grpo.checkpoint_choice.samples=9", start=off) == set()
    config = load_config("tiny", overrides=off)
    before, after = (
        terms_of(config, {**parents, "dataset": dataset})
        for dataset in (parents["dataset"], altered(parents["dataset"], "gate.parquet"))
    )
    assert before["grpo"] == after["grpo"] and before["format_gate"] != after["format_gate"]


def test_what_a_further_sft_round_depends_on(base: PipelineConfig, parents: dict[str, Manifest]) -> None:
    """Its number and its steps, the model that it goes on from, the traces and how SFT trains; not how long the first SFT was."""

    def terms(config: PipelineConfig = base, number: int = 1, steps: int = 30, **changed: Manifest) -> dict[str, Any]:
        return all_terms(sft_round(number, steps), config, {**parents, **changed})

    first = terms()
    assert first["options"] == {"round": 1, "max_steps": 30}
    assert terms(load_config("tiny", overrides=["sft.max_steps=9", "sft.num_train_epochs=9"])) == first
    others = [
        terms(number=2),
        terms(steps=31),
        terms(load_config("tiny", overrides=["sft.learning_rate=2e-3"])),
        terms(load_config("tiny", overrides=["parallel.processes=2"])),
        terms(sft=altered(parents["sft"], "model/model.safetensors")),
        terms(dataset=altered(parents["dataset"], "sft.parquet")),
        all_terms(SFT, base, parents),
    ]
    assert len({str(item) for item in [first, *others]}) == 8


def test_the_sampler_does_not_matter_to_a_greedy_evaluation(reruns: Any) -> None:
    assert reruns("grpo.temperature=0.9", start=["evaluation.samples=0"]) == UP_TO_SELECTION


@pytest.mark.parametrize(
    ("stage", "path", "expected"),
    [
        ("model", "stage.log", set()),
        ("model", "model/model.safetensors", {"dataset", "sft", "evaluate_base"}),
        ("dataset", "stats.json", set()),
        ("dataset", "sft.parquet", {"sft", "format_gate", "evaluation_sets"}),
        ("dataset", "gate.parquet", {"format_gate", "grpo"}),
        ("dataset", "train.parquet", {"format_gate", "pass_rates", "selection", "evaluation_sets"}),
        ("dataset", "eval.parquet", {"evaluation_sets", "export"}),
        ("evaluation_sets", "sets.json", set()),
        ("evaluation_sets", "sets/held_out.parquet", EVALUATIONS),
        ("evaluation_sets", "overlap/held_out.jsonl", EVALUATIONS),
        ("sft", "metrics.jsonl", set()),
        ("sft", "adapter/adapter_model.safetensors", set()),
        ("sft", "model/model.safetensors", {*UP_TO_SELECTION, "evaluate_sft", "export"}),
        ("format_gate", "gate.json", set()),
        ("pass_rates", "rates.parquet", {"selection"}),
        ("pass_rates", "pass_rates.json", set()),
        ("selection", "train.parquet", {"grpo"}),
        ("selection", "selection.parquet", set()),
        ("grpo", "rollouts.jsonl", set()),
        ("grpo", "model/model.safetensors", {"evaluate_grpo", "export"}),
        ("evaluate_grpo", "items.jsonl", {"export"}),
        ("evaluate_base", "items.jsonl", set()),
    ],
)
def test_which_files_of_an_input_a_stage_depends_on(
    base: PipelineConfig, parents: dict[str, Manifest], stage: str, path: str, expected: set[str]
) -> None:
    before = terms_of(base, parents)
    after = terms_of(base, {**parents, stage: altered(parents[stage], path)})
    assert {name for name in NAMES if before[name] != after[name]} == expected


def test_a_referenced_model_counts_by_its_recorded_digests(base: PipelineConfig, parents: dict[str, Manifest]) -> None:
    entry = parents["model"].files[0]
    files = [entry.model_copy(update={"path": name}) for name in ("reference.json", "stage.log")]
    referenced = complete(parents["model"], files)
    before = terms_of(base, {**parents, "model": referenced})
    same = terms_of(base, {**parents, "model": altered(referenced, "stage.log")})
    other = terms_of(base, {**parents, "model": altered(referenced, "reference.json")})
    assert same == before
    assert {name for name in NAMES if before[name] != other[name]} == {"dataset", "sft", "evaluate_base"}


def test_a_local_model_folder_is_watched_by_size_and_time(tmp_path: Path) -> None:
    folder = tmp_path / "base"
    folder.mkdir()
    (folder / "model.safetensors").write_text("weights")
    config = load_config("tiny", overrides=[f"model.source={folder}"])

    def terms() -> dict[str, Any]:
        return all_terms(CHAIN[0], config, {})

    before = terms()
    assert terms() == before
    os.utime(folder / "model.safetensors", ns=(0, 1))
    touched = terms()
    assert touched != before
    (folder / "model.safetensors").write_text("other weights")
    assert terms() not in (before, touched)


def test_the_code_of_a_reward_is_a_term(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read, never imported, and found from the working directory as the reward's own process finds it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "team_rewards").mkdir()
    (tmp_path / "team_rewards" / "__init__.py").write_text("raise SystemExit('imported')")
    module = tmp_path / "team_rewards" / "short.py"
    module.write_text("raise SystemExit('imported')")
    config = load_config("tiny", overrides=["grpo.rewards.functions=[{path: 'team_rewards.short:reward'}]"])

    def code() -> Any:
        return reward_terms(config)["code"]["team_rewards.short:reward"]

    first = code()
    assert isinstance(first, str) and len(first) == 64
    module.write_text("def reward(completions, **kwargs): ...")
    assert code() not in (None, first)
    module.unlink()
    assert code() is None


def test_a_chat_template_counts_by_its_content(reruns: Any, tmp_path: Path) -> None:
    path = tmp_path / "template.jinja"
    path.write_text("one")
    start = [f"model.chat_template={path}"]
    assert reruns(f"model.chat_template={path}") == ALL - {"model", "evaluation_sets", "selection"}
    copy = tmp_path / "copy.jinja"
    copy.write_text("one")
    assert reruns(f"model.chat_template={copy}", start=start) == set()
    with pytest.raises(ConfigError, match=r"model\.chat_template .*missing\.jinja\): cannot be read: No such file"):
        reruns(f"model.chat_template={tmp_path / 'missing.jinja'}")


def test_stages_that_can_be_left_out() -> None:
    config = load_config("tiny", overrides=["gate.enabled=false", "evaluation.baseline=false", *SELECTS])
    assert [stage.name for stage in stages_for(config)] == [
        name for name in EVERY_STAGE if name not in ("format_gate", "evaluate_base")
    ]
    assert [stage.name for stage in stages_for(load_config("tiny", overrides=SELECTS))] == list(EVERY_STAGE)


def test_problems_are_chosen_where_sampling_is_cheap(
    monkeypatch: pytest.MonkeyPatch, parents: dict[str, Manifest], base: PipelineConfig
) -> None:
    """Off on a CPU unless asked for. GRPO then trains on the dataset's table; with the same table it is the same training."""
    tiny = load_config("tiny")
    assert [stage.name for stage in stages_for(tiny)] == [
        n for n in EVERY_STAGE if n not in ("pass_rates", "selection")
    ]
    with_gpu = tiny.model_copy(update={"run": tiny.run.model_copy(update={"device": "auto"})})
    monkeypatch.setattr(switch, "visible_gpus", lambda: [{"total": 80_000}])
    monkeypatch.setattr(switch, "find_spec", lambda name: object())
    assert switch.measures_pass_rates(with_gpu) and not switch.measures_pass_rates(tiny)
    monkeypatch.setattr(switch, "find_spec", lambda name: None)
    assert not switch.measures_pass_rates(with_gpu)
    (entry,) = [e for e in parents["dataset"].files if e.path == "train.parquet"]
    files = [entry if e.path == "train.parquet" else e for e in parents["selection"].files]
    same = {**parents, "selection": complete(parents["selection"], files)}
    assert terms_of(base, same)["grpo"] == terms_of(tiny, parents)["grpo"] != terms_of(base, parents)["grpo"]


def test_names_of_stages() -> None:
    assert names_of("grpo") == ("grpo",)
    assert names_of("evaluate") == ("evaluate_base", "evaluate_sft", "evaluate_grpo")
    with pytest.raises(ConfigError, match=r"there is no stage 'gate'(?s:.*)known: model, dataset"):
        names_of("gate")


def test_every_input_comes_before_its_stage() -> None:
    for stage in CHAIN:
        assert all(EVERY_STAGE.index(parent) < EVERY_STAGE.index(stage.name) for parent in stage.parents)
        assert "preflight" not in stage.parents
