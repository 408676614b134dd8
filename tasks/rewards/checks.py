"""The checks of the reward audit: each takes all scored cases and gives one finding, with the pairs that show it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tasks.findings import Finding, Status
from tasks.rewards.cases import Family
from tasks.rewards.report import Pair, Row
from tasks.rewards.spec import RewardSpec

SLOW_S = 0.010
"""A completion should be scored in this time by each function."""

TOO_SLOW_S = 1.0
"""And must be scored in this time: 64 completions a step would otherwise take a minute."""

SAME = 1e-6
"""Scores closer than this are equal; TRL keeps rewards in single precision."""


Check = Callable[[str, list[Row], Sequence[RewardSpec]], tuple[Finding, list[Pair]]]


def _pairs(
    rows: Iterable[Row], higher: Iterable[Family], lower: Iterable[Family], *, strictly: bool
) -> list[Pair] | None:
    """Pairs of one problem in the wrong order, worst first; None when nothing could be compared.

    For each row only the worst partner is listed: the lowest of the family that should be higher.
    """
    by_gold: dict[str, list[Row]] = {}
    for row in rows:
        if row.total is not None:
            by_gold.setdefault(row.gold, []).append(row)
    high, low = frozenset(higher), frozenset(lower)
    wrong_way: list[Pair] = []
    compared = False
    for group in by_gold.values():
        tops = [row for row in group if row.case.family in high]
        if not tops:
            continue
        floor = min(tops, key=lambda row: row.score)
        for row in group:
            if row.case.family in low:
                compared = True
                gap = row.score - floor.score
                if gap > SAME or (strictly and gap > -SAME):
                    wrong_way.append(Pair(floor, row))
    return sorted(wrong_way, key=lambda pair: pair.gap, reverse=True) if compared else None


def _order_finding(name: str, pairs: list[Pair] | None, what: str, fix: str) -> tuple[Finding, list[Pair]]:
    if pairs is None:
        return Finding(name, "not_measured", "no completion could be scored"), []
    if not pairs:
        return Finding(name, "ok", what), []
    return Finding(name, "fail", _sentences(pairs), fix), pairs


def _sentences(pairs: Sequence[Pair]) -> str:
    """The worst pair of each family and then of each case, three at most, and how many more there are."""
    by_family = {pair.worse.case.family: pair for pair in reversed(pairs)}
    by_case = {pair.worse.case.name: pair for pair in reversed(pairs)}
    chosen = list({id(pair): pair for pair in [*by_family.values(), *by_case.values()]}.values())
    chosen = sorted(chosen[:3] if len(by_family) >= 3 else chosen, key=lambda pair: pair.gap, reverse=True)[:3]
    more = len(pairs) - len(chosen)
    return "; ".join(pair.sentence() for pair in chosen) + (f"; and {more} more" if more else "")


def _right_above_wrong(name: str, rows: list[Row], _: Sequence[RewardSpec]) -> tuple[Finding, list[Pair]]:
    below = (Family.WRONG, Family.HEDGED, Family.MALFORMED)
    pairs = _pairs(rows, [Family.RIGHT], below, strictly=True)
    fix = "grade the extracted answer by value, not by string or distance (preset: sound)"
    return _order_finding(name, pairs, "every right spelling is above everything else", fix)


def _wrong_above_hedged(name: str, rows: list[Row], _: Sequence[RewardSpec]) -> tuple[Finding, list[Pair]]:
    pairs = _pairs(rows, [Family.WRONG], [Family.HEDGED], strictly=False)
    fix = "accept one finished value only; a list, hedge, repeated block or expression gets no more than a wrong answer"
    return _order_finding(name, pairs, "no list, hedge, duplicate or unfinished answer beats an honest wrong one", fix)


def _wrong_above_malformed(name: str, rows: list[Row], _: Sequence[RewardSpec]) -> tuple[Finding, list[Pair]]:
    pairs = _pairs(rows, [Family.WRONG], [Family.MALFORMED], strictly=False)
    fix = "read the answer only between the answer tags and after the working; echo, spam and swapped tags get nothing"
    return _order_finding(name, pairs, "no echo, spam, draft or swapped tag beats an honest wrong answer", fix)


def _longer_never_higher(name: str, rows: list[Row], _: Sequence[RewardSpec]) -> tuple[Finding, list[Pair]]:
    known = {(row.gold, row.case.name): row for row in rows if row.total is not None}
    longer = [row for row in known.values() if row.case.base]
    compared = [Pair(known[row.gold, row.case.base], row) for row in longer if (row.gold, row.case.base) in known]
    pairs = sorted((pair for pair in compared if pair.gap > SAME), key=lambda pair: pair.gap, reverse=True)
    fix = "do not pay for length"
    return _order_finding(name, pairs if compared else None, "filler never raises the reward", fix)


def _gold_scores_maximum(name: str, rows: list[Row], specs: Sequence[RewardSpec]) -> tuple[Finding, list[Pair]]:
    golds = [row for row in rows if row.case.name == "reference" and row.total is not None]
    if not golds:
        return Finding(name, "not_measured", "no gold answer could be scored"), []
    short = [
        f"gold {row.gold!r}: {spec.name} gives {row.values[spec.name]}, declared maximum {spec.maximum:g}"
        for row in golds
        for spec in specs
        if spec.maximum is not None and spec.weight and abs((row.values[spec.name] or 0.0) - spec.maximum) > SAME
    ]
    best = {row.gold: row for row in golds}
    comparable = (row for row in rows if row.total is not None and row.gold in best)
    beaten = [pair for row in comparable if (pair := Pair(best[row.gold], row)).gap > SAME]
    if short or beaten:
        shown = short[:3] + [pair.sentence() for pair in beaten[:3]]
        fix = "the gold itself, in the right format, must get the most"
        return Finding(name, "fail", "; ".join(shown), fix), beaten
    return Finding(name, "ok", f"all {len(golds)} golds get the maximum"), []


def _errors(rows: list[Row], *, values: bool) -> list[str]:
    """Errors that are (or are not) about a value that was returned, one text per case."""
    return [
        f"{function} {message} ({row.label()})"
        for row in rows
        for function, message in row.errors.items()
        if message.startswith("returned") == values
    ]


def _no_exception(name: str, rows: list[Row], _: Sequence[RewardSpec]) -> tuple[Finding, list[Pair]]:
    found = _errors(rows, values=False)
    if found:
        fix = "the function must return a number for every text"
        return Finding(name, "fail", f"{len(found)} of {len(rows)} cases: {found[0]}", fix), []
    return Finding(name, "ok", f"none in {len(rows)} cases"), []


def _finite(name: str, rows: list[Row], _: Sequence[RewardSpec]) -> tuple[Finding, list[Pair]]:
    found = _errors(rows, values=True)
    if found:
        fix = "return one finite number per completion"
        return Finding(name, "fail", f"{len(found)} of {len(rows)} cases: {found[0]}", fix), []
    return Finding(name, "ok", f"{len(rows)} finite values"), []


def _fast(name: str, rows: list[Row], specs: Sequence[RewardSpec]) -> tuple[Finding, list[Pair]]:
    timed = [row for row in rows if row.alone is not None]
    if not timed:
        return Finding(name, "not_measured", "no completion could be scored"), []
    slowest = max(timed, key=lambda row: row.seconds)
    per_function = slowest.seconds / len(specs)
    status: Status = "ok" if per_function <= SLOW_S else "warn" if per_function <= TOO_SLOW_S else "fail"
    evidence = f"slowest case {1000 * per_function:.2f} ms per function"
    if status == "ok":
        return Finding(name, status, evidence), []
    fix = "the trainer waits for every reward in every step"
    return Finding(name, status, f"{evidence} ({slowest.label()})", fix), []


def _deterministic(name: str, rows: list[Row], _: Sequence[RewardSpec]) -> tuple[Finding, list[Pair]]:
    timed = [row for row in rows if row.alone is not None and row.total is not None]
    if not timed:
        return Finding(name, "not_measured", "no completion could be scored"), []
    other = [row for row in timed if abs(row.score - (row.alone or 0.0)) > SAME]
    if other:
        row = other[0]
        evidence = f"{len(other)} of {len(timed)} cases: {row.total:g} in a batch, {row.alone:g} alone ({row.label()})"
        return Finding(name, "fail", evidence, "score a completion by itself, without chance or memory"), []
    return Finding(name, "ok", "same score in a batch and alone"), []


def _two_outcomes(name: str, rows: list[Row], _: Sequence[RewardSpec]) -> tuple[Finding, list[Pair]]:
    totals = sorted({round(row.score, 6) for row in rows if row.total is not None})
    if not totals:
        return Finding(name, "fail", "no completion could be scored", "see the other checks"), []
    if len(totals) == 1:
        fix = "a constant reward gives advantage 0 for ever: do the tags and the gold column fit the function?"
        return Finding(name, "fail", f"every completion gets {totals[0]:g}", fix), []
    return Finding(name, "ok", f"{len(totals)} distinct rewards from {totals[0]:g} to {totals[-1]:g}"), []


CHECKS: dict[str, Check] = {
    "no_exception": _no_exception,
    "finite": _finite,
    "two_outcomes": _two_outcomes,
    "gold_scores_maximum": _gold_scores_maximum,
    "right_above_wrong": _right_above_wrong,
    "wrong_above_hedged": _wrong_above_hedged,
    "wrong_above_malformed": _wrong_above_malformed,
    "longer_never_higher": _longer_never_higher,
    "deterministic": _deterministic,
    "fast": _fast,
}
