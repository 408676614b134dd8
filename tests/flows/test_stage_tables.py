"""Stages that measure show their numbers as a table in Prefect; a server that does not answer costs a warning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from artifacts.manifest import Manifest
from artifacts.store import Store
from flows import stage_task
from pipeline_config.loading import load_config
from tasks.chain import stages_for
from tasks.stage import Settings, Stage

CONFIG = load_config("tiny", overrides=["pass_rates.enabled=on", "gate.max_dead_groups=0.2"])
GATE: dict[str, Any] = {
    "prompts": 12, "group_size": 8, "completions": 96, "format_rate": 0.99, "format_rate_low": 0.95, "format_rate_high": 1.0,
    "truncation_rate": 0.0, "truncation_rate_low": 0.0, "truncation_rate_high": 0.04, "pass_at_1": 0.2, "pass_at_1_low": 0.1,
    "pass_at_1_high": 0.3, "pass_at_group": 0.7, "dead_groups": 0.3, "dead_all_right": 0.0, "dead_all_wrong": 0.3,
    "kinds": {"right": 19, "wrong": 77}, "forecast": {"8": {"dead": 0.3, "method": "subsets"}}, "components": {}, "tags": {},
}  # fmt: skip
SELECTION: dict[str, Any] = {
    "prompts": 10, "measured": 8, "samples": 1, "kept": 5, "reasons": {"in_band": 5, "too_hard": 3, "not_measured": 2},
    "band_used": [0.1, 0.9], "widened": False, "prompts_by_right_before": [3, 5], "prompts_by_right_after": [0, 5], "group_size": 8,
    "dead_groups_before": 0.6, "dead_groups_after": 0.2,
}  # fmt: skip


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(stage_task, "create_table_artifact", lambda **call: calls.append(call))
    return calls


@pytest.fixture
def made(make_chain: Any) -> dict[str, Manifest]:
    found: dict[str, Manifest] = make_chain(
        CONFIG, metrics={"format_gate": GATE, "selection": SELECTION}, until="selection"
    )
    return found


def show(name: str, made: dict[str, Manifest], store: Store, warn: Any = print) -> None:
    stage: Stage = next(stage for stage in stages_for(CONFIG) if stage.name == name)
    stage_task._show_table(stage, Settings(CONFIG, store, "run", warn=warn), made[name])


def test_tables_of_gate_and_selection(
    shown: list[dict[str, Any]], made: dict[str, Manifest], chain_store: Store
) -> None:
    for name in ("sft", "format_gate", "selection"):
        show(name, made, chain_store)
    assert [call["key"] for call in shown] == ["format-gate", "selection"]
    assert shown[0]["description"] == f"format_gate {made['format_gate'].fingerprint[:16]}: data_too_hard"
    assert shown[1]["description"].endswith(": 5 prompts kept")
    assert {"what": "pass@1", "value": "20.0%", "95 % interval": "10.0% to 30.0%", "needed": ""} in shown[0]["table"]
    assert json.loads(json.dumps(shown[1]["table"])) == shown[1]["table"]


def test_a_server_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, made: dict[str, Manifest], chain_store: Store, tmp_path: Path
) -> None:
    def gone(**_: Any) -> None:
        raise httpx.ConnectError("no route")

    monkeypatch.setattr(stage_task, "create_table_artifact", gone)
    said: list[str] = []
    show("format_gate", made, chain_store, said.append)
    assert said == ["format_gate: its table cannot be shown in Prefect: ConnectError"]
