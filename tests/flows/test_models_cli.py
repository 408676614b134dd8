"""`grpo-pipeline models`: what it prints, for people and for machines, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from artifacts.store import Store
from flows import cli
from pipeline_config.loading import load_config


def items(right: int) -> str:
    return "".join(json.dumps({"id": str(i), "right": i < right}) + "\n" for i in range(100))


@pytest.fixture
def chain(make_chain: Any) -> Any:
    """`chain(60, seed=1)`: a stored run whose GRPO model has 60 of 100 problems right; its export's fingerprint."""

    def make(right: int, **changes: Any) -> str:
        overrides = [f"{name.replace('__', '.')}={value}" for name, value in changes.items()]
        made = make_chain(
            load_config("tiny", overrides=overrides),
            content={
                "evaluate_grpo/items.jsonl": items(right),
                "evaluate_grpo/scores.json": '{"spec": {"greedy_digest": "spec"}}',
            },
            metrics={"export": {"f16": {"verdict": "released"}}},
            mark="\n" * right,
        )
        return str(made["export"].fingerprint)

    return make


@pytest.fixture
def call(chain_store: Store) -> Any:
    def run(*arguments: str, store: bool = True) -> Result:
        more = ["--store", chain_store.url] if store else []
        return CliRunner().invoke(cli.app, ["models", *arguments, *more], env={"NO_COLOR": "1", "TERM": "dumb"})

    return run


def test_from_nothing_to_a_rollback(chain: Any, call: Any) -> None:
    assert call("list").exit_code == 0
    first = chain(40)
    # Without a profile, too, it gets the name of what was trained.
    result = call("promote")
    assert result.exit_code == 0, result.output
    assert "tiny: promoted [above_floor]" in result.output and "40.0% on 100 problems" in result.output
    second = chain(70, grpo__learning_rate=2e-3)
    result = call("promote", second[:12], "-p", "tiny", "--json")
    decision = json.loads(result.stdout)
    assert (decision["outcome"], decision["reason"], decision["name"]) == ("promoted", "better", "tiny")
    assert decision["evidence"]["comparison"]["gained"] == 30
    third = chain(69, grpo__learning_rate=3e-3)
    result = call("promote", third[:12], "-p", "tiny")
    assert result.exit_code == 26 and "tiny: refused [not_better]" in result.output
    assert "0 gained and 1 lost of 100 problems" in result.output
    # With another rule the same model is good enough.
    relaxed = ["--set", "promotion.rule=non_inferiority", "--set", "promotion.margin=0.06"]
    assert call("promote", "candidate", "-p", "tiny", *relaxed).exit_code == 0
    result = call("rollback", "--reason", "slower")
    assert result.exit_code == 0 and f"production is export/{second[:12]} again" in result.output
    result = call("show")
    assert "rolled back" in result.output and "by_hand: slower" in result.output and "not_worse" in result.output
    shown = json.loads(call("show", "tiny", "--json").stdout)
    assert shown["events"][0]["kind"] == "rolled_back"
    (listed,) = json.loads(call("list", "--json").stdout)
    assert listed["production"]["export"]["fingerprint"] == second and listed["name"] == "tiny"
    assert f"export/{second[:12]}" in call("list").output
    assert first not in json.dumps(listed)


def test_a_folder_to_take_away(chain: Any, call: Any, tmp_path: Path) -> None:
    chain(40)
    result = call("folder", "latest", str(tmp_path / "mine"))
    assert result.exit_code == 0 and "model-f16.gguf" in result.output and "README.md" in result.output
    assert (tmp_path / "mine" / "README.md").read_text().count("# mine") == 1
    result = call("folder", "latest", str(tmp_path / "mine"))
    assert result.exit_code == 10 and "not an empty folder" in result.output.replace("\n", " ")
    result = call("folder", "grpo:latest", str(tmp_path / "other"))
    assert result.exit_code == 10 and "not an exported model" in result.output.replace("\n", " ")


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["promote", "-p", "tiny"], 13, "there is no artifact of export yet"),
        (["promote", "abcdef12", "-p", "tiny"], 13, "no artifact's fingerprint begins with"),
        (["promote", "20260101-000000-abc", "-p", "tiny"], 13, "no single run"),
        (["promote", "-p", "tiny", "--set", "promotion.alpha=2"], 10, "promotion.alpha"),
        (["promote", "-p", "tiny", "--name", "A B"], 13, "there is no artifact of export"),
        (["show"], 10, "there are 0 models"),
        (["show", "big"], 10, "there is no model 'big'"),
        (["rollback"], 10, "models promote makes the first"),
    ],
)
def test_errors(call: Any, arguments: list[str], code: int, part: str) -> None:
    result = call(*arguments)
    assert result.exit_code == code and part in result.output.replace("\n", " ")
