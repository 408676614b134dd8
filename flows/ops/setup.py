"""`grpo-pipeline ops setup`: what the Prefect side needs, made once and left alone when it is there."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
from prefect.events.schemas.automations import AutomationCore
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE, update_current_profile

from flows.ops.api import pool_named
from flows.ops.automations import notifications, zombies
from tasks.errors import ConfigError
from tasks.process.gpu import visible_gpus

TEMPLATES = {"process": "process.json", "kubernetes": "kubernetes-gpu.json"}
DURABLE_LEASES = "prefect.server.concurrency.lease_storage.filesystem"


@dataclass(frozen=True)
class Step:
    """One thing that setup looked at."""

    what: str
    done: Literal["made", "changed", "unchanged", "to do"]
    detail: str


def template(kind: str) -> dict[str, Any]:
    """The base job template of a work pool of this type."""
    text = (resources.files("flows") / "ops" / "pools" / TEMPLATES[kind]).read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def set_up_pool(
    client: SyncPrefectClient,
    name: str,
    kind: str,
    slots: int | None,
    secrets: Mapping[str, str] | None = None,
    *,
    replace_template: bool = False,
) -> Step:
    """The work pool. One that is there keeps what was changed in it, but for `slots` and `secrets` if given.

    Args:
        slots: how many flow runs the pool runs at once; None: as many as there are GPUs here, at least one.
        secrets: environment variable -> Secret block. The pool holds a reference; the worker reads the block for each run.

    Raises:
        ConfigError: there is a pool of this name and another type, or no such block.
    """
    for block in (secrets or {}).values():
        _secret_block(client, block)
    references = {variable: f"{{{{ prefect.blocks.secret.{block} }}}}" for variable, block in (secrets or {}).items()}
    what, pool = f"work pool {name}", pool_named(client, name)
    if pool is None:
        limit = slots or max(1, len(visible_gpus()))
        made = _with_environment(template(kind), references)
        client.create_work_pool(WorkPoolCreate(name=name, type=kind, base_job_template=made, concurrency_limit=limit))
        return Step(what, "made", f"{kind}, {limit} flow runs at once")
    if pool.type != kind:
        raise ConfigError(
            f"the work pool is of type {pool.type}, not {kind}", where=name, fix="choose another --pool, or --type"
        )
    changes: dict[str, Any] = {}
    if slots is not None and slots != pool.concurrency_limit:
        changes["concurrency_limit"] = slots
    ours = _with_environment(template(kind), _references(pool.base_job_template))
    differs = pool.base_job_template != ours
    wanted = _with_environment(ours if replace_template else pool.base_job_template, references)
    if wanted != pool.base_job_template:
        changes["base_job_template"] = wanted
    if changes:
        client.update_work_pool(name, WorkPoolUpdate(**changes))
        return Step(what, "changed", ", ".join(changes))
    limit_shown = "no limit" if pool.concurrency_limit is None else f"{pool.concurrency_limit} flow runs at once"
    kept = "; its job template differs from ours and is kept (--replace-template)" if differs else ""
    return Step(what, "unchanged", f"{kind}, {limit_shown}{kept}")


def _secret_block(client: SyncPrefectClient, name: str) -> None:
    try:
        client.read_block_document_by_name(name, "secret", include_secrets=False)
    except ObjectNotFound:
        fix = "make it in the UI (Blocks, Secret), or with `prefect.blocks.system.Secret(value=...).save(NAME)`"
        raise ConfigError(f"there is no Secret block {name!r}", where="--secret", fix=fix) from None


def _with_environment(template: dict[str, Any], added: Mapping[str, str]) -> dict[str, Any]:
    """The template with further defaults in a run's environment."""
    made = copy.deepcopy(template)
    if added:
        variable = made["variables"]["properties"].setdefault("env", {})
        variable["default"] = {**(variable.get("default") or {}), **added}
    return made


def _references(template: Mapping[str, Any]) -> dict[str, str]:
    """The Secret blocks in the environment of a template."""
    defaults = template.get("variables", {}).get("properties", {}).get("env", {}).get("default") or {}
    return {name: text for name, text in defaults.items() if "prefect.blocks.secret." in str(text)}


def set_up_limit(client: SyncPrefectClient, name: str, slots: int) -> Step:
    """A global concurrency limit, for `run.gpu_limit`."""
    what = f"global limit {name}"
    try:
        before = client.read_global_concurrency_limit_by_name(name).limit
    except ObjectNotFound:
        before = None
    if before == slots:
        return Step(what, "unchanged", f"{slots} slots")
    client.upsert_global_concurrency_limit_by_name(name, slots)
    return Step(what, "made" if before is None else "changed", f"{slots} slots")


def set_up_automations(client: SyncPrefectClient, wanted: Iterable[AutomationCore]) -> list[Step]:
    """Automations by name. One that is there is made as it should be, but stays switched off if somebody did that."""
    steps = []
    for automation in wanted:
        found = client.read_automations_by_name(automation.name)
        if not found:
            client.create_automation(automation)
            steps.append(Step(f"automation {automation.name}", "made", automation.description))
            continue
        changed = _content(found[0]) != _content(automation)
        if changed:
            client.update_automation(found[0].id, automation.model_copy(update={"enabled": found[0].enabled}))
        for extra in found[1:]:
            client.delete_automation(extra.id)
        detail = "" if found[0].enabled else "switched off"
        steps.append(Step(f"automation {automation.name}", "changed" if changed or found[1:] else "unchanged", detail))
    return steps


def _content(automation: AutomationCore) -> dict[str, Any]:
    data = automation.model_dump(mode="json", include={"trigger", "actions", "description"})
    data["trigger"].pop("id", None)
    return {**data, "trigger": {key: sorted(v) if isinstance(v, list) else v for key, v in data["trigger"].items()}}


def notification_automations(client: SyncPrefectClient, reference: str) -> list[AutomationCore]:
    """The automations that send through the block `type/name`.

    Raises:
        ConfigError: there is no such block, or it cannot notify.
    """
    kind, slash, name = reference.partition("/")
    fix = "make one in the UI (Blocks, for example Slack Webhook or Custom Webhook), then --notify slack-webhook/NAME"
    if not slash:
        raise ConfigError(f"{reference!r} is not of the form type/name", where="--notify", fix=fix)
    try:
        block = client.read_block_document_by_name(name, kind)
    except ObjectNotFound:
        raise ConfigError(f"there is no block {reference}", where="--notify", fix=fix) from None
    if block.block_schema is None or "notify" not in block.block_schema.capabilities:
        raise ConfigError(f"the block {reference} cannot send notifications", where="--notify", fix=fix)
    return notifications(block.id)


def lease_storage(client: SyncPrefectClient) -> str:
    """The module in which the server keeps who holds which slot."""
    settings = client.request("GET", "/admin/settings").json()
    return str(settings["server"]["concurrency"]["lease_storage"])


def set_up_lease_storage(client: SyncPrefectClient) -> Step:
    """Leases that survive a restart of the server. In its memory, which is the default, a restart ends every holder.

    The server reads the setting when it starts, so on another machine it is set there.
    """
    what, now = "lease storage", lease_storage(client)
    if not now.endswith(".memory"):
        return Step(what, "unchanged", now)
    name = PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE.name
    if PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE.value() != DURABLE_LEASES:
        update_current_profile({PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE: DURABLE_LEASES})
    return Step(
        what,
        "to do",
        f"the server keeps leases in its memory. Restart it ({name} is in this machine's Prefect profile now), or, if it "
        f"runs elsewhere, set {name}={DURABLE_LEASES} there",
    )


def set_up(
    client: SyncPrefectClient,
    pool: str,
    kind: str,
    slots: int | None,
    limits: Mapping[str, int],
    notify: str | None,
    secrets: Mapping[str, str] | None = None,
    *,
    replace_template: bool = False,
) -> list[Step]:
    """Everything; doing it again changes nothing."""
    wanted = [zombies(), *(notification_automations(client, notify) if notify else ())]
    return [
        set_up_pool(client, pool, kind, slots, secrets, replace_template=replace_template),
        *(set_up_limit(client, name, number) for name, number in limits.items()),
        *set_up_automations(client, wanted),
        set_up_lease_storage(client),
    ]
