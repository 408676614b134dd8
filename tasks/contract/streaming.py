"""A completion cut into reasoning and answer while it is still being written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from pipeline_config.contract import ContractConfig

Part = Literal["reasoning", "between", "answer", "after"]


def parts(pieces: Iterable[str], contract: ContractConfig) -> Iterator[tuple[Part, str]]:
    """(part, text) as the pieces of a completion come in; the tags are left out.

    A completion begins within the reasoning, because the prompt ends with `reasoning_start`. Text that could be the
    beginning of the next tag is held back until it is known; without a tag everything is reasoning. How the completion is
    cut into pieces does not change the text of a part.
    """
    steps: list[tuple[Part, str]] = [
        ("reasoning", contract.reasoning_end),
        ("between", contract.answer_start),
        ("answer", contract.answer_end),
    ]
    held = ""
    for piece in pieces:
        held += piece
        while steps:
            part, tag = steps[0]
            text, found, rest = held.partition(tag)
            if not found:
                break
            if text:
                yield part, text
            steps.pop(0)
            held = rest
        part, tag = steps[0] if steps else ("after", "")
        keep = _possible_tag(held, tag)
        ready, held = held[: len(held) - keep], held[len(held) - keep :]
        if ready:
            yield part, ready
    if held:
        yield steps[0][0] if steps else "after", held


def _possible_tag(text: str, tag: str) -> int:
    """Length of the longest end of `text` that is a beginning of `tag`, but not all of it."""
    for size in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:size]):
            return size
    return 0
