"""The command `grpo-pipeline preflight`: everything that can be known to fail, before a run."""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from flows.console import AsJson, Files, Profile, Sets, configured, err, out, user_errors

if TYPE_CHECKING:
    from pipeline_config.pipeline import PipelineConfig

Force = Annotated[
    bool, typer.Option("--force", help="Look again although a preflight of this configuration is stored.")
]


def preflight(
    profile: Profile = "smollm2-135m",
    sets: Sets = None,
    files: Files = None,
    force: Force = False,
    gpu_gib: Annotated[
        float | None,
        typer.Option("--gpu-gib", min=1.0, help="What if there were a GPU of this many GiB? Shows the memory plan."),
    ] = None,
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
        what_if = _what_if(config, result.sizes, gpu_gib) if gpu_gib else {}
        if as_json:
            out.print_json(json.dumps(verdict.to_json(result.found, profile=profile, reused=result.reused, **what_if)))
        else:
            out.print(verdict.table(result.found, f"Preflight of {escape(profile)}"))
            _print_what_if(what_if)
        if result.error is not None:
            raise typer.Exit(result.error.exit_code)


def _what_if(config: PipelineConfig, sizes: dict[str, Any] | None, gib: float) -> dict[str, Any]:
    """The memory plan on one GPU of this size; empty when the preflight did not come to know the model."""
    from tasks.preflight.memory import ModelShape, Scene, needed_on

    if sizes is None:
        err.print("the memory plan needs a model and a data set, which the preflight could not make")
        return {}
    found = needed_on(config, ModelShape(**sizes["shape"]), Scene(**sizes["scene"]), int(gib * 2**30))
    return {"gpu_gib": gib, "what_if": found}


def _print_what_if(what_if: dict[str, Any]) -> None:
    if not what_if:
        return
    found = what_if["what_if"]
    out.print(
        f"\nOn one GPU of {what_if['gpu_gib']:g} GiB ({what_if['gpu_gib'] * 2**30 / 1e9:.1f} GB), vLLM beside the trainer:"
    )
    for sentence in found["plan"]["arithmetic"]:
        out.print(f"  {sentence}", highlight=False, soft_wrap=True)
    lacks = {"memory": "it does not fit", "engine": "vLLM's share has no room for one sequence beside the weights"}
    out.print(
        f"  {lacks.get(found['limit'], 'it fits')}; longest prompt + completion: {found['longest_context']} tokens"
    )
