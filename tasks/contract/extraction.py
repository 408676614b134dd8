"""Where the answer stands in a completion, and what is wrong with its tags if it cannot be read.

The prompt ends with `reasoning_start`, so a completion is: working, `reasoning_end`, `answer_start`, answer,
`answer_end`. The answer is read after the end of the working; an answer block inside the working is a draft.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pipeline_config.contract import ContractConfig
from tasks.contract.drift import find_drift
from tasks.contract.kinds import Kind

_END_MARK = re.compile(r"\s*(<\|[^|<>]{1,40}\|>|</s>|<eos>|<pad>|<end_of_turn>|<｜[^｜<>]{1,40}｜>)\s*\Z")
_MARK_ENDS = ("|>", "｜>", "</s>", "<eos>", "<pad>", "<end_of_turn>")
_MARK_TAIL = 400
_MAX_ANSWER_TAGS = 4
"""Occurrences of one answer tag, drafts included, above which it is spam."""


@dataclass(frozen=True)
class Extraction:
    """The answer span, or the reason why there is none."""

    span: str | None
    """Text between the answer tags, not stripped; None when no answer can be read."""
    kind: Kind | None
    """None when there is a span; otherwise the malformation."""
    well_formed: bool
    """Optional `reasoning_start`, working, `reasoning_end`, one answer block, and only whitespace elsewhere."""
    spans: tuple[str, ...] = ()
    """All answer blocks after the working; more than one only when the block was repeated."""
    detail: str = ""
    """For `tag_drift`, what was written instead of the tag."""


def extract(completion: str, contract: ContractConfig) -> Extraction:
    """Find the answer of a completion. Linear in its length; never raises.

    Two answer blocks are returned as two `spans` (grading decides whether they say the same); more tags are spam.
    """
    text = strip_end_marks(completion, contract)
    start, end = contract.reasoning_start, contract.reasoning_end
    opens, closes = contract.answer_start, contract.answer_end
    ends = text.count(end)
    if ends > 1 or text.count(start) > 1:
        return _malformed(Kind.DUPLICATED)
    if text.count(opens) > _MAX_ANSWER_TAGS or text.count(closes) > _MAX_ANSWER_TAGS:
        return _malformed(Kind.DUPLICATED)
    if not ends:
        return _without_working_end(text, contract)
    working, _, after = text.partition(end)
    n_open, n_close = after.count(opens), after.count(closes)
    if n_open > 2 or n_close > 2:
        return _malformed(Kind.DUPLICATED)
    if n_open == 0 or n_close == 0:
        return _without_block(working, after, contract)
    first_open = after.find(opens)
    if after.find(closes) < first_open:
        return _malformed(Kind.MISORDERED)
    spans = _blocks(after, opens, closes)
    if spans is None:
        return _malformed(Kind.DUPLICATED)
    tail = after[after.rfind(closes) + len(closes) :]
    well_formed = (
        n_open == n_close == 1
        and not after[:first_open].strip()
        and not tail.strip()
        and _clean_working(working, contract)
        and not any(tag in spans[0] for tag in contract.tags)
    )
    return Extraction(span=spans[-1], kind=None, well_formed=well_formed, spans=spans)


def strip_end_marks(text: str, contract: ContractConfig) -> str:
    """`text` without end-of-turn or padding tokens that were decoded at its end (`<|im_end|>`, `</s>`)."""
    tail = text[-_MARK_TAIL:]
    kept = len(tail)
    while tail[:kept].rstrip().endswith(_MARK_ENDS):
        found = _END_MARK.search(tail, 0, kept)
        if not found or found.group(1) in contract.tags:
            break
        kept = found.start()
    return text[: len(text) - len(tail) + kept]


def last_block(text: str, contract: ContractConfig) -> str | None:
    """The last complete answer block anywhere in a text, working included; for lenient reading only."""
    close = text.rfind(contract.answer_end)
    if close < 0:
        return None
    opened = text.rfind(contract.answer_start, 0, close)
    return None if opened < 0 else text[opened + len(contract.answer_start) : close]


def _blocks(after: str, opens: str, closes: str) -> tuple[str, ...] | None:
    """The one or two answer blocks; None when the tags are neither in sequence nor doubled with only blanks between."""
    if after.count(opens) == after.count(closes) == 1:
        return (after[after.find(opens) + len(opens) : after.find(closes)],)
    pieces = re.split(f"({re.escape(opens)}|{re.escape(closes)})", after)
    texts, marks = pieces[2:-1:2], "".join("(" if piece == opens else ")" for piece in pieces[1::2])
    if marks == "()()":
        return texts[0], texts[2]
    inner = marks.find("()")
    doubled = [text for at, text in enumerate(texts) if at != inner]
    if marks not in ("()", "(()", "())", "(())") or any(text.strip() for text in doubled):
        return None
    return (texts[inner],)


def _clean_working(working: str, contract: ContractConfig) -> bool:
    """No tag in the working, save `reasoning_start` at its very beginning."""
    start = contract.reasoning_start
    body = working.lstrip()
    if body.startswith(start):
        body = body[len(start) :]
    return start not in body and contract.answer_start not in body and contract.answer_end not in body


def _malformed(kind: Kind, detail: str = "") -> Extraction:
    return Extraction(span=None, kind=kind, well_formed=False, detail=detail)


def _without_working_end(text: str, contract: ContractConfig) -> Extraction:
    has_open, has_close = contract.answer_start in text, contract.answer_end in text
    missing = [contract.reasoning_end]
    if not has_open:
        missing.append(contract.answer_start)
    if not has_close:
        missing.append(contract.answer_end)
    drift = find_drift(text, missing, contract.tags)
    if drift is not None:
        return _malformed(Kind.TAG_DRIFT, drift)
    if has_open and has_close:
        return _malformed(Kind.MISORDERED)
    return _malformed(Kind.UNCLOSED if has_open else Kind.NO_ANSWER)


def _without_block(working: str, after: str, contract: ContractConfig) -> Extraction:
    has_open, has_close = contract.answer_start in after, contract.answer_end in after
    missing = [tag for tag, seen in ((contract.answer_start, has_open), (contract.answer_end, has_close)) if not seen]
    drift = find_drift(after, missing, contract.tags)
    if drift is not None:
        return _malformed(Kind.TAG_DRIFT, drift)
    if has_open:
        return _malformed(Kind.UNCLOSED)
    if contract.answer_start in working and (has_close or contract.answer_end in working):
        return _malformed(Kind.MISORDERED)
    return _malformed(Kind.NO_ANSWER)
