"""Contamination: how much of each evaluation problem occurs word for word in the training tables.

Word n-grams after `tasks.dataset.problem.normalise` (Unicode NFKC, no case, no punctuation or spacing, operators kept) and
without brackets, which a copy may set otherwise. A question too short for an n-gram is compared as a whole, brackets and all.
The n-grams of the evaluation problems are held in memory and the training texts stream past them, so the cost grows with
the training text and the memory with the evaluation sets. Nothing is removed: what is found is reported per problem.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tasks.dataset.brackets import is_bracket
from tasks.dataset.problem import tokens_of

Gram = tuple[int, ...]

_CJK = re.compile(r"([\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff])")


def words_of(text: str) -> list[str]:
    """Normalised words without brackets; a Chinese, Japanese or Korean character is a word of its own."""
    return _without_brackets(_split(text))


def _split(text: str) -> list[str]:
    tokens = tokens_of(text)
    return tokens if text.isascii() else _CJK.sub(r" \1 ", " ".join(tokens)).split()


def _without_brackets(tokens: list[str]) -> list[str]:
    return [token for token in tokens if not is_bracket(token)]


@dataclass
class Overlap:
    """Looks for the n-grams of some questions in training texts.

    Attributes:
        n: words of an n-gram. A question with fewer words is found only as a whole training question.
    """

    n: int
    vocabulary: dict[str, int] = field(default_factory=dict)
    grams: dict[str, list[Gram]] = field(default_factory=dict)
    """Question -> its distinct n-grams; for a short question its words alone."""
    seen: dict[Gram, tuple[str, str] | None] = field(default_factory=dict)
    """n-gram of any question -> (table, row id) where it was first found."""

    def add(self, question: str) -> None:
        """Look for this question, too."""
        if question in self.grams:
            return
        tokens = _split(question)
        words = _without_brackets(tokens)
        whole = len(words) < self.n
        ids = tuple(self.vocabulary.setdefault(word, len(self.vocabulary)) for word in (tokens if whole else words))
        windows = [ids] if whole else [ids[i : i + self.n] for i in range(len(ids) - self.n + 1)]
        self.grams[question] = list(dict.fromkeys(windows))
        self.seen.update(dict.fromkeys(self.grams[question]))

    def scan(self, table: str, row: str, question: str, working: str = "") -> None:
        """Note what a training row holds."""
        for text in (question, working):
            tokens = _split(text) if text else []
            ids = [self.vocabulary.get(word, -1) for word in _without_brackets(tokens)]
            if text is question and len(ids) < self.n:
                self._note(tuple(self.vocabulary.get(token, -1) for token in tokens), table, row)
            start = 0
            for end, word in enumerate(ids, 1):
                # No n-gram with a word that no question has can match.
                start = end if word < 0 else start
                if end - start >= self.n:
                    self._note(tuple(ids[end - self.n : end]), table, row)

    def _note(self, gram: Gram, table: str, row: str) -> None:
        if gram in self.seen and self.seen[gram] is None:
            self.seen[gram] = (table, row)

    def found(self, question: str) -> tuple[float, str | None, str | None]:
        """(share of the question's n-grams that occur in training, table and row id that first held most of them)."""
        grams = self.grams[question]
        places = Counter(place for gram in grams if (place := self.seen[gram]) is not None)
        if not places:
            return 0.0, None, None
        (table, row), _ = places.most_common(1)[0]
        return sum(places.values()) / len(grams), table, row


def overlaps(rows: Sequence[Mapping[str, Any]], index: Overlap, share: float) -> list[dict[str, Any]]:
    """One row per problem: `id`, `overlap` (0 to 1), `contaminated` (overlap reaches `share`), `table` and `row`."""
    found = []
    for row in rows:
        overlap, table, place = index.found(row["question"])
        found.append(
            {
                "id": row["id"],
                "overlap": round(overlap, 4),
                "contaminated": overlap >= share,
                "table": table,
                "row": place,
            }
        )
    return found


def scan_tables(index: Overlap, tables: Mapping[str, Iterable[Mapping[str, Any]]]) -> int:
    """Scan rows with `id`, `question` and perhaps `working` of every table; returns how many there were."""
    count = 0
    for name, rows in tables.items():
        for row in rows:
            index.scan(name, row["id"], row["question"], row.get("working") or "")
            count += 1
    return count
