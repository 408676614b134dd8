"""prefect.yaml: what `prefect deploy --all` makes."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.client.schemas.schedules import CronSchedule
from prefect.flows import load_flow_from_entrypoint
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import validate

from flows.ops.automations import FLOWS
from flows.ops.check_server import DEPLOYMENTS

ROOT = Path(__file__).resolve().parents[2]
FOUND: dict[str, dict[str, Any]] = {
    item["name"]: item for item in yaml.safe_load((ROOT / "prefect.yaml").read_text(encoding="utf-8"))["deployments"]
}


def test_the_deployments_that_ops_check_looks_for() -> None:
    assert set(FOUND) == set(DEPLOYMENTS)


@pytest.mark.parametrize("name", FOUND)
def test_a_deployment_starts_with_the_parameters_it_has(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    flow = load_flow_from_entrypoint(FOUND[name]["entrypoint"])
    assert flow.name in FLOWS and FOUND[name]["work_pool"] == {"name": "gpu"}
    schema = copy.deepcopy(parameter_schema(flow).model_dump())
    validate(FOUND[name]["parameters"], schema, raise_on_error=True)
    assert set(FOUND[name]["parameters"]) <= set(schema["properties"])


def test_schedules_have_a_slug_and_a_time_zone_and_are_off() -> None:
    schedules = [(name, schedule) for name, item in FOUND.items() for schedule in item.get("schedules", [])]
    assert [name for name, _ in schedules] == ["nightly"]
    for _, schedule in schedules:
        assert schedule["slug"] and schedule["active"] is False
        CronSchedule(cron=schedule["cron"], timezone=schedule["timezone"])
