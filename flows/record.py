"""What is kept of a run: its configuration, what each stage did, and how it ended."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from artifacts.manifest import Manifest
from pipeline_config.pipeline import PipelineConfig
from tasks.errors import Interrupted, PipelineError


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass
class RunRecord:
    """Grows while the run goes on; `to_json` is stored under `runs/` and is what the report is made from."""

    run_id: str
    config: dict[str, Any]
    started_at: str
    status: str = "running"
    finished_at: str | None = None
    error: dict[str, Any] | None = None
    stages: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def start(cls, config: PipelineConfig) -> RunRecord:
        run_id = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
        return cls(run_id, config.model_dump(mode="json"), now())

    def stage_started(self, name: str) -> None:
        self.stages.append({"stage": name, "action": "running", "started_at": now()})

    def stage_done(self, name: str, manifest: Manifest, action: str, reason: str, seconds: float) -> None:
        entry = {
            "stage": name,
            "action": action,
            "reason": reason,
            "fingerprint": manifest.fingerprint,
            "seconds": round(seconds, 1),
            "made_in_s": round(manifest.duration_s, 1),
            "resumed_from_step": manifest.resumed_from_step,
            "remedied": bool(manifest.metrics.get("remedies")),
        }
        self.stages = [item for item in self.stages if item["stage"] != name] + [entry]

    def fail(self, error: BaseException) -> None:
        stopped = isinstance(error, Interrupted) or not isinstance(error, Exception)
        self.status = "interrupted" if stopped else "failed"
        if isinstance(error, PipelineError):
            self.error = error.to_json()
        else:
            self.error = {"cause": type(error).__name__, "message": str(error), "where": "", "fix": "", "exit_code": 1}
        for item in self.stages:
            if item["action"] == "running":
                item["action"] = self.status

    def finish(self) -> None:
        self.finished_at = now()
        if self.status == "running":
            self.status = "completed"

    def fingerprints(self) -> dict[str, str]:
        return {item["stage"]: item["fingerprint"] for item in self.stages if "fingerprint" in item}

    def to_json(self) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "status": self.status,
            "started_at": self.started_at,
            "finished_at": self.finished_at,
            "error": self.error,
            "stages": self.stages,
            "config": self.config,
        }
