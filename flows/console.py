"""What the command-line modules share: consoles, common options, and errors as one message."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from pipeline_config.loading import load_config
from pipeline_config.pipeline import PipelineConfig
from tasks.errors import PipelineError

if TYPE_CHECKING:
    from artifacts.store import Store

# Before anything imports Prefect: nothing of a local run should try to reach the network.
os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
os.environ.setdefault("DO_NOT_TRACK", "1")

# No emoji: `module:x:` in a message would become one.
out = Console(emoji=False)
err = Console(stderr=True, emoji=False)

Profile = Annotated[str, typer.Option("--profile", "-p", help="A profile; `grpo-pipeline config profiles` lists them.")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", help="Change a setting, e.g. --set grpo.beta=0.02. Repeatable.")
]
Files = Annotated[
    list[Path] | None, typer.Option("--config", "-c", help="A YAML file laid over the profile. Repeatable.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


@contextmanager
def user_errors() -> Iterator[None]:
    """Print a PipelineError as one message and leave with its exit code."""
    try:
        yield
    except PipelineError as error:
        where = f"{error.where}: " if error.where else ""
        err.print(f"[bold red]error[/] \\[{escape(error.cause)}] {escape(where + error.message)}", soft_wrap=True)
        if error.fix:
            err.print(f"  [bold]what to do:[/] {escape(error.fix)}", soft_wrap=True)
        raise typer.Exit(error.exit_code) from None


def configured(profile: str, files: list[Path] | None, sets: list[str] | None) -> PipelineConfig:
    return load_config(profile, files or [], sets or [])


def opened(url: str | None, home: str = "grpo-runs") -> Store:
    """The store at a path or URL, or the one of runs in this folder."""
    from artifacts.store import open_store

    return open_store(url or str(Path(home).resolve() / "store"))
