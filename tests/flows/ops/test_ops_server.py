"""`ops setup`, `ops check` and notifications against a real server that asks for authentication."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prefect import flow
from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.blocks.system import Secret
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolUpdate
from prefect.client.schemas.objects import StateType
from prefect.context import FlowRunContext
from prefect.events.schemas.automations import AutomationCore
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, PREFECT_HOME, temporary_settings
from prefect.states import State
from prefect.workers.process import ProcessJobConfiguration
from typer.testing import CliRunner

from flows import cli
from flows.cancel import cancellable
from flows.limits import global_slots
from flows.notify import announce, announced
from flows.ops.setup import DURABLE_LEASES, template
from tasks.errors import ConfigError, DataError, GateRefused, Interrupted, NonFinite

pytestmark = pytest.mark.usefixtures("server")


@pytest.fixture
def client() -> Iterator[SyncPrefectClient]:
    with get_client(sync_client=True) as made:
        yield made


def call(*arguments: str) -> Any:
    """What a command prints as JSON, or its message and exit code."""
    result = CliRunner().invoke(cli.app, ["ops", *arguments, "--json"], env={"NO_COLOR": "1"})
    try:
        return json.loads(result.stdout)
    except ValueError:
        return f"{result.exit_code}: {result.output}"


def done(steps: list[dict[str, str]]) -> dict[str, str]:
    return {step["what"]: step["done"] for step in steps}


def found(**changed: str) -> dict[str, dict[str, str]]:
    """Findings of `ops check` by name."""
    overrides = [text for key, value in changed.items() for text in ("--set", f"{key.replace('__', '.')}={value}")]
    return {row["name"]: row for row in call("check", "-p", "tiny", "--pool", "p1", *overrides)["findings"]}


def test_setup_makes_what_is_missing_and_then_nothing(client: SyncPrefectClient) -> None:
    options = ["setup", "--pool", "p1", "--slots", "2", "--gpu-limit", "gpus=4"]
    first = done(call(*options))
    assert first == {
        "work pool p1": "made",
        "global limit gpus": "made",
        "automation grpo-pipeline: no heartbeat": "made",
        "lease storage": "to do",
    }
    assert DURABLE_LEASES in (PREFECT_HOME.value() / "profiles.toml").read_text()
    again = done(call(*options))
    assert {step for what, step in again.items() if what != "lease storage"} == {"unchanged"}
    assert client.read_work_pool("p1").concurrency_limit == 2
    assert client.read_global_concurrency_limit_by_name("gpus").limit == 4
    changed = done(call("setup", "--pool", "p1", "--slots", "3", "--gpu-limit", "gpus=5"))
    assert changed["work pool p1"] == changed["global limit gpus"] == "changed"
    assert done(call("setup", "--pool", "p1"))["work pool p1"] == "unchanged"
    assert client.read_work_pool("p1").concurrency_limit == 3


def test_the_server_takes_the_kubernetes_template(client: SyncPrefectClient) -> None:
    assert done(call("setup", "--pool", "k1", "--type", "kubernetes"))["work pool k1"] == "made"
    assert client.read_work_pool("k1").base_job_template == template("kubernetes")


def test_an_automation_that_was_changed_is_mended_and_stays_switched_off(client: SyncPrefectClient) -> None:
    call("setup", "--pool", "p1")
    name = "grpo-pipeline: no heartbeat"
    (before,) = client.read_automations_by_name(name)
    mine = AutomationCore(
        **{**before.model_dump(include={"name", "trigger", "actions"}), "description": "mine", "enabled": False}
    )
    client.update_automation(before.id, mine)
    assert done(call("setup", "--pool", "p1"))[f"automation {name}"] == "changed"
    (after,) = client.read_automations_by_name(name)
    assert after.description == before.description and not after.enabled
    assert found()["zombies"]["status"] == "warn"
    client.resume_automation(after.id)
    assert found()["zombies"]["status"] == "ok"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--pool", "p1", "--type", "kubernetes"], "the work pool is of type process, not kubernetes"),
        (["--notify", "team"], "'team' is not of the form type/name"),
        (["--notify", "custom-webhook/nobody"], "there is no block custom-webhook/nobody"),
        (["--notify", "secret/key"], "the block secret/key cannot send notifications"),
        (["--gpu-limit", "gpus"], "'gpus' is not of the form NAME=N"),
        (["--secret", "HF_TOKEN=none"], "there is no Secret block 'none'"),
        (["--secret", "HF_TOKEN=hf_Abc123"], "'HF_TOKEN' is not given as VARIABLE=BLOCK"),
    ],
)
def test_setup_that_cannot_be(options: list[str], message: str) -> None:
    call("setup", "--pool", "p1")
    Secret(value="hush").save("key", overwrite=True)
    answer = call("setup", *options)
    assert answer.startswith("10: ") and message in " ".join(answer.split())


def test_a_pool_refers_to_secret_blocks_and_keeps_what_was_changed_in_it(client: SyncPrefectClient) -> None:
    Secret(value="hf_sentinel").save("hf-token", overwrite=True)
    call("setup", "--pool", "p2", "--secret", "HF_TOKEN=hf-token")
    pool = client.read_work_pool("p2")
    environment = pool.base_job_template["variables"]["properties"]["env"]["default"]
    reference = "{{ prefect.blocks.secret.hf-token }}"
    assert environment == {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30", "HF_TOKEN": reference}
    values = asyncio.run(ProcessJobConfiguration.from_template_and_values(pool.base_job_template, {}))
    assert values.env["HF_TOKEN"] == "hf_sentinel" and "hf_sentinel" not in pool.model_dump_json()
    assert call("setup", "--pool", "p2")[0] == {
        "what": "work pool p2",
        "done": "unchanged",
        "detail": "process, 1 flow runs at once",
    }
    mine = copy.deepcopy(pool.base_job_template)
    mine["variables"]["properties"]["stream_output"]["default"] = True
    client.update_work_pool("p2", WorkPoolUpdate(base_job_template=mine))
    assert "its job template differs from ours and is kept" in call("setup", "--pool", "p2")[0]["detail"]
    assert call("setup", "--pool", "p2", "--replace-template")[0]["done"] == "changed"
    assert client.read_work_pool("p2").base_job_template == pool.base_job_template


def test_check_names_what_is_missing(tmp_path: Path) -> None:
    call("setup", "--pool", "p1")
    rows = found(run__home=str(tmp_path))
    status = {name: row["status"] for name, row in rows.items()}
    assert status == {
        "server": "ok",
        "clock": "ok",
        "pool": "ok",
        "worker": "fail",
        "deployments": "warn",
        "leases": "warn",
        "zombies": "ok",
        "runs": "ok",
        "store": "ok",
        "disk": "ok",
        "gpu": "ok",
        "hub": "ok",
    }
    assert rows["worker"]["fix"].startswith("prefect worker start --pool p1")
    answer = call("check", "-p", "tiny", "--pool", "nowhere", "--set", f"run.home={tmp_path}")
    rows = {row["name"]: row for row in answer["findings"]}
    assert rows["pool"]["status"] == "fail" and rows["worker"]["status"] == "not_measured" and not answer["passed"]


@pytest.mark.parametrize(
    ("setting", "evidence"),
    [
        ({PREFECT_API_AUTH_STRING: "admin:wrong"}, "the Prefect server refuses us (HTTP 401)"),
        ({PREFECT_API_URL: "http://127.0.0.1:9/api"}, "the Prefect server does not answer"),
        ({PREFECT_API_URL: None}, "no Prefect server is configured"),
    ],
)
def test_a_server_that_cannot_be_asked(setting: dict[Any, Any], evidence: str, tmp_path: Path) -> None:
    with temporary_settings(setting):
        rows = found(run__home=str(tmp_path))
    assert rows["server"]["status"] == "fail" and evidence in rows["server"]["evidence"] and rows["server"]["fix"]
    assert {"server", "store", "disk", "gpu", "hub"} == rows.keys()


def test_what_happened_reaches_the_team(hook: Any) -> None:
    """Flow run -> event -> automation -> block -> a receiver; one message each, with the cause in it."""
    block = CustomWebhookNotificationBlock(
        name="team", url=hook.url, json_data={"title": "{{subject}}", "text": "{{body}}"}
    )
    block.save("team", overwrite=True)
    steps = done(call("setup", "--pool", "p1", "--notify", "custom-webhook/team"))
    assert [what for what, step in steps.items() if step == "made" and "notify" in what] == [
        f"automation grpo-pipeline: notify {kind}"
        for kind in ("gate-refused", "stopped", "failed", "promoted", "not-promoted", "crashed")
    ]
    errors: dict[str, BaseException] = {
        "gate": GateRefused("6% of groups are all wrong", where="format_gate", fix="easier problems", cause="too_hard"),
        "stop": NonFinite("the loss is NaN at step 7", where="grpo", cause="nan_loss"),
        "data": DataError("there is no such file", where="/data/x.jsonl"),
        "ours": ZeroDivisionError("division by zero"),
        "asked": Interrupted("asked to stop"),
    }

    @flow(name="grpo-pipeline", flow_run_name="{which}")
    def ends(which: str) -> None:
        with announced():
            raise errors[which]

    @flow(name="grpo-nightly", flow_run_name="night")
    def promotes() -> None:
        announce("promoted", "strict accuracy 61.0% against 52.5%, p = 0.003", run="20261130-030000-abcdef")

    for which, error in errors.items():
        with pytest.raises(type(error)):
            ends(which)
    promotes()
    assert hook.wait("too_hard") == {
        "title": "The format gate refused GRPO: gate",
        "text": "6% of groups are all wrong\ncause: too_hard\nwhere: format_gate\nwhat to do: easier problems",
    }
    stopped = hook.wait("nan_loss")
    assert stopped["title"] == "Training stopped itself: stop" and "the loss is NaN at step 7" in stopped["text"]
    assert hook.wait("/data/x.jsonl")["title"] == "The run failed: data"
    assert "cause: ZeroDivisionError" in hook.wait("division by zero")["text"]
    promoted = hook.wait("p = 0.003")
    assert promoted["title"] == "A new model is in production: night" and "20261130-030000" in promoted["text"]
    time.sleep(1)
    assert len(hook.received) == 5


def test_a_run_without_a_worker_sees_that_it_is_cancelled(client: SyncPrefectClient) -> None:
    """Prefect's own `flow-run cancel` only sets the state; a worker, if there is one, does the rest."""
    seen: list[str] = []

    @flow(name="grpo-pipeline")
    def waits() -> Any:
        run = FlowRunContext.get()
        assert run is not None and run.flow_run is not None

        def work() -> None:
            client.set_flow_run_state(run.flow_run.id, State(type=StateType.CANCELLING))
            try:
                time.sleep(30)
            finally:
                seen.append("cleared up")

        return cancellable(work, every_s=0.2, patience=2)

    began = time.monotonic()
    state = waits(return_state=True)
    assert state.is_cancelled() and "saw it itself" in (state.message or "")
    assert seen == ["cleared up"] and time.monotonic() - began < 20


def test_a_run_that_its_worker_cancels_ends_as_cancelled_by_itself(client: SyncPrefectClient) -> None:
    @flow(name="grpo-pipeline")
    def waits() -> Any:
        run = FlowRunContext.get()
        assert run is not None and run.flow_run is not None

        def work() -> None:
            client.set_flow_run_state(run.flow_run.id, State(type=StateType.CANCELLING))
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(30)

        return cancellable(work, every_s=60)

    state = waits(return_state=True)
    assert state.is_cancelled() and "the next run goes on" in (state.message or "")


@pytest.mark.parametrize(
    ("error", "message"), [(None, "all was done"), (ConfigError("no such key"), "had failed: ConfigError: no such key")]
)
def test_a_run_that_ends_just_as_it_is_cancelled_does_not_stay_cancelling(
    client: SyncPrefectClient, error: Exception | None, message: str
) -> None:
    @flow(name="grpo-pipeline")
    def ends() -> Any:
        run = FlowRunContext.get()
        assert run is not None and run.flow_run is not None
        flow_run = run.flow_run.id

        def work() -> None:
            client.set_flow_run_state(flow_run, State(type=StateType.CANCELLING))
            if error:
                raise error

        return cancellable(work, every_s=60)

    state = ends(return_state=True)
    assert state.is_cancelled() and message in (state.message or "")


def test_work_that_ends_is_returned_and_no_thread_is_left() -> None:
    @flow(name="grpo-pipeline")
    def works() -> Any:
        return cancellable(lambda: "done", every_s=0.1)

    assert works() == "done"
    time.sleep(0.3)
    assert not [thread for thread in threading.enumerate() if thread.name == "cancellation"]


def test_a_global_limit(client: SyncPrefectClient) -> None:
    call("setup", "--pool", "p1", "--gpu-limit", "two=2")
    said: list[str] = []

    def slot(name: str | None, count: int = 1) -> Any:
        config = SimpleNamespace(run=SimpleNamespace(gpu_limit=name))
        settings: Any = SimpleNamespace(config=config, log=said.append, warn=said.append)
        stage: Any = SimpleNamespace(name="grpo")
        return global_slots(stage, settings, count)

    def taken() -> int:
        return int(client.read_global_concurrency_limit_by_name("two").active_slots)

    with ExitStack() as stack:
        stack.enter_context(slot("two"))
        stack.enter_context(slot("two"))
        assert taken() == 2
    assert taken() == 0 and said[1] == "grpo: holds 1 of two"
    with slot("two", 2):
        assert taken() == 2
    with slot(None), slot("two", 0):
        assert taken() == 0
    with pytest.raises(ConfigError, match="no global limit 'three'"), slot("three"):
        pass
    with pytest.raises(ZeroDivisionError), slot("two"):
        raise ZeroDivisionError
    assert taken() == 0
