"""Where problems come from: generators, files, and hub data sets with their known layouts."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from pipeline_config.base import LocalPath, SecretFreeUrl, Section

Operation = Literal["+", "-", "*", "/"]
Layout = Literal["columns", "gsm8k", "math", "aime", "openmath", "dapo"]
ColumnName = Annotated[str, Field(min_length=1, max_length=200)]


def _ascending(low_name: str, low: int, high_name: str, high: int) -> None:
    if low > high:
        raise ValueError(f"{low_name} ({low}) is above {high_name} ({high})")


def _columns_only_with(layout: Layout, columns: Columns | None) -> None:
    if layout != "columns" and columns is not None:
        raise ValueError(f"`columns` has no effect with the layout {layout!r}; remove one of the two")


class _Source(Section):
    """What every source has."""

    share: float = Field(default=1.0, gt=0, le=1e6)
    """Weight among the sources of the same list: 3 and 1 give three quarters and one quarter of the rows.
    Not used where the number of rows is `all`."""


class _Generated(_Source):
    """A generator of our own: item i depends only on the seed, the problem, its level and i."""

    kind: Literal["generated"] = "generated"
    """Made here, without any file or network."""
    style: Literal["plain", "varied"] = "varied"
    """`plain`: always the same short wording; `varied`: one of several wordings."""
    trace: Literal["short", "steps", "none"] = "steps"
    """Worked trace: `short` is symbols only, `steps` is sentences, `none` is empty (the model answers at once)."""


class SumSource(_Generated):
    """Sums of whole numbers, worked column by column: "What is 27 + 35?"."""

    problem: Literal["sum"] = "sum"
    """Which generator."""
    min_terms: int = Field(default=2, ge=2, le=12)
    """Fewest numbers to add."""
    max_terms: int = Field(default=2, ge=2, le=12)
    """Most numbers to add."""
    min_operand: int = Field(default=0, ge=0, le=999_999_999)
    """Smallest number that can occur."""
    max_operand: int = Field(default=99, ge=1, le=999_999_999)
    """Largest number that can occur."""

    @model_validator(mode="after")
    def _ordered(self) -> SumSource:
        _ascending("min_terms", self.min_terms, "max_terms", self.max_terms)
        _ascending("min_operand", self.min_operand, "max_operand", self.max_operand)
        return self


class ArithmeticSource(_Generated):
    """Mixed arithmetic with the usual precedence and exact division: "What is 12 - 3 * 4?"."""

    problem: Literal["arithmetic"] = "arithmetic"
    """Which generator."""
    min_operations: int = Field(default=1, ge=1, le=8)
    """Fewest operations in an expression."""
    max_operations: int = Field(default=2, ge=1, le=8)
    """Most operations in an expression."""
    max_operand: int = Field(default=20, ge=4, le=1_000_000)
    """Largest absolute value of a number in the question."""
    operations: tuple[Operation, ...] = Field(default=("+", "-", "*", "/"), max_length=4)
    """Operations that can occur. Every division is exact."""
    negative: bool = False
    """Whether numbers in the question can be negative. A result can be negative either way if `-` is allowed."""

    @model_validator(mode="after")
    def _ordered(self) -> ArithmeticSource:
        _ascending("min_operations", self.min_operations, "max_operations", self.max_operations)
        if not self.operations or len(set(self.operations)) != len(self.operations):
            raise ValueError(
                f"operations must name at least one, and none twice: {', '.join(self.operations) or 'none'}"
            )
        return self


class WordSource(_Generated):
    """Word problems from templates, one to three steps each."""

    problem: Literal["word"] = "word"
    """Which generator."""
    min_steps: int = Field(default=1, ge=1, le=3)
    """Fewest arithmetic steps to the answer."""
    max_steps: int = Field(default=2, ge=1, le=3)
    """Most arithmetic steps to the answer."""
    max_operand: int = Field(default=20, ge=4, le=1_000_000)
    """Largest number in the question."""

    @model_validator(mode="after")
    def _ordered(self) -> WordSource:
        _ascending("min_steps", self.min_steps, "max_steps", self.max_steps)
        return self


class LegsSource(_Generated):
    """Leg counting: "How many legs in total: 3 cows and 2 ducks?"."""

    problem: Literal["legs"] = "legs"
    """Which generator."""
    min_kinds: int = Field(default=1, ge=1, le=8)
    """Fewest kinds of animal in a question."""
    max_kinds: int = Field(default=2, ge=1, le=8)
    """Most kinds of animal in a question."""
    max_count: int = Field(default=9, ge=1, le=10_000)
    """Most animals of one kind."""

    @model_validator(mode="after")
    def _ordered(self) -> LegsSource:
        _ascending("min_kinds", self.min_kinds, "max_kinds", self.max_kinds)
        return self


GeneratedSource = Annotated[SumSource | ArithmeticSource | WordSource | LegsSource, Field(discriminator="problem")]


class Columns(Section):
    """Names of the columns of a table; a dot goes into a nested column (`reward_model.ground_truth`)."""

    question: ColumnName = "question"
    """Text of the problem, or a list of chat messages whose last user message is the problem."""
    answer: ColumnName = "answer"
    """Gold answer: text or a number."""
    working: ColumnName | None = None
    """Worked solution; needed for SFT."""


class _Table(_Source):
    """What files and hub data sets have in common."""

    columns: Columns | None = None
    """Column names for the layout `columns`; question, answer and no working when not given."""
    golds: Literal["any", "numeric"] | None = None
    """`numeric` drops (and counts) rows whose gold is not a number. Not given: numeric for `openmath`, else any."""
    think: Literal["keep", "drop"] = "keep"
    """Thoughts between <think> and </think> in a worked solution: `keep` removes only the two marks, `drop` removes
    the thoughts too and leaves the summary that follows them."""
    on_bad_row: Literal["error", "drop"] = "error"
    """A row that is not JSON, lacks a column, has no gold or a gold that does not grade as right: stop and name the
    row, or drop and count it."""


class FileSource(_Table):
    """A JSONL, CSV or Parquet file at any fsspec URL."""

    kind: Literal["file"] = "file"
    """A file."""
    url: SecretFreeUrl = Field(min_length=1, max_length=4096)
    """Path or fsspec URL (`data/train.jsonl.gz`, `s3://bucket/train.parquet`, `https://...`)."""
    format: Literal["auto", "jsonl", "csv", "parquet"] = "auto"
    """File format; `auto` goes by the name, with .gz, .bz2, .xz or .zst after it allowed."""
    layout: Layout = "columns"
    """How a row is read: by `columns`, or as the data set of that name lays it out."""

    @model_validator(mode="after")
    def _columns_fit(self) -> FileSource:
        _columns_only_with(self.layout, self.columns)
        return self


class HubSource(_Table):
    """A data set by its hub name, loaded with `datasets`; a local folder of data files works too.

    For the well-known sets the layout, config and split are built in.
    """

    kind: Literal["hub"] = "hub"
    """A hub data set."""
    dataset: LocalPath = Field(min_length=1, max_length=4096)
    """Name, such as `openai/gsm8k`, or a local folder."""
    revision: str | None = Field(default=None, min_length=1, max_length=200)
    """Commit, tag or branch. Give a commit to make a run repeatable."""
    config: str | None = Field(default=None, min_length=1, max_length=200)
    """Config (subset) name; not given: the known one, else the data set's default."""
    split: str | None = Field(default=None, min_length=1, max_length=200)
    """Split; not given: the known one, else `train`."""
    layout: Layout | None = None
    """How a row is read; not given: the known layout of this data set, else `columns`."""

    @model_validator(mode="after")
    def _filled(self) -> HubSource:
        known = KNOWN_DATASETS.get(self.dataset)
        if self.layout is None and self.columns is None and known is None:
            raise ValueError(
                f"the columns of {self.dataset} are not known; give `columns` (question, answer and, for SFT, working)"
                f" or a `layout`. Known: {', '.join(KNOWN_DATASETS)}"
            )
        _columns_only_with(self.effective_layout, self.columns)
        return self

    @property
    def effective_layout(self) -> Layout:
        """The layout given, else `columns` if columns are given, else the known one."""
        if self.layout is not None:
            return self.layout
        known = KNOWN_DATASETS.get(self.dataset)
        return "columns" if self.columns is not None or known is None else known.layout

    @property
    def effective_columns(self) -> Columns:
        """The columns given, else the known ones, else the default names."""
        known = KNOWN_DATASETS.get(self.dataset)
        return self.columns or (known.columns if known else None) or Columns()

    @property
    def effective_config(self) -> str | None:
        """The config given, else the known one."""
        known = KNOWN_DATASETS.get(self.dataset)
        return self.config or (known.config if known else None)

    @property
    def effective_split(self) -> str:
        """The split given, else the known one, else `train`."""
        known = KNOWN_DATASETS.get(self.dataset)
        return self.split or (known.split if known else "train")


class KnownDataset(Section):
    """How a well-known hub data set is read."""

    layout: Layout
    """Its layout."""
    config: str | None = None
    """Its config."""
    split: str = "train"
    """Its split."""
    columns: Columns | None = None
    """Its columns, for the layout `columns`."""


_AIME = Columns(question="problem", answer="answer")
KNOWN_DATASETS: dict[str, KnownDataset] = {
    "openai/gsm8k": KnownDataset(layout="gsm8k", config="main"),
    "unsloth/OpenMathReasoning-mini": KnownDataset(layout="openmath", split="cot"),
    "nvidia/OpenMathReasoning": KnownDataset(layout="openmath", split="cot"),
    "open-r1/DAPO-Math-17k-Processed": KnownDataset(layout="dapo", config="en"),
    "BytedTsinghua-SIA/DAPO-Math-17k": KnownDataset(layout="dapo"),
    "HuggingFaceH4/MATH-500": KnownDataset(
        layout="columns", split="test", columns=Columns(question="problem", answer="answer", working="solution")
    ),
    "HuggingFaceH4/aime_2024": KnownDataset(layout="columns", columns=_AIME),
    "MathArena/aime_2024_I": KnownDataset(layout="columns", columns=_AIME),
    "opencompass/AIME2025": KnownDataset(layout="aime", config="AIME2025-I", split="test"),
}
"""Hub data sets whose layout is built in."""

SourceConfig = Annotated[GeneratedSource | FileSource | HubSource, Field(discriminator="kind")]
AnySource = SumSource | ArithmeticSource | WordSource | LegsSource | FileSource | HubSource


def layout_of(source: FileSource | HubSource) -> Layout:
    """The layout by which the rows of a source are read."""
    return source.effective_layout if isinstance(source, HubSource) else source.layout


def columns_of(source: FileSource | HubSource) -> Columns:
    """The columns of a source whose layout is `columns`."""
    return source.effective_columns if isinstance(source, HubSource) else source.columns or Columns()


def has_working(source: FileSource | HubSource) -> bool:
    """Whether rows of the source can carry a worked solution."""
    layout = layout_of(source)
    if layout == "columns":
        return columns_of(source).working is not None
    return layout not in ("dapo", "aime")
