"""What `ops check` asks the Prefect server: itself, clock, pool, workers, deployments, leases, automations, runs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

import prefect
from packaging.version import Version
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterName,
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateName,
)

from flows.ops.api import api, pool_named
from flows.ops.automations import FLOWS, ZOMBIES
from flows.ops.setup import DURABLE_LEASES, lease_storage
from tasks.errors import PipelineError
from tasks.findings import Finding
from tasks.process.secrets import hide

DEPLOYMENTS = ("full", "nightly", "from-sft", "evaluate-export")
SETUP = "grpo-pipeline ops setup"
DEPLOY = "prefect --no-prompt deploy --all"
SKEW_WARN_S, SKEW_FAIL_S = 5.0, 60.0
"""Schedules and heartbeats compare the clocks of server and worker. The server's date header has whole seconds."""
STUCK_S = 600.0
"""A run that is Pending for longer is not starting: a flow run boots in 10 to 30 s."""


def check_server(pool: str) -> list[Finding]:
    """Findings on the configured server; only the first one when it cannot be asked."""
    try:
        with api() as client:
            first = _server(client)
            checks: list[Callable[[], Finding]] = [
                lambda: _clock(client),
                lambda: _pool(client, pool),
                lambda: _worker(client, pool),
                lambda: _deployments(client),
                lambda: _leases(client),
                lambda: _zombies(client),
                lambda: _runs(client),
            ]
            return [first, *(check() for check in checks)]
    except PipelineError as error:
        where = f"{error.where}: " if error.where else ""
        return [Finding("server", "fail", f"{where}{error.message}", error.fix)]


def _server(client: SyncPrefectClient) -> Finding:
    theirs, ours = str(client.api_version()), prefect.__version__
    evidence = f"{hide(str(client.api_url), ())} answers, version {theirs}; this environment has {ours}"
    if theirs == ours:
        return Finding("server", "ok", evidence)
    newer_here = Version(theirs) < Version(ours)
    fix = "install the same version on both sides" + (", the server first" if newer_here else "")
    return Finding("server", "fail" if newer_here else "warn", evidence, fix)


def _clock(client: SyncPrefectClient) -> Finding:
    before = datetime.now(UTC)
    stated = client.request("GET", "/health").headers.get("date")
    after = datetime.now(UTC)
    if stated is None:
        return Finding("clock", "not_measured", "the server states no date")
    # The header is cut to whole seconds: its moment lies up to one second later.
    server, here = parsedate_to_datetime(stated), before + (after - before) / 2
    skew = max(abs((here - server).total_seconds() - 0.5) - 0.5, 0.0)
    evidence = f"{skew:.1f} s between this clock and the server's (to within a second)"
    if skew < SKEW_WARN_S:
        return Finding("clock", "ok", evidence)
    return Finding(
        "clock", "fail" if skew >= SKEW_FAIL_S else "warn", evidence, "let NTP set the clocks of both machines"
    )


def _pool(client: SyncPrefectClient, name: str) -> Finding:
    pool = pool_named(client, name)
    if pool is None:
        return Finding("pool", "fail", f"there is no work pool {name}", SETUP)
    evidence = f"{name}: {pool.type}, {pool.concurrency_limit or 'any number of'} flow runs at once"
    if pool.is_paused:
        return Finding("pool", "fail", f"{evidence}, paused", f"prefect work-pool resume {name}")
    if pool.concurrency_limit is None:
        return Finding("pool", "warn", evidence, f"{SETUP} --slots N, with N the number of GPUs")
    return Finding("pool", "ok", evidence)


def _worker(client: SyncPrefectClient, name: str) -> Finding:
    fix = f"prefect worker start --pool {name} --limit N, with N the number of GPUs of its host"
    if pool_named(client, name) is None:
        return Finding("worker", "not_measured", "there is no work pool to look at", SETUP)
    found = client.read_workers_for_work_pool(name)
    online = [worker for worker in found if worker.status == "ONLINE"]
    shown = [
        f"{w.name} ({w.last_heartbeat_time:%Y-%m-%d %H:%M:%S} UTC)" for w in online or found if w.last_heartbeat_time
    ]
    if online:
        return Finding("worker", "ok", f"{len(online)} online: {', '.join(shown)}")
    return Finding("worker", "fail", f"none is online; last seen: {', '.join(shown) or 'never'}", fix)


def _deployments(client: SyncPrefectClient) -> Finding:
    found = client.read_deployments(
        flow_filter=FlowFilter(name=FlowFilterName(any_=FLOWS)),
        deployment_filter=DeploymentFilter(name=DeploymentFilterName(any_=list(DEPLOYMENTS))),
    )
    missing = [name for name in DEPLOYMENTS if name not in {item.name for item in found}]
    schedules = [
        f"{item.name} is {'on' if schedule.active and not item.paused else 'off'}"
        for item in found
        for schedule in item.schedules
    ]
    evidence = f"{len(found)} of {len(DEPLOYMENTS)} deployed; schedules: {', '.join(schedules) or 'none'}"
    if missing:
        return Finding("deployments", "warn", f"{evidence}; missing: {', '.join(missing)}", DEPLOY)
    return Finding("deployments", "ok", evidence)


def _leases(client: SyncPrefectClient) -> Finding:
    now = lease_storage(client)
    if not now.endswith(".memory"):
        return Finding("leases", "ok", now)
    return Finding(
        "leases",
        "warn",
        "the server keeps in its memory who holds which slot: a restart forgets it",
        f"{SETUP}, or PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE={DURABLE_LEASES} for the server; then restart it",
    )


def _zombies(client: SyncPrefectClient) -> Finding:
    found = client.read_automations_by_name(ZOMBIES)
    if found and found[0].enabled:
        return Finding("zombies", "ok", f"the automation {ZOMBIES!r} is on")
    evidence = f"the automation {ZOMBIES!r} is {'switched off' if found else 'missing'}: a run whose machine died stays Running"
    return Finding("zombies", "warn", evidence, SETUP if not found else "switch it on in the UI, under Automations")


def _runs(client: SyncPrefectClient) -> Finding:
    """Late runs, and runs that hold a slot without starting."""

    def named(*states: str) -> list[prefect.client.schemas.FlowRun]:
        wanted = FlowRunFilter(state=FlowRunFilterState(name=FlowRunFilterStateName(any_=list(states))))
        return list(
            client.read_flow_runs(flow_filter=FlowFilter(name=FlowFilterName(any_=FLOWS)), flow_run_filter=wanted)
        )

    late, limit = named("Late"), datetime.now(UTC) - timedelta(seconds=STUCK_S)
    stuck = [run for run in named("Pending", "Submitting") if run.state and run.state.timestamp < limit]
    evidence = f"{len(late)} late, {len(stuck)} Pending for more than {STUCK_S / 60:.0f} minutes"
    if stuck:
        names = ", ".join(run.name for run in stuck[:5])
        return Finding("runs", "warn", f"{evidence}: {names}", "prefect flow-run cancel ID, and start the run again")
    if late:
        return Finding("runs", "warn", evidence, "start a worker, or cancel them; run.max_lateness_s skips old ones")
    return Finding("runs", "ok", evidence)
