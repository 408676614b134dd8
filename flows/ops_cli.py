"""The commands `grpo-pipeline ops setup` and `ops check`."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from typing import Annotated, Literal

import typer
from rich.markup import escape

from flows.console import AsJson, Files, Profile, Sets, configured, out, user_errors
from tasks.errors import ConfigError

ops_app = typer.Typer(no_args_is_help=True, help="Set the Prefect side up, and check it.")

NOT_READY = 27

Pool = Annotated[str, typer.Option(help="Name of the work pool; prefect.yaml deploys to `gpu`.")]


@ops_app.command("setup")
def ops_setup(
    pool: Pool = "gpu",
    kind: Annotated[Literal["process", "kubernetes"], typer.Option("--type", help="What runs the flows.")] = "process",
    slots: Annotated[
        int | None,
        typer.Option(min=1, max=10_000, help="Flow runs at once. A new pool gets the number of GPUs here, at least 1."),
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option("--gpu-limit", help="NAME=N: a global limit of N GPU stages over all hosts, for run.gpu_limit."),
    ] = None,
    notify: Annotated[
        str | None, typer.Option(help="Notification block, type/name (slack-webhook/team): what to tell, and whom.")
    ] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option(
            help="VARIABLE=BLOCK: runs get this variable from a Secret block (HF_TOKEN=hf-token). Repeatable."
        ),
    ] = None,
    replace_template: Annotated[
        bool, typer.Option("--replace-template", help="Give an existing pool our job template again.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make the work pool, limits and automations on the configured server. Run it again at any time."""
    with user_errors():
        limits = dict(_limit(text) for text in limit or ())
        secrets = dict(_secret(text) for text in secret or ())
        from flows.ops.api import api
        from flows.ops.setup import set_up

        with api() as client:
            steps = set_up(client, pool, kind, slots, limits, notify, secrets, replace_template=replace_template)
        if as_json:
            out.print_json(json.dumps([vars(step) for step in steps]))
            return
        colour = {"made": "green", "changed": "yellow", "unchanged": "dim", "to do": "bold red"}
        for step in steps:
            text = f"{step.what}: {step.detail}" if step.detail else step.what
            out.print(f"[{colour[step.done]}]{step.done:9}[/] {escape(text)}", soft_wrap=True, highlight=False)


@ops_app.command("check")
def ops_check(
    profile: Profile = "smollm2-135m",
    sets: Sets = None,
    files: Files = None,
    pool: Pool = "gpu",
    as_json: AsJson = False,
) -> None:
    """Check the Prefect server and this machine, which should be the worker's. Exit code 27 when something fails."""
    with user_errors():
        config = configured(profile, files, sets)
        from flows.ops.check_host import check_host
        from flows.ops.check_server import check_server
        from tasks.findings import counts, table

        findings = [*check_server(pool), *check_host(config)]
        number = counts(findings)
        if as_json:
            rows = [asdict(finding) for finding in findings]
            out.print_json(json.dumps({"passed": not number["fail"], "counts": number, "findings": rows}))
        else:
            out.print(table(findings, "Operations"))
        if number["fail"]:
            raise typer.Exit(NOT_READY)


def _secret(text: str) -> tuple[str, str]:
    variable, equals, block = text.partition("=")
    if not equals or not variable.isidentifier() or not re.fullmatch(r"[a-z0-9-]+", block):
        raise ConfigError(
            f"{text.partition('=')[0]!r} is not given as VARIABLE=BLOCK, with the name of a Secret block",
            where="--secret",
            fix="for example --secret HF_TOKEN=hf-token; the value itself belongs into the block",
        )
    return variable, block


def _limit(text: str) -> tuple[str, int]:
    name, equals, number = text.partition("=")
    if not name or not equals or not number.isdigit() or not 1 <= int(number) <= 10_000:
        raise ConfigError(
            f"{text!r} is not of the form NAME=N", where="--gpu-limit", fix="for example --gpu-limit gpus=4"
        )
    return name, int(number)
