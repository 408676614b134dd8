"""What was written instead of each tag: the confusion of the format, counted by tag and kind, each with an example."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Any

from pipeline_config.contract import ContractConfig
from tasks.contract.drift import ANSWER_NAMES, core, tag_like
from tasks.contract.extraction import strip_end_marks

TAGS = ("reasoning_end", "answer_start", "answer_end")
"""Tags that a completion has to write; `reasoning_start` stands at the end of the prompt."""
MISSPELT = 0.34
"""Largest normalised edit distance between the letters of a piece and of a tag: one letter in three may differ."""
EXAMPLE_CHARS = 60
"""Characters of a completion shown on each side of what was written."""
MAX_FORMS = 20
"""Different wrong forms listed per tag, the most frequent ones."""


def edit_distance(a: str, b: str) -> float:
    """Levenshtein distance over the longer length: 0 for equal texts, 1 for texts with nothing in common."""
    if not a and not b:
        return 0.0
    row = list(range(len(b) + 1))
    for i, left in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, right in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (left != right))
    return row[-1] / max(len(a), len(b))


def kind_of(piece: str, tag: str) -> str | None:
    """How a piece that looks like a tag departs from `tag`; None when it is none of its forms.

    `case` (<solution>), `spacing` (< SOLUTION >), `escaped` (&lt;SOLUTION&gt;), `look_alike` (Greek or Cyrillic letters), `brackets`
    ([SOLUTION]), `broken` (<SOLUTION without its end), `punctuation` (<\\SOLUTION>), `shortened` (<SOL>), `renamed` (<answer>),
    `misspelt` (<SOLUTOIN>).
    """
    (closing, name), (want_closing, want) = core(piece), core(tag)
    if closing != want_closing or len(name) < 3:
        return None
    if name == want:
        return _same_letters(piece, tag)
    if name.startswith(want) and piece.rstrip()[-1:] != tag[-1:]:
        return "broken"
    if want.startswith(name) and piece.rstrip()[-1:] == tag[-1:]:
        return "shortened"
    if edit_distance(name, want) <= MISSPELT:
        return "misspelt"
    return "renamed" if name in ANSWER_NAMES and want in ANSWER_NAMES else None


def _same_letters(piece: str, tag: str) -> str:
    if "&lt;" in piece or "&gt;" in piece:
        return "escaped"
    if piece.casefold() == tag.casefold():
        return "case"
    if "".join(piece.split()).casefold() == tag.casefold():
        return "spacing"
    if any(ord(ch) > 127 and unicodedata.category(ch)[0] == "L" for ch in piece):
        return "look_alike"
    if piece[:1] != tag[:1]:
        return "brackets"
    if piece[-1:] != tag[-1:]:
        return "broken"
    return "punctuation"


def forms_in(text: str, contract: ContractConfig) -> dict[str, tuple[str, str, int]]:
    """Tag name -> (kind, what was written, where) of the first wrong form of each of the four tags in a text.

    A piece is a form of the tag that it is nearest to by edit distance.
    """
    names = ("reasoning_start", *TAGS)
    tags = {name: str(getattr(contract, name)) for name in names}
    found: dict[str, tuple[str, str, int]] = {}
    for piece, at in tag_like(text):
        if piece.strip() in tags.values():
            continue
        kinds = {name: kind for name, tag in tags.items() if (kind := kind_of(piece, tag))}
        if kinds:
            letters = core(piece)[1]
            nearest = min(kinds, key=lambda name: edit_distance(letters, core(tags[name])[1]))
            found.setdefault(nearest, (kinds[nearest], piece.strip(), at))
    return found


def confusion(texts: Sequence[str], truncated: Sequence[bool], contract: ContractConfig) -> dict[str, dict[str, Any]]:
    """Per tag, what became of it in each completion.

    Args:
        texts: completions as the trainer decodes them.
        truncated: whether each hit the length limit.

    Returns:
        tag name -> `tag`, and counts that sum to the completions: `right` (once), `repeated`, `instead` (kind -> count), `cut`
        (not there, and truncated), `missing`. `forms` lists what was written instead: kind, form, count and an example.
    """
    result: dict[str, dict[str, Any]] = {}
    seen: dict[str, Counter[tuple[str, str]]] = {name: Counter() for name in TAGS}
    examples: dict[tuple[str, str, str], str] = {}
    for name in TAGS:
        result[name] = {"tag": getattr(contract, name), "right": 0, "repeated": 0, "cut": 0, "missing": 0}
    for raw, was_cut in zip(texts, truncated, strict=True):
        text = strip_end_marks(raw, contract)
        counts = {name: text.count(getattr(contract, name)) for name in TAGS}
        forms = forms_in(text, contract) if 0 in counts.values() else {}
        for name, count in counts.items():
            if count:
                result[name]["right" if count == 1 else "repeated"] += 1
            elif name in forms:
                kind, form, at = forms[name]
                seen[name][kind, form] += 1
                examples.setdefault((name, kind, form), _around(text, at, len(form)))
            else:
                result[name]["cut" if was_cut else "missing"] += 1
    for name in TAGS:
        kinds: Counter[str] = Counter()
        for (kind, _), count in seen[name].items():
            kinds[kind] += count
        result[name]["instead"] = dict(sorted(kinds.items()))
        result[name]["forms"] = [
            {"kind": kind, "form": form, "count": count, "example": examples[name, kind, form]}
            for (kind, form), count in sorted(seen[name].items(), key=lambda item: (-item[1], item[0]))[:MAX_FORMS]
        ]
    return result


def _around(text: str, at: int, length: int) -> str:
    """The piece at `at` with what stands around it."""
    start, end = max(0, at - EXAMPLE_CHARS), min(len(text), at + length + EXAMPLE_CHARS)
    return ("…" if start else "") + text[start:end] + ("…" if end < len(text) else "")


def systematic(tags: dict[str, dict[str, Any]]) -> tuple[str, dict[str, Any]] | None:
    """(tag name, form) when one and the same wrong form stands where a tag is not right, in at least half of these completions.

    A model that is still learning a tag misses it in many ways; one that was taught another tag, or whose tokenizer alters it, always in the
    same way. The tag itself must be the exception (right in fewer completions than the form).
    """
    for name, item in tags.items():
        not_right = item["cut"] + item["missing"] + item["repeated"] + sum(item["instead"].values())
        if item["forms"] and item["forms"][0]["count"] >= max(1, not_right / 2, item["right"]):
            return name, item["forms"][0]
    return None
