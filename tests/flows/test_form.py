"""The parameters of a deployment: what a form shows, what the server refuses, and what reaches the configuration."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import validate

from flows import pipeline
from flows.form import given_keys
from flows.pipeline import grpo_pipeline
from pipeline_config.base import Section
from pipeline_config.loading import load_config
from pipeline_config.pipeline import PipelineConfig
from pipeline_config.training import GRPOSettings

PROPERTIES = parameter_schema(grpo_pipeline).model_dump()


def refused(**parameters: Any) -> str:
    """Why the server would refuse a run with these parameters."""
    try:
        validate(parameters, copy.deepcopy(PROPERTIES), raise_on_error=True)
    except Exception as error:
        return str(error)
    return ""


def test_every_section_is_a_parameter_with_a_description() -> None:
    sections = set(PipelineConfig.model_fields) - {"promotion"}  # what a run of this flow does not do
    assert sections <= set(PROPERTIES["properties"])
    assert all(PROPERTIES["properties"][name].get("description") for name in PROPERTIES["properties"])


def properties_of(schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Every key of a section, with those of the sections inside it."""
    if "$ref" in schema:
        schema = PROPERTIES["definitions"][schema["$ref"].rsplit("/")[-1]]
    found: dict[str, dict[str, Any]] = {}
    for name, field in schema.get("properties", {}).items():
        found |= {name: field, **{f"{name}.{inner}": value for inner, value in properties_of(field).items()}}
    return found


SECTIONS = [
    name
    for name, field in PipelineConfig.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, Section) and name != "promotion"
]


@pytest.mark.parametrize("section", SECTIONS)
def test_a_form_that_opens_a_section_sends_no_value(section: str) -> None:
    """Prefect's form sends the default of a key, the first kind of an `anyOf`, and `false` for a boolean, untouched."""
    whole = next(kind for kind in PROPERTIES["properties"][section]["anyOf"] if kind.get("type") != "null")
    fields = properties_of(whole)
    assert fields
    for name, field in fields.items():
        assert "default" not in field and field.get("type") != "boolean", name
        kinds = field.get("anyOf", [])
        assert not any(kind.get("type") == "null" for kind in kinds[1:]), name


def test_the_schema_of_the_configuration_keeps_its_defaults() -> None:
    assert GRPOSettings.model_json_schema()["properties"]["beta"]["default"] == 0.0


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"grpo": {"beta": 99}}, "grpo.beta"),
        ({"grpo": {"betta": 0.1}}, "'betta' was unexpected"),
        ({"grpo": {"lora": {"rank": 3}}}, "'rank' was unexpected"),
        ({"grpo": {"loss_type": "ppo"}}, "grpo.loss_type"),
        ({"run": {"device": "tpu"}}, "run.device"),
        ({"start_from": "training"}, "start_from"),
        ({"force": ["training"]}, "force"),
        ({"profile": "tinny"}, "profile"),
        ({"data": {"train": [{"kind": "file"}]}}, "data.train"),
        ({"seed": "one"}, "seed"),
    ],
)
def test_refused_before_there_is_a_run(parameters: dict[str, Any], reason: str) -> None:
    assert reason in refused(**parameters)


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"profile": "tiny", "model": None, "grpo": {"beta": 0.02, "min_p": None, "gradient_checkpointing": None}},
        {"grpo": {"rewards": {"overlong_penalty": None, "exact_match": True}}, "data": {"max_prompt_tokens": None}},
        {"data": {"train": [{"kind": "hub", "dataset": "openai/gsm8k"}], "train_rows": "all"}},
        {"start_from": "evaluate", "force": ["sft", "evaluate_base"], "seed": 3},
    ],
)
def test_what_a_form_sends_is_taken(parameters: dict[str, Any]) -> None:
    assert refused(**parameters) == ""


def test_blank_keys_are_dropped_at_every_depth() -> None:
    sent = {
        "grpo": {"beta": 0.0, "min_p": None, "lora": {"r": None}},
        "data": None,
        "seed": 0,
        "sft": {"lora": {"r": 8}},
    }
    assert given_keys(sent) == {"grpo": {"beta": 0.0}, "seed": 0, "sft": {"lora": {"r": 8}}}


def test_only_the_given_keys_replace_the_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[PipelineConfig] = []
    monkeypatch.setattr(pipeline, "run_under_prefect", lambda config, choice: seen.append(config))
    blank: dict[str, Any] = {"num_generations": None, "lora": {"r": None}, "beta": 0.02}
    grpo_pipeline.fn(
        profile="tiny", grpo=blank, data={"train_rows": 300}, seed=5, overrides=["grpo.epsilon=0.3", "grpo.min_p=null"]
    )
    expected = ["grpo.beta=0.02", "data.train_rows=300", "seed=5", "grpo.epsilon=0.3"]
    assert seen == [load_config("tiny", overrides=expected)]
