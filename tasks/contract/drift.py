"""Recognising a tag that is nearly the right one: wrong case, stray spaces, look-alike letters, shortened names."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher
from itertools import islice

_LOOKALIKE = str.maketrans(
    "ΑΒΕΖΗΙΚΜΝΟΡΤΥΧοαικνρυχАВЕКМНОРСТУХавекмнорстухѕіјЅІЈ",
    "ABEZHIKMNOPTYXoaikvpuxABEKMHOPCTYXabekmhopctyxsijSIJ",
)
_TAG_LIKE = re.compile(
    r"(?:[<\[{〈《＜［｛【]|&lt;)[^<>\[\]{}\n〈〉《》＜＞]{1,48}?(?:[>\]}〉》＞］｝】]|&gt;|$|(?=[<\n]))"
)
ANSWER_NAMES = frozenset(("answer", "solution", "finalanswer", "final", "result", "response", "output"))
_SCAN_CHARS = 4000
_MAX_PIECES = 200
_SIMILAR = 0.8


def core(tag: str) -> tuple[bool, str]:
    """(is a closing tag, letters and digits of a tag with case and look-alikes folded away)."""
    folded = (
        unicodedata.normalize("NFKC", tag.replace("&lt;", "<").replace("&gt;", ">")).translate(_LOOKALIKE).casefold()
    )
    closing = "/" in folded[:4] or "\\" in folded[:4]
    return closing, "".join(ch for ch in folded if ch.isalnum())


def tag_like(text: str) -> Iterator[tuple[str, int]]:
    """Pieces of a text that have the shape of a tag, each with its place; at most 200, from the last few thousand characters."""
    skipped = max(0, len(text) - _SCAN_CHARS)
    for found in islice(_TAG_LIKE.finditer(text[skipped:]), _MAX_PIECES):
        yield found.group(), skipped + found.start()


def find_drift(text: str, missing: Iterable[str], tags: Iterable[str]) -> str | None:
    """The first piece of `text` that looks like one of the `missing` tags without being any of `tags`, or None.

    Only the last few thousand characters are read: that is where an answer stands.
    """
    known = tuple(tags)
    names = {core(tag)[1] for tag in known}
    wanted = [core(tag) for tag in missing]
    for piece, _ in tag_like(text):
        if piece.strip() in known:
            continue
        closing, name = core(piece)
        if len(name) < 3 or name.isdigit():
            continue
        if name in names or any(_resembles(closing, name, want_closing, want) for want_closing, want in wanted):
            return piece
    return None


def _resembles(closing: bool, name: str, want_closing: bool, want: str) -> bool:
    if closing != want_closing or len(want) < 3:
        return False
    if want.startswith(name) or (name.startswith(want) and len(name) <= len(want) + 4):
        return True
    if want in ANSWER_NAMES and name in ANSWER_NAMES:
        return True
    return SequenceMatcher(None, name, want, autojunk=False).ratio() >= _SIMILAR
