"""The data section: what is accepted, what is refused and how the message names it, and what is built in."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pipeline_config.data import DataConfig
from pipeline_config.sources import (
    KNOWN_DATASETS,
    ArithmeticSource,
    FileSource,
    HubSource,
    LegsSource,
    SumSource,
    WordSource,
    columns_of,
    has_working,
    layout_of,
)

ROOT = Path(__file__).resolve().parents[2]


def test_defaults_need_no_network_and_no_file() -> None:
    data = DataConfig()
    assert data.train == data.sft_sources == data.eval_sources == (SumSource(),)


def test_every_kind_of_source() -> None:
    data = DataConfig.model_validate(
        {
            "train": [
                {"kind": "generated", "problem": "sum", "max_operand": 9},
                {"kind": "generated", "problem": "arithmetic", "operations": ["+", "-"]},
                {"kind": "generated", "problem": "word", "share": 2},
                {"kind": "generated", "problem": "legs"},
                {"kind": "file", "url": "s3://bucket/a.jsonl.gz", "layout": "gsm8k"},
                {"kind": "hub", "dataset": "openai/gsm8k"},
            ]
        }
    )
    assert [type(source) for source in data.train] == [
        SumSource,
        ArithmeticSource,
        WordSource,
        LegsSource,
        FileSource,
        HubSource,
    ]
    assert DataConfig.model_validate_json(data.model_dump_json()) == data


@pytest.mark.parametrize(
    ("settings", "where", "message"),
    [
        ({"train": [{"kind": "generated", "problem": "legs", "max_operand": 9}]}, "max_operand", "Extra inputs"),
        ({"train": [{"kind": "generated", "problem": "sums"}]}, "train.0", "does not match any of the expected tags"),
        ({"train": [{"kind": "files"}]}, "train.0", "does not match any of the expected tags"),
        ({"train": [{"problem": "sum"}]}, "train.0", "Unable to extract tag"),
        ({"train": []}, "", "train needs at least one source"),
        ({"train_row": 5}, "train_row", "Extra inputs"),
        ({"train_rows": 0}, "train_rows", "greater than or equal to 1"),
        ({"train_rows": "everything"}, "train_rows", "'all'"),
        ({"gate_rows": "all"}, "gate_rows", "valid integer"),
        ({"eval_rows": "all"}, "", "eval_rows is `all`, but train[0] (used for eval, which is empty) is a generator"),
        ({"holdout_share": 1.0}, "holdout_share", "less than 1"),
        ({"prompt_quantile": 0}, "prompt_quantile", "greater than 0"),
        ({"prompt_quantile": float("nan")}, "prompt_quantile", "finite number"),
        ({"seed": -1}, "seed", "greater than or equal to 0"),
        (
            {"train": [{"kind": "generated", "problem": "sum", "min_terms": 4, "max_terms": 3}]},
            "train.0",
            "min_terms (4) is above max_terms (3)",
        ),
        (
            {"train": [{"kind": "generated", "problem": "sum", "min_operand": 100}]},
            "train.0",
            "min_operand (100) is above max_operand (99)",
        ),
        (
            {"train": [{"kind": "generated", "problem": "arithmetic", "operations": ["+", "+"]}]},
            "train.0",
            "operations must name at least one, and none twice: +, +",
        ),
        (
            {"train": [{"kind": "generated", "problem": "arithmetic", "operations": ["%"]}]},
            "operations.0",
            "Input should be",
        ),
        ({"train": [{"kind": "hub", "dataset": "me/mine"}]}, "train.0", "the columns of me/mine are not known"),
        (
            {"train": [{"kind": "hub", "dataset": "openai/gsm8k", "layout": "gsm8k", "columns": {}}]},
            "train.0",
            "`columns` has no effect with the layout 'gsm8k'",
        ),
        ({"train": [{"kind": "file", "url": "a.jsonl"}]}, "", "train[0] (used for sft, which is empty) has no worked"),
        ({"sft": [{"kind": "file", "url": "a.jsonl"}]}, "", "sft[0] has no worked solutions"),
        (
            {"train": [{"kind": "hub", "dataset": "open-r1/DAPO-Math-17k-Processed"}]},
            "",
            "train[0] (used for sft, which is empty) has no worked solutions",
        ),
        ({"train": [{"kind": "file", "url": ""}]}, "url", "at least 1 character"),
        ({"train": [{"kind": "file", "url": "a", "columns": {"question": ""}}]}, "question", "at least 1 character"),
        ({"train": [{"kind": "file", "url": "a", "share": 0}]}, "share", "greater than 0"),
    ],
)
def test_refused(settings: dict[str, Any], where: str, message: str) -> None:
    with pytest.raises(ValidationError) as error:
        DataConfig.model_validate(settings)
    faults = [(".".join(map(str, fault["loc"])), fault["msg"]) for fault in error.value.errors()]
    assert any(where in path and message in text for path, text in faults), faults


def test_a_fault_inside_a_source_is_reported_once() -> None:
    with pytest.raises(ValidationError) as error:
        DataConfig.model_validate({"train": [{"kind": "generated", "problem": "sum", "max_operands": 9}]})
    assert error.value.error_count() == 1


def test_known_hub_sets() -> None:
    gsm8k = HubSource(dataset="openai/gsm8k", split="test")
    assert (layout_of(gsm8k), gsm8k.effective_config, gsm8k.effective_split) == ("gsm8k", "main", "test")
    mini = HubSource(dataset="unsloth/OpenMathReasoning-mini")
    assert (layout_of(mini), mini.effective_config, mini.effective_split) == ("openmath", None, "cot")
    dapo = HubSource(dataset="open-r1/DAPO-Math-17k-Processed")
    assert (layout_of(dapo), dapo.effective_config, has_working(dapo)) == ("dapo", "en", False)
    own = HubSource(dataset="openai/gsm8k", columns={"question": "question"})  # type: ignore[arg-type]
    assert (layout_of(own), columns_of(own).answer) == ("columns", "answer")
    for name in KNOWN_DATASETS:
        assert HubSource(dataset=name).dataset == name


def test_every_setting_is_documented() -> None:
    schema = DataConfig.model_json_schema()
    for name, part in {"DataConfig": schema, **schema["$defs"]}.items():
        assert part.get("description"), name
        for key, field in part["properties"].items():
            assert field.get("description"), f"{name}.{key}"


def test_every_number_has_bounds() -> None:
    def numbers(field: dict[str, Any]) -> list[dict[str, Any]]:
        options = [field, *field.get("anyOf", [])]
        return [option for option in options if option.get("type") in ("integer", "number")]

    schema = DataConfig.model_json_schema()
    for name, part in {"DataConfig": schema, **schema["$defs"]}.items():
        for key, field in part["properties"].items():
            for number in numbers(field):
                assert {"minimum", "exclusiveMinimum"} & set(number), f"{name}.{key}"
                assert {"maximum", "exclusiveMaximum"} & set(number), f"{name}.{key}"


def test_it_is_frozen_and_hashable() -> None:
    data = DataConfig()
    with pytest.raises(ValidationError):
        data.seed = 3  # type: ignore[misc]
    assert hash(data.train) == hash(DataConfig().train)


def test_nothing_heavy_is_imported() -> None:
    program = (
        "import json, sys\n"
        "import pipeline_config.data, tasks.dataset.identity, tasks.dataset.build, tasks.dataset.ruler\n"
        "print(json.dumps([m for m in ('torch', 'transformers', 'datasets', 'trl') if m in sys.modules]))\n"
    )
    output = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, check=True, text=True
    ).stdout
    assert json.loads(output) == []


def test_a_window_is_filled_into_training_sources() -> None:
    source = {"kind": "file", "url": "d/{window}.jsonl", "columns": {"working": "w"}}
    hub = {"kind": "hub", "dataset": "openai/gsm8k", "revision": "v{window}", "split": "train[:{window}]"}
    data = DataConfig.model_validate({"window": 7, "train": [source], "sft": [hub]})
    assert [item.url for item in data.train if isinstance(item, FileSource)] == ["d/7.jsonl"]
    assert [(s.revision, s.split) for s in data.sft if isinstance(s, HubSource)] == [("v7", "train[:7]")]
    assert DataConfig.model_validate(data.model_dump(mode="json")) == data


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"window": None}, r"train\[0\].url holds \{window\}: give data.window"),
        ({"window": "../secrets"}, "should match pattern"),
        ({"eval": [{"kind": "file", "url": "{window}"}]}, "the evaluation must not move"),
    ],
)
def test_a_window_that_cannot_be(changed: dict[str, Any], message: str) -> None:
    source = {"kind": "file", "url": "d/{window}.jsonl", "columns": {"working": "w"}}
    with pytest.raises(ValidationError, match=message):
        DataConfig.model_validate({"window": "monday", "train": [source], **changed})
