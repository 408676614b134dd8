"""Commands of the model registry: `models list`, `show`, `promote`, `rollback`, `folder`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from flows.console import AsJson, Files, Profile, Sets, configured, err, opened, out, user_errors

if TYPE_CHECKING:
    from artifacts.registry import Version
    from artifacts.store import Store

models_app = typer.Typer(no_args_is_help=True, help="Trained models: what is in production, and how it came there.")
REFUSED = 26

StoreUrl = Annotated[str | None, typer.Option("--store", help="Store folder or URL; default grpo-runs/store.")]
Name = Annotated[str | None, typer.Argument(help="The model's name; not needed when there is only one.")]


@models_app.command("list")
def models_list(store: StoreUrl = None, as_json: AsJson = False) -> None:
    """List the models with their candidate and production versions."""
    with user_errors():
        from artifacts import registry

        opened_store = opened(store)
        newest = {name: registry.current(opened_store, name) for name in registry.names(opened_store)}
        if as_json:
            out.print_json(
                json.dumps([{"name": name, **event.model_dump(mode="json")} for name, event in newest.items() if event])
            )
            return
        table = Table("model", "production", "candidate", "last event (UTC)")
        for name, event in newest.items():
            if event is not None:
                last = f"{event.kind.replace('_', ' ')} {event.at:%Y-%m-%d %H:%M}"
                table.add_row(name, _short(event.production), _short(event.candidate), last)
        out.print(table)
        if not newest:
            where = escape(opened_store.url)
            err.print(f"no model was promoted yet in {where}; --store names another place", soft_wrap=True)


@models_app.command("show")
def models_show(name: Name = None, store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Show a model's pointers and its history, newest event first, with the evidence of every decision."""
    with user_errors():
        from artifacts import registry

        opened_store = opened(store)
        name = _one_name(opened_store, name)
        events = list(registry.history(opened_store, name))
        if as_json:
            out.print_json(json.dumps({"name": name, "events": [event.model_dump(mode="json") for event in events]}))
            return
        out.print(f"[bold]{name}[/]")
        out.print(f"  production  {_short(events[0].production)}")
        out.print(f"  candidate   {_short(events[0].candidate)}")
        for event in events:
            what = f"{event.at:%Y-%m-%d %H:%M} UTC  {event.kind.replace('_', ' '):<11}"
            out.print(f"{event.number:>5}  {what}  {_short(event.subject)}  by {escape(event.by)}", soft_wrap=True)
            if event.decision.get("text"):
                why = f"{event.decision['reason']}: {event.decision['text']}"
                out.print(f"       {escape(why)}", soft_wrap=True)


@models_app.command("promote")
def models_promote(
    ref: Annotated[
        str, typer.Argument(help="A run id, an export artifact, `candidate` or `latest` (export).")
    ] = "latest",
    profile: Profile = "smollm2-135m",
    sets: Sets = None,
    files: Files = None,
    name: Annotated[
        str | None, typer.Option(help="The model's name; default promotion.name, else the one of the run that made it.")
    ] = None,
    store: StoreUrl = None,
    evaluate: Annotated[
        bool, typer.Option(help="Score production again when it was evaluated under another frozen spec.")
    ] = True,
    by_hand: Annotated[str, typer.Option(help="Promote without comparing, for this reason (recorded).")] = "",
    as_json: AsJson = False,
) -> None:
    """Put a model into production if it is better by the rule `promotion.*`. Exit code 26 if it is refused."""
    with user_errors():
        config = configured(profile, files, sets)
        from tasks.promote import promote
        from tasks.promote.evaluation import evaluator
        from tasks.promote.versions import export_of, model_name, name_of_export
        from tasks.stage import Settings
        from tasks.storage import store_of

        opened_store = opened(store) if store else store_of(config)
        settings = Settings(config, opened_store, "promotion", log=_quiet if as_json else _say, warn=_say)
        decision = promote(
            opened_store,
            ref,
            config.promotion,
            name or config.promotion.name or name_of_export(export_of(opened_store, ref)[0]) or model_name(config),
            evaluate=evaluator(settings) if evaluate else None,
            by_hand=by_hand,
        )
        if as_json:
            out.print_json(json.dumps(decision.to_json()))
        else:
            colour = {"promoted": "green", "refused": "red", "unchanged": "yellow"}[decision.outcome]
            line = f"{decision.name}: [{colour}]{decision.outcome}[/] \\[{decision.reason}] {escape(decision.text)}"
            out.print(line, soft_wrap=True)
        if decision.outcome == "refused":
            raise typer.Exit(REFUSED)


@models_app.command("rollback")
def models_rollback(
    name: Name = None,
    to: Annotated[
        int | None, typer.Option(help="Event number of the promotion to go back to; default the one before.")
    ] = None,
    reason: Annotated[str, typer.Option(help="Why; recorded.")] = "",
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Put the version before production's back. The one that leaves is not promoted again by any rule."""
    with user_errors():
        from tasks.promote import rollback

        opened_store = opened(store)
        name = _one_name(opened_store, name)
        event = rollback(opened_store, name, reason, to)
        if as_json:
            out.print_json(event.model_dump_json())
        else:
            out.print(f"{name}: production is {_short(event.production)} again, {_short(event.subject)} was withdrawn")


@models_app.command("folder")
def models_folder(
    ref: Annotated[str, typer.Argument(help="`production`, `latest`, a run id, or an export artifact.")],
    out_folder: Annotated[Path, typer.Argument(help="A folder that does not exist yet.")],
    name: Annotated[str | None, typer.Option(help="The model's name on the card; default the folder's.")] = None,
    weights: Annotated[bool, typer.Option(help="Also the merged 16-bit weights and the LoRA adapter.")] = True,
    refused: Annotated[bool, typer.Option("--refused", help="Also GGUF files that failed their proof.")] = False,
    store: StoreUrl = None,
) -> None:
    """Write a folder ready to use or upload: GGUF, Modelfile, adapter, merged weights, model card."""
    with user_errors():
        from tasks.export.folder import write_folder
        from tasks.promote.versions import export_of

        opened_store = opened(store)
        export, _ = export_of(opened_store, ref)
        folder = out_folder.absolute()
        for path in write_folder(opened_store, export, folder, name or folder.name, weights=weights, refused=refused):
            out.print(f"{path.stat().st_size / 1e6:10.1f} MB  {escape(str(path))}", soft_wrap=True, highlight=False)


def _one_name(store: Store, name: str | None) -> str:
    from artifacts import registry
    from tasks.errors import ConfigError

    known = registry.names(store)
    if name is None and len(known) == 1:
        return known[0]
    if name not in known:
        raise ConfigError(
            f"there is no model {name!r}" if name else f"there are {len(known)} models",
            where=store.url,
            fix=f"name one of: {', '.join(known)}" if known else "grpo-pipeline models promote makes the first",
            cause="no_such_version",
        )
    return name


def _short(version: Version | None) -> str:
    """A version as a person names it: its export, and the run if known."""
    if version is None:
        return "-"
    return f"export/{version.export.fingerprint[:12]}" + (f" (run {version.run_id})" if version.run_id else "")


def _say(text: str) -> None:
    out.print(escape(text), soft_wrap=True)


def _quiet(text: str) -> Any:
    """Logs of a command whose output is JSON."""
