"""What is kept of a run: its configuration, what each stage did, and how it ended."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from artifacts.manifest import Manifest
from pipeline_config.pipeline import PipelineConfig
from tasks.errors import Interrupted, PipelineError
from tasks.process.secrets import mask_secrets


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass
class RunRecord:
    """Grows while the run goes on; `to_json` is stored under `runs/` and is what the report is made from."""

    run_id: str
    config: dict[str, Any]
    started_at: str
    choice: dict[str, Any] = field(default_factory=dict)
    status: str = "running"
    finished_at: str | None = None
    error: dict[str, Any] | None = None
    stages: list[dict[str, Any]] = field(default_factory=list)
    gate: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def start(cls, config: PipelineConfig, choice: Mapping[str, Any] | None = None) -> RunRecord:
        """A record that begins now; `choice` is which part of the chain the run carries out."""
        run_id = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
        return cls(run_id, config.model_dump(mode="json"), now(), dict(choice or {}))

    def stage_started(self, name: str) -> None:
        self.stages.append({"stage": name, "action": "running", "started_at": now()})

    def works_in(self, folder: str) -> None:
        """Name the work directory of the stage that was just started: its log and checkpoints are found there."""
        self.stages[-1]["work"] = folder

    def stage_done(self, name: str, manifest: Manifest, action: str, reason: str, seconds: float) -> None:
        """Replaces the running stage of that name. A stage that the gate has repeated is there several times; its last entry counts."""
        entry = {
            "stage": name,
            "action": action,
            "reason": reason,
            "fingerprint": manifest.fingerprint,
            "seconds": round(seconds, 3),
            "made_in_s": round(manifest.duration_s, 1),
            "resumed_from_step": manifest.resumed_from_step,
            "remedied": bool(manifest.metrics.get("remedies")),
        }
        running = [item for item in self.stages if item["stage"] == name and item["action"] == "running"]
        self.stages = [item for item in self.stages if item not in running] + [entry]

    def gate_looked(self, rounds: int, verdict: str, evidence: str, manifest: Manifest) -> None:
        """What the gate saw after so many further rounds of SFT."""
        self.gate.append(
            {"sft_rounds": rounds, "verdict": verdict, "evidence": evidence, "fingerprint": manifest.fingerprint}
        )

    def fail(self, error: BaseException) -> None:
        stopped = isinstance(error, Interrupted) or not isinstance(error, Exception)
        self.status = "interrupted" if stopped else "failed"
        if isinstance(error, PipelineError):
            self.error = error.to_json()
        else:
            message = mask_secrets(str(error), os.environ)
            self.error = {"cause": type(error).__name__, "message": message, "where": "", "fix": "", "exit_code": 1}
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
            "choice": self.choice,
            "stages": self.stages,
            "gate": self.gate,
            "config": self.config,
        }
