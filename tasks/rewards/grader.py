"""Grades of a batch, computed once for all reward functions and the outcome shares."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

from pipeline_config.contract import ContractConfig
from tasks.contract.grading import Grade, grade
from tasks.errors import ConfigError
from tasks.rewards.spec import GOLD_COLUMN, text_of

_REMEMBERED = 4096
"""Grades kept: several batches, so that a LaTeX gold is compared once however many functions ask."""


class Grader:
    """Grades completions against their golds under one contract.

    Args:
        contract: tags.
        max_completion_length: in tokens; a completion this long that does not end with EOS was cut off.
        eos_ids: ids that end a turn (and pad); when empty, every completion of full length counts as cut off.
    """

    def __init__(
        self, contract: ContractConfig, *, max_completion_length: int | None = None, eos_ids: Collection[int] = ()
    ) -> None:
        self.contract, self.max_completion_length, self.eos_ids = contract, max_completion_length, frozenset(eos_ids)

        @lru_cache(maxsize=_REMEMBERED)
        def remembered(text: str, gold: str, truncated: bool) -> Grade:
            return grade(text, gold, contract, truncated=truncated)

        self._grade = remembered

    def forget(self) -> None:
        """Drop the grades that are kept, so that the time of grading can be measured."""
        self._grade.cache_clear()

    def truncated(self, ids: Sequence[int] | None) -> bool:
        """Whether generation was cut off at the length limit."""
        if self.max_completion_length is None or not ids or len(ids) < self.max_completion_length:
            return False
        return ids[-1] not in self.eos_ids

    def grades(self, offered: Mapping[str, Any]) -> list[Grade]:
        """One grade per completion of the arguments that TRL hands to a reward function.

        Raises:
            ConfigError: the dataset has no gold column.
        """
        completions = offered["completions"]
        golds = offered.get(GOLD_COLUMN)
        if golds is None:
            raise ConfigError(
                f"the dataset has no column {GOLD_COLUMN!r} that holds the golds",
                where="rewards",
                fix=f"rename the gold column to {GOLD_COLUMN!r}",
            )
        ids = offered.get("completion_ids") or [None] * len(completions)
        return [
            self._grade(text_of(completion), str(gold), self.truncated(row_ids))
            for completion, gold, row_ids in zip(completions, golds, ids, strict=True)
        ]
