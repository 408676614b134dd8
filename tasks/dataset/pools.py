"""The contents of files and hub data sets, each read once: without repeats, and split between evaluation and training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from pipeline_config.data import DataConfig
from pipeline_config.sources import AnySource, FileSource, HubSource
from tasks.contract.answers import same_answer
from tasks.dataset.problem import Problem, content_digest, unit_hash
from tasks.dataset.sources import problems

Entry = tuple[str, Problem]


@dataclass
class Pool:
    """The entries of one source, and the rows read and dropped by reason."""

    entries: list[Entry]
    counts: Counter[str] = field(default_factory=Counter)


def identity(source: AnySource) -> str:
    """What makes two sources hold the same contents: the file, the hub split, or the generator."""
    if isinstance(source, FileSource):
        return f"file {source.url}"
    if isinstance(source, HubSource):
        return f"hub {source.dataset} {source.effective_config} {source.effective_split} {source.revision}"
    return "generated"


class Pools:
    """Reads every file and hub source at most once, and knows which contents belong to the evaluation."""

    def __init__(self, data: DataConfig, alive: Callable[[], None] = lambda: None) -> None:
        self._data, self._alive = data, alive
        self._read: dict[str, Pool] = {}
        evaluated = {identity(source) for source in data.eval_sources}
        trained = {identity(source) for source in (*data.train, *data.sft_sources)}
        self._split = evaluated & trained
        self.reserved: set[str] = set()
        """Contents of the evaluation's files and hub sets, whether evaluated or not: no other table may hold them."""
        for source in data.eval_sources:
            if isinstance(source, FileSource | HubSource):
                found = {digest for digest, _ in self._pool(source).entries}
                self.reserved |= {d for d in found if self.held_out(d)} if self.is_split(source) else found

    def is_split(self, source: AnySource) -> bool:
        """Whether contents of this source are divided by hash: it feeds both sides, or is a generator."""
        return identity(source) == "generated" or identity(source) in self._split

    def held_out(self, digest: str) -> bool:
        """Whether a content of a divided source belongs to the evaluation. Depends on nothing but content and share."""
        return unit_hash("split", digest) < self._data.holdout_share

    def ordered(self, source: FileSource | HubSource) -> list[Entry]:
        """Entries of a source in the order of a hash of seed and content; independent of the order in the file."""
        return sorted(self._pool(source).entries, key=lambda entry: unit_hash("take", self._data.seed, entry[0]))

    def counts(self, source: FileSource | HubSource) -> Counter[str]:
        """Rows read from a source, and rows dropped by reason."""
        return self._pool(source).counts

    def all_counts(self) -> Iterable[Counter[str]]:
        """The counts of every source that was read."""
        return [pool.counts for pool in self._read.values()]

    def _pool(self, source: FileSource | HubSource) -> Pool:
        key = source.model_copy(update={"share": 1.0}).model_dump_json()
        if key not in self._read:
            self._read[key] = read_pool(source, self._data.deduplicate, self._alive)
        return self._read[key]


def read_pool(
    source: FileSource | HubSource, deduplicate: bool = True, alive: Callable[[], None] = lambda: None
) -> Pool:
    """All problems of a source; `alive` is called for every one.

    A repeated question is dropped, and one that occurs with different golds in every copy.
    """
    counts: Counter[str] = Counter()
    entries: list[Entry] = []
    golds: dict[str, str] = {}
    conflicts: set[str] = set()
    for problem in problems(source, counts):
        alive()
        digest = content_digest(problem.question)
        known = golds.get(digest)
        if known is None:
            golds[digest] = problem.gold
        elif known != problem.gold and not same_answer(problem.gold, known):
            conflicts.add(digest)
        if deduplicate and known is not None:
            counts["duplicate"] += 1
        else:
            entries.append((digest, problem))
    if conflicts:
        kept = [entry for entry in entries if entry[0] not in conflicts]
        counts["conflicting_gold"] += len(entries) - len(kept)
        entries = kept
    return Pool(entries, counts)
