"""Errors that a user can act on: what was wrong, where, what to do.

Every error has a documented exit code (`docs/errors.md`), used both by the command line and between a stage
process and its parent, and a short machine-readable `cause`.
"""

from __future__ import annotations

from typing import Any, ClassVar


class PipelineError(Exception):
    """Base of all errors that the pipeline raises on purpose.

    Args:
        message: what was wrong, in one sentence.
        where: field, file, row or step, if known.
        fix: what the user can do about it.
        cause: machine-readable name; the class's own when not given.
    """

    exit_code: ClassVar[int] = 1
    default_cause: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, where: str = "", fix: str = "", cause: str = "") -> None:
        self.message, self.where, self.fix = message, where, fix
        self.cause = cause or self.default_cause
        super().__init__(str(self))

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text}\n  what to do: {self.fix}" if self.fix else text

    def to_json(self) -> dict[str, Any]:
        return {
            "exit_code": self.exit_code,
            "cause": self.cause,
            "message": self.message,
            "where": self.where,
            "fix": self.fix,
        }


class ConfigError(PipelineError):
    """A setting is unknown, out of range, or does not fit another."""

    exit_code = 10
    default_cause = "config"


class DataError(PipelineError):
    """Problems, golds or traces cannot be read or used."""

    exit_code = 11
    default_cause = "data"


class ModelError(PipelineError):
    """The model, its tokenizer or its chat template cannot be used."""

    exit_code = 12
    default_cause = "model"


class StoreError(PipelineError):
    """The artifact store or the work directory cannot be read or written."""

    exit_code = 13
    default_cause = "store"


class GateRefused(PipelineError):
    """The format gate found that GRPO cannot learn from this model."""

    exit_code = 20
    default_cause = "gate_refused"


class RunStopped(PipelineError):
    """Training was stopped on purpose, with a named cause."""

    exit_code = 21
    default_cause = "run_stopped"


class ExportRefused(PipelineError):
    """The exported file does not behave like the trained model."""

    exit_code = 22
    default_cause = "export_refused"


class OutOfMemory(PipelineError):
    """The stage process ran out of host or GPU memory."""

    exit_code = 30
    default_cause = "out_of_memory"


class NonFinite(PipelineError):
    """A loss, gradient or weight became NaN or infinite."""

    exit_code = 40
    default_cause = "non_finite"


class Retryable(PipelineError):
    """Something that can go away by itself: network, a killed process, a busy device."""

    exit_code = 75
    default_cause = "transient"
    retryable = True


class StartAgain(PipelineError):
    """A stage asks to be started again at once, in a new process: it has changed its own settings, within its bounds."""

    exit_code = 76
    default_cause = "start_again"


class Interrupted(PipelineError):
    """The stage was asked to stop; its newest checkpoint is kept."""

    exit_code = 143
    default_cause = "interrupted"


BY_EXIT_CODE: dict[int, type[PipelineError]] = {
    kind.exit_code: kind
    for kind in (
        ConfigError,
        DataError,
        ModelError,
        StoreError,
        GateRefused,
        RunStopped,
        ExportRefused,
        OutOfMemory,
        NonFinite,
        Retryable,
        StartAgain,
        Interrupted,
    )
}


def from_json(data: dict[str, Any]) -> PipelineError:
    """Rebuild an error that a stage process wrote as JSON; one with an unknown or no exit code is a plain PipelineError."""
    code = data.get("exit_code")
    kind = BY_EXIT_CODE.get(code, PipelineError) if isinstance(code, int) else PipelineError
    return kind(
        str(data.get("message", "")),
        where=str(data.get("where", "")),
        fix=str(data.get("fix", "")),
        cause=str(data.get("cause", "")),
    )
