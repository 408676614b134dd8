"""Problems from files and hub data sets, with every fault named by file, row and column."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from pipeline_config.sources import AnySource, FileSource, HubSource, layout_of
from tasks.contract.answers import parse_answer
from tasks.dataset.columns import shortest
from tasks.dataset.files import UnreadableRow, rows_of_file, shown
from tasks.dataset.layouts import BadRow, rule_for, to_problem, wanted_columns
from tasks.dataset.problem import Problem
from tasks.errors import DataError, PipelineError

_BATCH = 1000


def label(source: AnySource) -> str:
    """A short name of a source: `generated/sum`, `file/train.jsonl`, `hub/openai/gsm8k`."""
    if isinstance(source, FileSource):
        return f"file/{shown(source.url).rsplit('/', 1)[-1]}"
    if isinstance(source, HubSource):
        local = source.dataset.count("/") > 1 or source.dataset.startswith((".", "/", "~"))
        return f"hub/{source.dataset.rstrip('/').rsplit('/', 1)[-1] if local else source.dataset}"
    return f"generated/{source.problem}"


def problems(source: FileSource | HubSource, counts: Counter[str]) -> Iterator[Problem]:
    """Every problem of a source, in its order. `counts` gets `read` and, for each reason, the rows dropped.

    Raises:
        DataError: unreadable source, no rows at all, or (with `on_bad_row: error`) a bad row, named.
    """
    place = shown(source.url) if isinstance(source, FileSource) else _hub_place(source)
    rows = (
        rows_of_file(source.url, source.format, wanted_columns(source))
        if isinstance(source, FileSource)
        else rows_of_hub(source)
    )
    rule, kind = rule_for(source), label(source)
    numeric = source.golds == "numeric" or (source.golds is None and layout_of(source) == "openmath")
    for number, row in rows:
        counts["read"] += 1
        try:
            if isinstance(row, UnreadableRow):
                raise BadRow(row.reason, row.message, row.column)
            problem = to_problem(rule, row, kind, f"row {number}")
        except BadRow as fault:
            refuse(source, fault, f"{place}, row {number}", counts)
            continue
        if numeric and not is_number(problem.gold):
            counts["gold_not_numeric"] += 1
            continue
        yield problem
    if not counts["read"]:
        raise DataError("there are no rows", where=place, fix="an empty data set cannot be used; check the source")


def is_number(gold: str) -> bool:
    """Whether a gold is one rational number."""
    value = parse_answer(gold)
    return value is not None and value.fraction is not None


def refuse(source: FileSource | HubSource, fault: BadRow, where: str, counts: Counter[str]) -> None:
    """Raise for a bad row, or count it, as the source says."""
    if source.on_bad_row == "drop":
        counts[fault.reason] += 1
        return
    column = f", column {fault.column!r}" if fault.column else ""
    raise DataError(
        fault.message, where=where + column, fix="correct the row, or set `on_bad_row: drop` to leave it out"
    )


def place_of(source: AnySource) -> str:
    """How messages name a source."""
    if isinstance(source, FileSource):
        return shown(source.url)
    return _hub_place(source) if isinstance(source, HubSource) else label(source)


def _hub_place(source: HubSource) -> str:
    config = f" ({source.effective_config})" if source.effective_config else ""
    return f"{source.dataset}{config}, split {source.effective_split}"


def rows_of_hub(source: HubSource) -> Iterator[tuple[int, Any]]:
    """(1-based row number, row) of a hub data set, or of a local folder that `datasets` can load."""
    place = _hub_place(source)
    table = load(source)
    asked = wanted_columns(source).present(list(table.column_names), place)
    names = list(dict.fromkeys(n if n in table.column_names else n.split(".")[0] for n in asked))
    table = table.select_columns(names)
    changes = {field.name: shortest(field.type) for field in table.features.arrow_schema}
    number = 0
    try:
        for batch in table.iter(batch_size=_BATCH):
            for cells in zip(*(batch[name] for name in names), strict=True):
                number += 1
                row = dict(zip(names, cells, strict=True))
                yield number, {name: change(row[name]) if (change := changes[name]) else row[name] for name in names}
    except (ValueError, OverflowError) as error:
        raise DataError(
            f"a value cannot be read: {error}",
            where=f"{place}, rows {number + 1} to {number + _BATCH}",
            fix=f"correct the columns {', '.join(names)} there, or read others (`columns`)",
        ) from error


def load(source: HubSource) -> Any:
    """The `datasets.Dataset` of a source; whatever goes wrong in loading becomes a DataError that names it."""
    place = _hub_place(source)
    try:
        import datasets
    except ImportError as error:
        raise DataError("hub data sets need the package `datasets`", where=place, fix="pip install datasets") from error
    try:
        return datasets.load_dataset(
            source.dataset, source.effective_config, split=source.effective_split, revision=source.revision
        )
    except PipelineError:
        raise
    except Exception as error:  # load_dataset raises whatever hub, network, script and Arrow raise
        raise DataError(
            f"the data set cannot be loaded: {type(error).__name__}: {' '.join(str(error).split())[:500]}",
            where=place,
            fix="check name, config, split and revision; without a hub, give the files as a source of kind `file`",
        ) from error
