"""How many problems are taken for what, what is held out, and what is dropped."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from pipeline_config.base import Section
from pipeline_config.sources import AnySource, FileSource, HubSource, SourceConfig, SumSource, has_working

RowCount = Annotated[int, Field(ge=1, le=10_000_000)] | Literal["all"]


class DataConfig(Section):
    """Sources and sizes of the four tables: SFT traces, GRPO prompts, gate prompts and the held-out evaluation."""

    train: tuple[SourceConfig, ...] = Field(default=(SumSource(),), max_length=100)
    """Problems for GRPO; the gate's held-out prompts come from here as well."""
    sft: tuple[SourceConfig, ...] = Field(default=(), max_length=100)
    """Worked traces for SFT; empty: the sources of `train`."""
    eval: tuple[SourceConfig, ...] = Field(default=(), max_length=100)
    """Held-out problems; empty: the sources of `train`, split by content."""
    sft_rows: RowCount = 2000
    """Traces for SFT, or `all`."""
    train_rows: RowCount = 1000
    """Problems for GRPO, or `all`."""
    eval_rows: RowCount = 200
    """Held-out problems for the evaluation, or `all`."""
    gate_rows: int = Field(default=64, ge=1, le=100_000)
    """Held-out GRPO prompts for the format gate."""
    seed: int = Field(default=0, ge=0, le=2**63 - 1)
    """Seed of the generators and of the order of rows. It does not move a row between train and eval."""
    holdout_share: float = Field(default=0.1, gt=0, lt=1)
    """When a source feeds both evaluation and training (a generator always may), this share of its contents, chosen by
    hash, belongs to the evaluation and the rest to training, whatever the seed and the sizes."""
    deduplicate: bool = True
    """Drop rows whose question repeats (compared without case, spacing and punctuation). When off, `sft` and `train`
    may repeat a row; evaluation and gate never do, and no row is ever in two tables."""
    sft_may_repeat_train: bool = False
    """Allow SFT to use problems that GRPO trains on. Gate and evaluation stay apart from both in any case."""
    prompt_quantile: float = Field(default=1.0, gt=0, le=1)
    """Drop GRPO and gate prompts longer than this quantile of the prompt lengths of their source; 1.0 is off."""
    max_prompt_tokens: int | None = Field(default=None, ge=1, le=10_000_000)
    """Drop prompts (of every table) with more tokens than this, template included; none: no such limit."""
    on_long_prompt: Literal["error", "drop"] = "error"
    """A prompt that, with the completion, does not fit into the model's context: stop and name it, or drop and count.
    It does not concern SFT rows longer than `sft.max_length`: these are always dropped and counted."""

    @model_validator(mode="after")
    def _consistent(self) -> DataConfig:
        # Not a bound of the field: pydantic would report an invalid source as a list that is too short, too.
        if not self.train:
            raise ValueError("train needs at least one source")
        for name, sources, rows in (
            ("eval", self.eval, self.eval_rows),
            ("train", self.train, self.train_rows),
            ("sft", self.sft, self.sft_rows),
        ):
            for i, source in enumerate(sources or self.train):
                place = f"{name}[{i}]" if sources else f"train[{i}] (used for {name}, which is empty)"
                if rows == "all" and source.kind == "generated":
                    raise ValueError(f"{name}_rows is `all`, but {place} is a generator without end; give a number")
                if name == "sft" and isinstance(source, FileSource | HubSource) and not has_working(source):
                    raise ValueError(
                        f"{place} has no worked solutions: name their column in `columns.working`, or give `sft` a source"
                    )
        return self

    @property
    def sft_sources(self) -> tuple[AnySource, ...]:
        """The sources of the SFT traces."""
        return self.sft or self.train

    @property
    def eval_sources(self) -> tuple[AnySource, ...]:
        """The sources of the evaluation."""
        return self.eval or self.train
