"""The command `grpo-pipeline doctor`: why does this GRPO run not learn? Any log of a trainer, or a run of ours."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.console import AsJson, Files, Profile, Sets, configured, err, user_errors
from flows.report_cli import Home, located
from tasks.errors import ConfigError, DataError

if TYPE_CHECKING:
    from tasks.diagnosis.doctor import Diagnosis
    from tasks.diagnosis.run_info import RunInfo

UNHEALTHY = 25


def doctor(
    path: Annotated[
        str,
        typer.Argument(
            help="trainer_state.json, checkpoint folder, JSONL, CSV, stdout, TensorBoard; or a run of this pipeline: "
            "its id, `latest`, HOME/RUN or its home folder."
        ),
    ],
    as_json: AsJson = False,
    html: Annotated[Path | None, typer.Option(help="Write a page with the telling curve.")] = None,
    groups: Annotated[
        Path | None, typer.Option(help="JSON lines with the rewards of single groups, beside a log.")
    ] = None,
    run_info: Annotated[
        Path | None, typer.Option(help="JSON with what is known of the run behind a log: beta, num_generations, ...")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Look again every few seconds until it fails or you stop.")
    ] = False,
    every_s: Annotated[float, typer.Option(min=0.2, help="Pause between two looks.")] = 10.0,
    home: Home = None,
    profile: Profile = "smollm2-135m",
    sets: Sets = None,
    files: Files = None,
) -> None:
    """Name the cause of a GRPO run that does not learn. Exit code 25 if the run is not healthy."""
    with user_errors():
        from tasks.diagnosis.doctor import diagnose, render_html, render_text
        from tasks.diagnosis.run_info import RunInfo
        from tasks.report.page_file import write_page

        info = _run_info(run_info) if run_info else RunInfo()
        waits = follow

        def of_log() -> Diagnosis:
            return diagnose(path, info, groups=groups)

        def of_run() -> Diagnosis:
            from tasks.diagnosis.our_runs import diagnose_run
            from tasks.report.run_files import open_run

            nonlocal waits
            run = open_run(*located(path, home, lambda: configured(profile, files, sets)))
            waits = follow and run.record.get("status") == "running"
            return diagnose_run(run)

        ours = _is_run(Path(path))
        for option, given in (("--run-info", run_info), ("--groups", groups)):
            if ours and given:
                raise ConfigError(
                    "is for a log; a run of this pipeline has its own record",
                    where=option,
                    fix=f"leave it out, or give the log instead of {path}",
                )
        for option, where_stored in (("--home", home), ("--set", sets), ("-c", files)):
            if where_stored and not ours:
                raise ConfigError(
                    "says where a run of this pipeline is stored, and a log was given",
                    where=option,
                    fix="leave it out, or give `latest` or a run's id instead of the log",
                )
        look = of_run if ours else of_log
        last: Diagnosis | None = None
        while True:
            try:
                found = look()
            except DataError as error:
                # While a run is followed, a log that has no rows yet, or is not there yet, is too early and no error.
                if not waits:
                    raise
                found = _too_early(error)
            if last is None or (found.verdict, found.headline, found.rows) != (last.verdict, last.headline, last.rows):
                if as_json:
                    print(json.dumps(found.to_json(), ensure_ascii=False), flush=True)
                elif last is not None and (found.verdict, found.conclusive) == (last.verdict, last.conclusive):
                    print(f"{found.name}: {found.headline}", flush=True)
                else:
                    print(render_text(found), flush=True)
            last = found
            if html:
                write_page(html, render_html(found, Path(path).name))
            if not waits or found.failed:
                break
            time.sleep(every_s)
        if html:
            err.print(f"page: {html}")
        if found.failed:
            raise typer.Exit(UNHEALTHY)


def _is_run(path: Path) -> bool:
    """Is a run of ours meant, by name or by its home folder? What is there as a file or another folder is a log."""
    from tasks.storage import RUN_ID

    # Unlike Path.exists it raises nothing for a name that is too long or may not be looked at.
    if os.path.exists(path):
        return os.path.isdir(path / "store")
    return path.name == "latest" or RUN_ID.fullmatch(path.name) is not None


def _too_early(error: DataError) -> Diagnosis:
    from tasks.diagnosis.doctor import Diagnosis

    headline = f"{error.where}: {error.message}; waiting" if error.where else f"{error.message}; waiting"
    return Diagnosis("healthy", headline, "Too early to tell", conclusive=False)


def _run_info(path: Path) -> RunInfo:
    from tasks.diagnosis.files import parse_json, read_text
    from tasks.diagnosis.run_info import from_mapping

    try:
        data = parse_json(read_text(path))
    except ValueError as error:
        raise DataError(f"cannot be read as JSON: {error}", where=str(path), fix="see docs/diagnosis.md") from error
    if not isinstance(data, dict):
        raise DataError("is not a JSON object", where=str(path), fix="see docs/diagnosis.md")
    try:
        return from_mapping(data, strict=True)
    except DataError as error:
        raise DataError(
            error.message, where=f"{path}, {error.where}", fix=error.fix or "see docs/diagnosis.md"
        ) from error
