"""What an experiment in SwanLab is called, where it goes, and whether SwanLab can work here at all."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.metadata
import json
import os
import re
import secrets
import shutil
from pathlib import Path
from typing import Any

from tasks.process.context import StageContext
from tasks.process.secrets import mask_secrets

REACH_S = 3.0
"""How long the service may take to answer before a run is kept offline."""
ID_FILE = "swanlab_id"
WHOLE = "metrics.jsonl is whole"
MAX_LINE = 1000


def say(text: str) -> None:
    """One line in the stage's log. Not `ctx.log`, which raises once the stage is asked to stop."""
    with contextlib.suppress(OSError, ValueError):
        print(f"tracking: {mask_secrets(' '.join(text.split()), os.environ)[:MAX_LINE]}", flush=True)


class Notices:
    """Where SwanLab's own messages go: the first warning or error is repeated in the log, the rest is dropped."""

    def __init__(self) -> None:
        self.problems = 0

    def write(self, text: str) -> int:
        """Called by rich with one message, wrapped to some width."""
        if re.search(r"\| (WARNING|ERROR) ", text):
            self.problems += 1
            if self.problems == 1:
                say(f"SwanLab reports: {text.partition(' - ')[2]} (said once; {WHOLE})")
        return len(text)

    def flush(self) -> None:
        """Nothing is buffered."""


def redirect_console(swanlab: Any) -> None:
    """Keep SwanLab's banners, progress bars and repeated errors out of the stage's log."""
    # There is no setting for it. In a version that lacks this console, the messages just stay where they are.
    console = getattr(getattr(getattr(swanlab, "pkg", None), "console", None), "c", None)
    if console is not None and hasattr(console, "file"):
        console.file = Notices()


def ease_dashboard() -> None:
    """Make SwanLab's local mode about ten times cheaper; without effect on a version that is written differently.

    For every value it queries the experiment's status, which also raises KeyboardInterrupt in SwanLab's thread once
    the experiment is deleted in the dashboard, and writes a summary anew, which ext4 flushes to the disk each time.
    """
    module: Any = importlib.import_module("swanlab.deprecated.local")
    writer: Any = getattr(module, "LocalCallbacker", None)
    if hasattr(writer, "_check_exp_status"):
        writer._check_exp_status = lambda self: None
    module.open = open_in_place


def open_in_place(path: Any, mode: str = "r", **options: Any) -> Any:
    """The builtin `open`, but "w" on a file that has content leaves one byte of it to be overwritten.

    A file cut to nothing and closed is taken by ext4 for one to be replaced safely, at some milliseconds a time.
    """
    if mode == "w" and os.path.exists(path):
        file = open(path, "r+", **options)  # noqa: SIM115 - the caller closes it
        file.truncate(1)
        return file
    return open(path, mode, **options)


def usable_mode(asked: str, swanlab: Any) -> str:
    """SwanLab's mode for `run.tracking`, after looking whether it can work here; says why when it cannot."""
    if asked == "cloud":
        if not os.environ.get("SWANLAB_API_KEY", "").strip():
            say("run.tracking is cloud but SWANLAB_API_KEY is not set; kept offline instead")
            return "offline"
        reason = unreachable(swanlab.Settings(interactive=False).api_host)
        if reason:
            say(f"the SwanLab service does not answer ({reason}); kept offline instead")
        return "offline" if reason else "online"
    if asked == "local" and not dashboard_installed():
        say(
            "the local dashboard needs the package swanboard, in the version that swanlab[dashboard] names; "
            "kept offline instead"
        )
        return "offline"
    return asked


def unreachable(host: str) -> str:
    """Why the service cannot be reached within `REACH_S`; empty when anything answers."""
    import requests

    try:
        # Through requests, as SwanLab does it, so that proxies and certificates are the same.
        requests.head(host, timeout=REACH_S)
    except requests.RequestException as error:
        return type(error).__name__
    return ""


def dashboard_installed() -> bool:
    """Whether the very version of swanboard is there that this swanlab insists on, and writes its files with."""
    try:
        pin = next(text for text in importlib.metadata.requires("swanlab") or [] if text.startswith("swanboard=="))
        return importlib.metadata.version("swanboard") == pin.partition("==")[2].partition(";")[0].strip()
    except (importlib.metadata.PackageNotFoundError, StopIteration):
        return False


def forget_attempts(log_dir: Path, run_id: str, local: bool) -> None:
    """Remove what earlier attempts of this work directory left: the new experiment begins with all of their rows."""
    folders = sorted(log_dir.glob(f"run-*-{run_id}"))
    if local and folders:
        importlib.import_module("swanboard.db").connect(autocreate=True, path=str(log_dir))
        tables: Any = importlib.import_module("swanboard.db.models")
        names = [folder.name for folder in folders]
        tables.Experiment.delete().where(tables.Experiment.run_id.in_(names)).execute()
        # swanboard fails on a chart over all experiments that has lost its last one.
        sources = tables.Source.select(tables.Source.chart_id)
        tables.Chart.delete().where(tables.Chart.id.not_in(sources)).execute()
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def run_id_of(ctx: StageContext) -> str:
    """`<fingerprint[:16]><4 digits>`, the same for every attempt in this work directory.

    The digits are drawn when the work starts from nothing. SwanLab drops steps that an experiment already has, so a
    forced run, or another machine's, must not land in the experiment of an earlier one.
    """
    path = ctx.work_dir / ID_FILE
    try:
        known = path.read_text(encoding="utf-8").strip()
    except OSError:
        known = ""
    if re.fullmatch(re.escape(ctx.fingerprint[:16]) + r"[0-9a-f]{4}", known):
        return known
    made = f"{ctx.fingerprint[:16]}{secrets.token_hex(2)}"
    path.write_text(made, encoding="utf-8")
    return made


def stage_name(ctx: StageContext) -> str:
    """`evaluate_sft` rather than `evaluate`: the work directory is named after the instance."""
    name, _, key = ctx.work_dir.name.rpartition("-")
    return name if name and key == ctx.fingerprint[:16] else ctx.stage


def model_name(config: Any) -> str:
    """The model's source without its folders and without `package:`."""
    return re.split(r"[/:]", config.model.source.rstrip("/"))[-1] or "model"


def group_of(config: Any) -> str:
    """One group for all stages of a configuration, whatever its `run` section: model and digest."""
    data = config.model_dump(mode="json", exclude={"run"})
    digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
    return f"{model_name(config)}-{digest[:8]}"


def described(ctx: StageContext) -> dict[str, Any]:
    """What SwanLab shows as the experiment's configuration, without secrets and without `run`."""
    data = ctx.config.model_dump(mode="json", exclude={"run"})
    return {"stage": stage_name(ctx), "fingerprint": ctx.fingerprint, **masked(data)}


def masked(value: Any) -> Any:
    """JSON data with the secrets in its strings hidden."""
    if isinstance(value, dict):
        return {key: masked(item) for key, item in value.items()}
    if isinstance(value, list):
        return [masked(item) for item in value]
    return mask_secrets(value, os.environ) if isinstance(value, str) else value
