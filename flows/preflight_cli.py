"""The command `grpo-pipeline preflight`: everything that can be known to fail, before a run."""

from __future__ import annotations

import json
import secrets
from typing import Annotated

import typer
from rich.markup import escape

from flows.console import AsJson, Files, Profile, Sets, configured, err, out, user_errors

Force = Annotated[
    bool, typer.Option("--force", help="Look again although a preflight of this configuration is stored.")
]


def preflight(
    profile: Profile = "smollm2-135m",
    sets: Sets = None,
    files: Files = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Check configuration, tokenizer, data, rewards, memory, disk and export before anything trains.

    Makes the model and the data set if they are not stored. The exit code is that of the first fail, 0 when there is none.
    """
    with user_errors():
        config = configured(profile, files, sets)
        from tasks.preflight import verdict
        from tasks.preflight.alone import preflight_alone

        def log(text: str) -> None:
            # What the stages print line by line is in their logs; here only which of them runs, and why.
            if " | " not in text:
                err.print(escape(text), soft_wrap=True, highlight=False)

        result = preflight_alone(config, f"preflight-{secrets.token_hex(3)}", log, force=force)
        if as_json:
            out.print_json(json.dumps(verdict.to_json(result.found, profile=profile, reused=result.reused)))
        else:
            out.print(verdict.table(result.found, f"Preflight of {escape(profile)}"))
        if result.error is not None:
            raise typer.Exit(result.error.exit_code)
