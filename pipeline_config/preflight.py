"""What the preflight's findings do."""

from __future__ import annotations

from typing import Literal

from pipeline_config.base import Section


class PreflightConfig(Section):
    """Choices about the checks before training."""

    reward_audit: Literal["fail", "warn"] = "fail"
    """What a reward with a wrong order does, such as an exact string match that pays `8.0` no more than a wrong answer: stop the run,
    or go on with a warning that stays in the manifest and the report. Exceptions, values that are not finite and a constant reward
    stop it in any case."""
