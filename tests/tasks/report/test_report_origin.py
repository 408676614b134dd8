"""The command that repeats a run: checked by giving it to the command line's own parser."""

from __future__ import annotations

import base64
import shlex

import pytest
import yaml

from artifacts.store import Store
from flows.record import RunRecord
from pipeline_config.loading import load_config
from tasks.report.build import build_report
from tasks.report.origin import changed_settings, command

TINY = load_config("tiny")


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        ([], "grpo-pipeline run -p tiny"),
        (
            ["grpo.beta=0.02", "run.home=a folder", "grpo.min_p=null", "seed=7"],
            "grpo-pipeline run -p tiny --set grpo.beta=0.02 --set 'run.home=a folder' --set seed=7",
        ),
        (["run.home='12'"], """grpo-pipeline run -p tiny --set 'run.home="12"'"""),
    ],
)
def test_the_command_gives_the_same_configuration(sets: list[str], expected: str) -> None:
    config = load_config("tiny", overrides=sets)
    text, needs_file = command({"config": config.model_dump(mode="json")})
    assert (text, needs_file) == (expected, False)
    words = shlex.split(text)[4:]
    assert load_config("tiny", overrides=[w for w in words if w != "--set"]) == config


def test_the_command_repeats_what_was_asked_for() -> None:
    record = RunRecord.start(TINY, {"start_from": "grpo", "force": ("grpo", "export"), "stop_after": None}).to_json()
    assert command(record)[0] == "grpo-pipeline run -p tiny --start-from grpo --force grpo --force export"


def test_a_configuration_far_from_every_profile_is_a_file(chain_store: Store) -> None:
    sets = [f"{key}=0.001234" for key in ("sft.weight_decay", "grpo.weight_decay", "sft.learning_rate")]
    sets += [f"grpo.{key}" for key in ("max_steps=7", "beta=0.1", "warmup_steps=3", "epsilon=0.1", "top_p=0.9")]
    sets += [
        f"sft.{key}" for key in ("max_steps=7", "warmup_steps=3", "save_steps=9", "max_grad_norm=2", "max_length=64")
    ]
    config = load_config("tiny", overrides=sets)
    record = RunRecord.start(config).to_json()
    assert command(record) == ("grpo-pipeline run -c run.yaml", True)
    html = build_report(record, chain_store)
    encoded = html.split("data:application/yaml;base64,")[1].split('"')[0]
    assert yaml.safe_load(base64.b64decode(encoded)) == config.model_dump(mode="json")


def test_settings_that_a_trainer_changed() -> None:
    changed = {"bf16": {"asked": True, "used": False}, "b": "no pair", "a": {"asked": 1}}
    assert changed_settings(changed) == [
        {"name": "a", "asked": "1", "used": "null"},
        {"name": "bf16", "asked": "true", "used": "false"},
    ]
    assert changed_settings(None) == changed_settings([]) == []
