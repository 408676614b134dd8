"""The command line `grpo-pipeline`.

Errors that the user can mend end with one message and the exit code of `docs/errors.md`; only faults of ours show a traceback.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.markup import escape
from rich.table import Table

from flows.chat_cli import chat
from flows.compare_cli import compare
from flows.console import AsJson, Files, Profile, Sets, configured, err, opened, out, user_errors
from flows.doctor_cli import doctor
from flows.inspect_cli import grade, reward_app
from flows.models_cli import models_app
from flows.ops_cli import ops_app
from flows.preflight_cli import preflight
from flows.report_cli import report
from pipeline_config.loading import profiles
from pipeline_config.pipeline import PipelineConfig

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="From a base model and maths problems to a proven reasoning model in GGUF.",
)
artifacts_app = typer.Typer(no_args_is_help=True, help="List, inspect, verify and clean the artifact store.")
config_app = typer.Typer(no_args_is_help=True, help="Show settings, their bounds, and the profiles.")
app.add_typer(artifacts_app, name="artifacts")
app.add_typer(config_app, name="config")
app.add_typer(reward_app, name="reward")
app.add_typer(models_app, name="models")
app.command()(chat)
app.add_typer(ops_app, name="ops")
app.command()(grade)
app.command()(doctor)
app.command()(preflight)
app.command()(report)
app.command()(compare)

StartFrom = Annotated[str | None, typer.Option(help="Use what is stored for every stage before this one.")]
StopAfter = Annotated[str | None, typer.Option(help="Last stage to run.")]
Force = Annotated[list[str] | None, typer.Option(help="Make this stage again although it is stored. Repeatable.")]
ResumeFrom = Annotated[
    str | None,
    typer.Option(
        help="Use this artifact (manifest path, fingerprint, stage/prefix, run id) or the `latest` SFT model as it is."
    ),
]


@app.command()
def run(
    profile: Profile = "smollm2-135m",
    sets: Sets = None,
    files: Files = None,
    start_from: StartFrom = None,
    stop_after: StopAfter = None,
    force: Force = None,
    resume_from: ResumeFrom = None,
) -> None:
    """Run the chain; stored stages are reused."""
    with user_errors():
        config = configured(profile, files, sets)
        # A selection that cannot work should not wait for Prefect to start.
        from flows.carry_out import Choice
        from flows.local import run_local
        from flows.patience import patiently
        from tasks.plan import plan as make_plan

        def look() -> Any:
            store, selection = _selection(config, start_from, stop_after, force, resume_from)
            return make_plan(config, store, selection)

        choice = Choice(start_from, stop_after, tuple(force or ()), resume_from)
        result = run_local(config, choice, patiently(look, config.run, _log), _log)
        _print_result(config, result)


@app.command()
def plan(
    profile: Profile = "smollm2-135m",
    sets: Sets = None,
    files: Files = None,
    start_from: StartFrom = None,
    stop_after: StopAfter = None,
    force: Force = None,
    resume_from: ResumeFrom = None,
    as_json: AsJson = False,
) -> None:
    """Show what `run` would do and why, without doing it."""
    with user_errors():
        config = configured(profile, files, sets)
        store, selection = _selection(config, start_from, stop_after, force, resume_from)
        from tasks.plan import plan as make_plan

        steps = make_plan(config, store, selection)
        if as_json:
            out.print_json(json.dumps([vars(step) for step in steps]))
            return
        table = Table("stage", "action", "why", "fingerprint", title=f"plan, profile {profile}")
        colour = {"reuse": "green", "given": "green", "run": "yellow", "wait": "dim"}
        for step in steps:
            name = f"[{colour[step.action]}]{step.action}[/]"
            table.add_row(step.stage, name, escape(step.reason), (step.fingerprint or "")[:16])
        out.print(table)


def _log(text: str) -> None:
    out.print(escape(text), soft_wrap=True)


def _selection(
    config: PipelineConfig,
    start_from: str | None,
    stop_after: str | None,
    force: list[str] | None,
    resume_from: str | None,
) -> tuple[Any, Any]:
    from tasks.plan import select
    from tasks.preflight.local import check_before_start
    from tasks.storage import store_of

    store = store_of(config)
    check_before_start(config, store)
    return store, select(config, store, start_from, stop_after, force or [], resume_from)


def _print_result(config: PipelineConfig, result: dict[str, Any]) -> None:
    from tasks.report.build import summary
    from tasks.storage import store_of

    store = store_of(config)
    record = store.read_record(f"runs/{result['run_id']}.json") or {}
    table = Table("stage", "", "seconds", "why", title=f"run {result['run_id']}: {record.get('status', '')}")
    for item in record.get("stages", []):
        seconds = f"{item.get('seconds', 0):.1f}"
        table.add_row(item["stage"], item["action"], seconds, escape(str(item.get("reason", ""))))
    out.print(table)
    for line in summary(record, store, config.run.language) if record else []:
        out.print(escape(line), soft_wrap=True)
    if result["report"]:
        out.print(f"report: {result['report']}", soft_wrap=True)


StoreUrl = Annotated[str | None, typer.Option("--store", help="Store folder or URL; default <run.home>/store.")]


@artifacts_app.command("ls")
def artifacts_ls(
    stage: Annotated[str | None, typer.Argument()] = None, store: StoreUrl = None, as_json: AsJson = False
) -> None:
    """List stored artifacts, newest first."""
    with user_errors():
        opened_store = opened(store)
        found = sorted(opened_store.list(stage), key=lambda m: m.finished_at, reverse=True)
        if as_json:
            out.print_json(json.dumps([m.model_dump(mode="json", exclude={"config", "terms"}) for m in found]))
            return
        table = Table("stage", "fingerprint", "finished (UTC)", "MB", "files", "took s")
        for m in found:
            finished = f"{m.finished_at:%Y-%m-%d %H:%M}"
            size = f"{m.size_bytes / 1e6:.1f}"
            table.add_row(m.stage, m.fingerprint[:16], finished, size, str(len(m.files)), f"{m.duration_s:.0f}")
        out.print(table)
        if not found:
            say_empty(opened_store.url)


@artifacts_app.command("show")
def artifacts_show(reference: str, store: StoreUrl = None) -> None:
    """Print a manifest: fingerprint prefix, stage/prefix, stage:latest, or a path."""
    with user_errors():
        opened_store = opened(store)
        manifest = opened_store.find(reference)
        out.print_json(manifest.model_dump_json())
        err.print(f"manifest: {escape(opened_store.uri(manifest))}", soft_wrap=True)


@artifacts_app.command("verify")
def artifacts_verify(reference: Annotated[str | None, typer.Argument()] = None, store: StoreUrl = None) -> None:
    """Read every file of one artifact, or of all, and compare sizes and digests. Exit code 13 if something is wrong."""
    with user_errors():
        opened_store = opened(store)
        chosen = [opened_store.find(reference)] if reference else list(opened_store.list())
        damaged = 0
        for manifest in chosen:
            problems = opened_store.verify(manifest, deep=True)
            damaged += bool(problems)
            mark = "[red]damaged[/]" if problems else "[green]ok[/]"
            out.print(f"{mark} {manifest.stage}/{manifest.fingerprint[:16]}")
            for problem in problems:
                out.print(f"   {escape(problem)}", soft_wrap=True)
        if not chosen:
            say_empty(opened_store.url)
        if damaged:
            raise typer.Exit(13)


def say_empty(url: str) -> None:
    err.print(f"nothing is stored in {escape(url)}; --store names another place", soft_wrap=True)


@artifacts_app.command("gc")
def artifacts_gc(
    keep_last: Annotated[
        int, typer.Option(min=0, help="Newest artifacts kept per stage, with all they were made from.")
    ] = 3,
    delete: Annotated[
        bool, typer.Option("--delete", help="Really delete; without it, only say what would go.")
    ] = False,
    leftover_days: Annotated[
        float,
        typer.Option(
            min=0.1, max=36_500, help="Work directories and SwanLab experiments idle for this many days go as well."
        ),
    ] = 14.0,
    home: Annotated[
        Path, typer.Option(help="run.home of the runs, for the store's default and what lies beside it.")
    ] = Path("grpo-runs"),
    store: StoreUrl = None,
) -> None:
    """Delete old artifacts, half-written ones, and what dead runs left in their home. Never what a run is working in."""
    with user_errors():
        from tasks.leftovers import clear

        home = home.expanduser()
        opened_store = opened(store, str(home))
        if next(iter(opened_store.list()), None) is None:
            say_empty(opened_store.url)
        removed = opened_store.gc(keep_last=keep_last, dry_run=not delete)
        verb = "deleted" if delete else "would delete"
        for item in removed:
            what = f"{item.kind} {item.stage}/{item.fingerprint[:16]}, {item.size_bytes / 1e6:.1f} MB: {item.reason}"
            out.print(f"{verb} {escape(what)}", soft_wrap=True)
        found = clear(home.resolve(), opened_store, timedelta(days=leftover_days), dry_run=not delete)
        for left in found:
            what = f"{left.kind} {left.path.name}, {left.size_bytes / 1e6:.1f} MB: {left.reason}"
            out.print(f"{'kept' if left.kept else verb} {escape(what)}", soft_wrap=True)
        gone = [item.size_bytes for item in removed] + [left.size_bytes for left in found if not left.kept]
        out.print(f"{len(gone)} {'deleted' if delete else 'to delete (add --delete)'}, {sum(gone) / 1e6:.1f} MB")


@config_app.command("show")
def config_show(
    profile: Profile = "smollm2-135m", sets: Sets = None, files: Files = None, as_json: AsJson = False
) -> None:
    """Print the whole configuration of a profile with your changes."""
    with user_errors():
        data = configured(profile, files, sets).model_dump(mode="json")
        if as_json:
            out.print_json(json.dumps(data))
        else:
            sys.stdout.write(yaml.safe_dump(data, sort_keys=False, allow_unicode=True))


@config_app.command("schema")
def config_schema() -> None:
    """Print the JSON schema: every key with its meaning, default and bounds."""
    out.print_json(json.dumps(PipelineConfig.model_json_schema()))


@config_app.command("profiles")
def config_profiles() -> None:
    """List the profiles."""
    table = Table("profile", "what it is for")
    for name, text in profiles().items():
        table.add_row(name, escape(text))
    out.print(table)


def main() -> None:
    """Console script."""
    app()


if __name__ == "__main__":
    main()
