"""From sources to the four tables: eval, gate, train, sft. No content is in two of them.

Tables are filled in this order, each skipping what an earlier one holds, so that no training setting changes the
evaluation. Everything is deterministic, and everything dropped is counted with its reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal

from pipeline_config.data import DataConfig
from pipeline_config.sources import AnySource, FileSource, HubSource, SumSource
from tasks.dataset.generators import GeneratorSource, generate
from tasks.dataset.layouts import BadRow
from tasks.dataset.pools import Entry, Pools
from tasks.dataset.problem import Problem, content_digest, unit_hash
from tasks.dataset.report import ROLES, Request, Role, source_report, spread, summary, too_few
from tasks.dataset.ruler import Limits, Ruler
from tasks.dataset.sources import place_of, refuse
from tasks.errors import DataError

_INDEX_RANGE = 1 << 40
_FIRST_INDEX: dict[Role, int] = {"sft": 0, "train": _INDEX_RANGE, "gate": 2 * _INDEX_RANGE, "eval": 3 * _INDEX_RANGE}
_DRY_DRAWS = 500
_DRY_DRAWS_PER_CONTENT = 7
_DRAWS_PER_ROW = 100


@dataclass
class Built:
    """The four tables, each a list of (content digest, problem), and their counts as JSON data."""

    tables: dict[Role, list[Entry]]
    stats: dict[str, Any]


def build(data: DataConfig, ruler: Ruler, limits: Limits, progress: Callable[[int, int], None] | None = None) -> Built:
    """Fill the four tables; `progress` is called with rows done and rows in all.

    Raises:
        DataError: a source cannot be read, has a bad row, or has too few rows left; a prompt does not fit.
    """
    return _Builder(data, ruler, limits, progress or (lambda done, total: None)).build()


def build_set(
    source: AnySource,
    rows: int | Literal["all"],
    name: str,
    data: DataConfig,
    ruler: Ruler,
    limits: Limits,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[list[Entry], dict[str, Any]]:
    """(problems, counts) of an evaluation set that stands beside the held-out one.

    It is taken whole, whatever training uses; only of a generator, whose contents training may draw too, the held-out
    share. Which rows and their order depend on nothing but their content, so that the set is the same in every run.

    Args:
        name: of the source in the configuration, for messages.
        data: read for `holdout_share` and `on_long_prompt` only.

    Raises:
        DataError: as `build`.
    """
    alone = DataConfig(
        train=(SumSource(),),
        eval=(source,),
        eval_rows=rows,
        holdout_share=data.holdout_share,
        on_long_prompt=data.on_long_prompt,
    )
    builder = _Builder(alone, ruler, limits, progress or (lambda done, total: None))
    builder.pools = Pools(alone, builder.alive)
    request = Request("eval", source, None if rows == "all" else rows, name, fewer=f"lower {name}.problems")
    builder.total = request.count or 0
    kept = builder.select(request)
    report = source_report(request, builder.pools, len(kept))
    return sorted(kept, key=lambda row: unit_hash("order", "evaluation", row[0])), report


def quotas(total: int | Literal["all"], shares: list[float]) -> list[int | None]:
    """Rows from each source in proportion to its share (largest remainders); None, everything, for `all`."""
    if total == "all":
        return [None] * len(shares)
    exact = [total * share / sum(shares) for share in shares]
    rows = [math.floor(value) for value in exact]
    order = sorted(range(len(shares)), key=lambda i: (rows[i] - exact[i], i))
    for i in order[: total - sum(rows)]:
        rows[i] += 1
    return list(rows)


def longest_allowed(lengths: list[int], quantile: float) -> int:
    """The ceil(q n)-th shortest of n lengths, so that at least that many prompts stay."""
    return sorted(lengths)[max(0, math.ceil(quantile * len(lengths)) - 1)]


@dataclass
class _Builder:
    data: DataConfig
    ruler: Ruler
    limits: Limits
    progress: Callable[[int, int], None]
    taken: dict[str, Role] = field(default_factory=dict)
    """Content -> the first table that took it."""
    lengths: dict[str, int] = field(default_factory=dict)
    done: int = 0
    total: int = 0
    pools: Pools = field(init=False)

    def build(self) -> Built:
        data = self.data
        requests: dict[Role, list[Request]] = {
            "eval": _requests("eval", "eval" if data.eval else "train", data.eval_sources, data.eval_rows),
            "gate": _requests("gate", "train", data.train, data.gate_rows),
            "train": _requests("train", "train", data.train, data.train_rows),
            "sft": _requests("sft", "sft" if data.sft else "train", data.sft_sources, data.sft_rows),
        }
        self.total = sum(request.count or 0 for role in ROLES for request in requests[role])
        self.pools = Pools(data, self.alive)
        tables: dict[Role, list[Entry]] = {}
        reports = []
        for role in ROLES:
            rows: list[Entry] = []
            for request in requests[role]:
                kept = self.select(request)
                rows += kept
                reports.append(source_report(request, self.pools, len(kept)))
            tables[role] = sorted(rows, key=lambda row: unit_hash("order", data.seed, role, row[0]))
        stats = summary(tables, reports, self.pools)
        stats["prompt_tokens"] = {role: spread(self.length(p.question) for _, p in tables[role]) for role in ROLES}
        stats["sft_tokens"] = spread(self.ruler.example(p) for _, p in tables["sft"])
        return Built(tables, stats)

    def alive(self) -> None:
        self.progress(self.done, max(self.total, self.done + 1))

    def length(self, question: str) -> int:
        if question not in self.lengths:
            self.alive()
            self.lengths[question] = self.ruler.prompt(question)
        return self.lengths[question]

    def select(self, request: Request) -> list[Entry]:
        """The rows that a request asks for."""
        candidates = self.free(request)
        if request.role in ("gate", "train") and self.data.prompt_quantile < 1:
            candidates = self.short(request, candidates)
        kept: list[Entry] = []
        for digest, problem in candidates:
            if self.taken.get(digest) == request.role and not self.may_repeat(request.role):
                request.dropped["duplicate"] += 1
            elif self.fits(request, problem) and self.sound(request, problem):
                kept.append((digest, problem))
                self.taken.setdefault(digest, request.role)
                request.useful += 1
                self.done += 1
                self.alive()
                if len(kept) == request.count:
                    break
        if len(kept) < (1 if request.count is None else request.count):
            raise too_few(request, self.pools, len(kept))
        return kept

    def candidates(self, request: Request) -> Iterator[Entry]:
        """Entries of the source, in the order in which they are taken."""
        if isinstance(request.source, FileSource | HubSource):
            yield from self.pools.ordered(request.source)
            return
        yield from self.drawn(request, request.source)

    def drawn(self, request: Request, source: GeneratorSource) -> Iterator[Entry]:
        """Items of a generator, until its space of problems has run dry.

        It counts as dry after a long row of draws that were of no use: 7 for each of n known contents find the last of
        n + 1 with probability 1 - exp(-7). If no draw was of use at all, it is given up after 500. A total bounds both.
        """
        holdout = self.data.holdout_share
        patience = 1 / (holdout if request.role == "eval" else 1 - holdout)
        most = patience * (_DRY_DRAWS + _DRAWS_PER_ROW * (request.count or 0))
        seen: set[str] = set()
        useful = dry = 0
        for index in count(_FIRST_INDEX[request.role]):
            dry = dry + 1 if request.useful == useful else 0
            useful = request.useful
            known = _DRY_DRAWS_PER_CONTENT * len(seen) if useful else 0
            if dry > patience * _DRY_DRAWS + known or request.drawn > most:
                return
            request.drawn += 1
            problem = generate(source, self.data.seed, index)
            digest = content_digest(problem.question)
            if digest in seen and not self.may_repeat(request.role):
                request.dropped["duplicate"] += 1
                continue
            seen.add(digest)
            yield digest, problem

    def free(self, request: Request) -> Iterator[Entry]:
        """Candidates on the right side of the split, in no other table, and not too long."""
        longest = self.data.max_prompt_tokens
        for digest, problem in self.candidates(request):
            reason = self.elsewhere(request, digest)
            if not reason and longest is not None and self.length(problem.question) > longest:
                reason = "over_max_prompt_tokens"
            if reason:
                request.dropped[reason] += 1
            else:
                yield digest, problem

    def elsewhere(self, request: Request, digest: str) -> str:
        """The reason why a content may not be in this table, or ""."""
        if self.pools.is_split(request.source) and self.pools.held_out(digest) != (request.role == "eval"):
            return "not_held_out" if request.role == "eval" else "held_out"
        owner = self.taken.get(digest)
        if request.role != "eval" and (owner == "eval" or digest in self.pools.reserved):
            return "in_eval"
        if owner is None or owner == request.role:
            return ""
        if request.role == "sft" and owner == "train" and self.data.sft_may_repeat_train:
            return ""
        return f"in_{owner}"

    def may_repeat(self, role: Role) -> bool:
        return role in ("train", "sft") and not self.data.deduplicate

    def short(self, request: Request, candidates: Iterator[Entry]) -> Iterator[Entry]:
        """Candidates within the quantile of their lengths. Of a generator just enough are drawn to fill the request."""
        quantile = self.data.prompt_quantile
        rows: list[Entry] = []
        for row in candidates:
            rows.append(row)
            request.useful += 1
            table = isinstance(request.source, FileSource | HubSource)
            if not table and len(rows) >= math.ceil((request.count or 0) / quantile):
                break
        if not rows:
            return
        cutoff = longest_allowed([self.length(problem.question) for _, problem in rows], quantile)
        for digest, problem in rows:
            if self.length(problem.question) <= cutoff:
                yield digest, problem
            else:
                request.dropped["over_quantile"] += 1

    def fits(self, request: Request, problem: Problem) -> bool:
        """Whether prompt and completion fit into the model, or the whole worked example into an SFT row."""
        if request.role == "sft":
            length = self.ruler.example(problem)
            fits = length <= self.limits.sft_length
            request.dropped["over_sft_length"] += not fits
            request.longest = max(request.longest, 0 if fits else length)
            return fits
        prompt = self.length(problem.question)
        completion = self.limits.eval_completion if request.role == "eval" else self.limits.completion
        if prompt + completion <= self.limits.context:
            return True
        request.dropped["over_context"] += 1
        if self.data.on_long_prompt == "error":
            raise _too_long(request.source, problem, prompt, completion, self.limits.context)
        return False

    def sound(self, request: Request, problem: Problem) -> bool:
        """Whether the gold grades as right, and an SFT row has something to learn from."""
        source = request.source
        where = f"{place_of(source)}, {problem.where}"
        if isinstance(source, FileSource | HubSource):
            if request.role == "sft" and not problem.working:
                refuse(
                    source, BadRow("no_working", "there is no worked solution to learn from"), where, request.dropped
                )
                return False
            if fault := self.ruler.check(problem):
                message = f"the gold {problem.gold[:80]!r} does not grade as right: {fault}"
                refuse(source, BadRow("gold_self_check", message), where, request.dropped)
                return False
        elif fault := self.ruler.check(problem):
            raise DataError(
                f"the generated answer {problem.gold!r} does not grade as right: {fault}",
                where=where,
                fix="choose tags for the contract that cannot occur in a worked trace",
            )
        return True


def _requests(role: Role, name: str, sources: tuple[AnySource, ...], rows: int | Literal["all"]) -> list[Request]:
    counts = quotas(rows, [source.share for source in sources])
    return [
        Request(role, source, count, f"data.{name}[{i}]")
        for i, (source, count) in enumerate(zip(sources, counts, strict=True))
        if count != 0
    ]


def _too_long(source: AnySource, problem: Problem, prompt: int, completion: int, context: int) -> DataError:
    return DataError(
        f"the prompt has {prompt} tokens; with a completion of up to {completion} that is more than the model's context "
        f"of {context}",
        where=f"{place_of(source)}, {problem.where}",
        fix="set data.on_long_prompt=drop, data.max_prompt_tokens or data.prompt_quantile to leave long prompts out, "
        "or allow shorter completions or a larger model.max_context",
    )
