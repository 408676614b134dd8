"""The command `grpo-pipeline report`: the page of a run, also of one that is still going on or was killed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from flows.console import Files, Profile, Sets, configured, out, user_errors
from pipeline_config.pipeline import PipelineConfig

Language = Annotated[
    Literal["en", "zh"] | None, typer.Option("--lang", help="Language of the page; default: the run's own.")
]
Home = Annotated[Path | None, typer.Option("--home", help="Home folder of the run; default: run.home.")]
RUN_HELP = "A run id, the beginning of one, `latest`, or HOME/RUN for a run below another home folder."


def report(
    run: Annotated[str, typer.Argument(help=RUN_HELP)] = "latest",
    language: Language = None,
    home: Home = None,
    profile: Profile = "smollm2-135m",
    sets: Sets = None,
    files: Files = None,
) -> None:
    """Write the report of a run again and print its path."""
    with user_errors():
        from flows.report import write_report

        record, store, folder = located(run, home, lambda: configured(profile, files, sets))
        out.print(str(write_report(record, store, folder, language)), soft_wrap=True)


def located(reference: str, home: Path | None, config: Any) -> tuple[dict[str, Any], Any, Path]:
    """The record, store and home folder of the run that a user means.

    Args:
        reference: what `RUN_HELP` says.
        home: of the run, when it was given.
        config: called for the configuration that names the home and the store, when nothing else does.

    Raises:
        StoreError: there is no such run, or several.
    """
    from artifacts.store import open_store
    from tasks.storage import find_run, store_of

    path = Path(reference).expanduser()
    home = home and home.expanduser()
    places = [(path, "latest"), (path.parent, path.name)] if len(path.parts) > 1 or path.is_dir() else []
    for folder, name in places:
        if (folder / "store").is_dir():
            store = open_store(str((folder / "store").resolve()))
            return find_run(store, name), store, folder.resolve()
    if home is not None:
        store = open_store(str((home / "store").resolve()))
        return find_run(store, reference), store, home.resolve()
    settings: PipelineConfig = config()
    store = store_of(settings)
    return find_run(store, reference), store, Path(settings.run.home).resolve()
