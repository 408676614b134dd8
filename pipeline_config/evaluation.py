"""The frozen evaluation that scores every model of a run, on one or several sets of problems."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints, model_validator

from pipeline_config.base import Section
from pipeline_config.data import RowCount
from pipeline_config.sources import SourceConfig

HELD_OUT = "held_out"
"""Name of the set that the dataset stage keeps out of training (`data.eval`)."""
SetName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,47}$")]


class EvaluationSet(Section):
    """One more set of problems that every model answers. Training neither sees it nor avoids it: what of it occurs in the
    training tables is measured and reported."""

    name: SetName
    """How results name it: small letters, digits, `_` and `-`; `held_out` is taken."""
    source: SourceConfig
    """Where its problems come from: a file, a hub data set, or a generator (whose held-out share is used)."""
    problems: RowCount = "all"
    """Problems taken from it, chosen by a hash of their content; `all` for the whole set."""
    samples: int | None = Field(None, ge=0, le=1024)
    """Sampled completions per problem; unset means `evaluation.samples`."""
    max_new_tokens: int | None = Field(None, ge=4, le=1_048_576)
    """Longest completion; unset means `evaluation.max_new_tokens`."""

    @model_validator(mode="after")
    def _finite(self) -> EvaluationSet:
        if self.name == HELD_OUT:
            raise ValueError(f"the name {HELD_OUT!r} is taken by the set that `data` holds out; choose another")
        if self.problems == "all" and self.source.kind == "generated":
            raise ValueError(f"set {self.name!r}: `problems` is `all`, but a generator has no end; give a number")
        return self


class OverlapConfig(Section):
    """When an evaluation problem counts as seen in training."""

    ngram: int = Field(8, ge=2, le=50)
    """Words in a row that are compared, after case, spacing and punctuation are gone; a Chinese character is a word.
    8 as in PaLM (arXiv 2204.02311, section 8) and s1 (arXiv 2501.19393). A shorter question must be equal as a whole."""
    share: float = Field(0.7, gt=0.0, le=1.0)
    """A problem overlaps when at least this share of its n-grams occurs in training; 0.7 as in PaLM."""


class EvaluationConfig(Section):
    """Base, SFT and GRPO are scored on the same problems with the same prompt, sampler and seed."""

    baseline: bool = True
    """Score the base model too, so that the gain of SFT is known."""
    problems: int = Field(200, ge=1, le=1_000_000)
    """Problems of the held-out set, at most what the dataset stage kept for evaluation."""
    sets: tuple[EvaluationSet, ...] = Field(default=(), max_length=50)
    """Further sets. Adding or changing one trains nothing again and leaves the results on the others as they are."""
    samples: int = Field(0, ge=0, le=1024)
    """Completions per problem at `grpo.temperature` for pass@k and maj@k; 0 leaves only the greedy one."""
    max_new_tokens: int | None = Field(None, ge=4, le=1_048_576)
    """Longest completion; unset means `grpo.max_completion_length`."""
    batch_size: int | None = Field(None, ge=1, le=65_536)
    """Completions sampled at once without vLLM; unset means 64 on a CPU, and on a GPU as many as fit, at most 512, and half as many
    after running out of memory. Does not change greedy results beyond the rounding of a GPU."""
    seed: int = Field(0, ge=0, lt=2**31)
    """Seed of the sampled completions. Apart from the run's seed, so that runs with different seeds stay comparable."""
    overlap: OverlapConfig = OverlapConfig()
    """Contamination: overlap of evaluation problems with the training tables."""

    @model_validator(mode="after")
    def _names_differ(self) -> EvaluationConfig:
        names = [one.name for one in self.sets]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"two sets are named {', '.join(map(repr, repeated))}; give each a name of its own")
        return self
