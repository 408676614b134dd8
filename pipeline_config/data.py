"""How many problems are taken for what, what is held out, and what is dropped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from pipeline_config.base import Section
from pipeline_config.sources import AnySource, FileSource, HubSource, SourceConfig, SumSource, has_working

RowCount = Annotated[int, Field(ge=1, le=10_000_000)] | Literal["all"]


WINDOW = "{window}"
_TEMPLATES = ("url", "revision", "split")


def _filled(place: str, source: Any, window: Any) -> Any:
    """A source with `{window}` replaced, as far as it is one that can be read at all."""
    if not isinstance(source, Mapping):
        return source
    found = [key for key in _TEMPLATES if isinstance(source.get(key), str) and WINDOW in source[key]]
    if found and place.startswith("eval"):
        raise ValueError(f"{place}.{found[0]} holds {WINDOW}: the evaluation must not move with the training data")
    if found and not isinstance(window, str):
        raise ValueError(f"{place}.{found[0]} holds {WINDOW}: give data.window")
    return {**source, **{key: source[key].replace(WINDOW, str(window)) for key in found}}


class DataConfig(Section):
    """Sources and sizes of the four tables: SFT traces, GRPO prompts, gate prompts and the held-out evaluation."""

    train: tuple[SourceConfig, ...] = Field(default=(SumSource(),), max_length=100)
    """Problems for GRPO; the gate's held-out prompts come from here as well."""
    sft: tuple[SourceConfig, ...] = Field(default=(), max_length=100)
    """Worked traces for SFT; empty: the sources of `train`."""
    eval: tuple[SourceConfig, ...] = Field(default=(), max_length=100)
    """Held-out problems; empty: the sources of `train`, split by content."""
    window: str | None = Field(default=None, pattern=r"^[0-9A-Za-z][0-9A-Za-z._:+-]{0,99}$")
    """The part of the data to train on, such as a date: replaces `{window}` in `url`, `revision` and `split` of the sources
    of `train` and `sft`. The nightly flow gives the date of its schedule (UTC)."""
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
    """Drop rows whose question repeats (compared without case, spacing and punctuation; brackets in a formula count). When off, `sft` and `train`
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

    @model_validator(mode="before")
    @classmethod
    def _fill_window(cls, given: Any) -> Any:
        """Everything after this sees the filled texts, so fingerprints depend on what is read, not on its name."""
        if not isinstance(given, Mapping):
            return given
        filled = dict(given)
        if isinstance(filled.get("window"), int):  # 20261130 is a number in YAML
            filled["window"] = str(filled["window"])
        for name in ("train", "sft", "eval"):
            sources = filled.get(name)
            if isinstance(sources, list | tuple):
                filled[name] = [
                    _filled(f"{name}[{i}]", source, filled.get("window")) for i, source in enumerate(sources)
                ]
        return filled

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
