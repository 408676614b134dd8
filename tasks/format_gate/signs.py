"""Signs in a completion that say that the format fails because of the chat template, not for want of training."""

from __future__ import annotations

import re

from pipeline_config.contract import ContractConfig
from tasks.contract.extraction import extract, strip_end_marks

_TURN = re.compile(
    r"<\|[^|<>\n]{1,40}\|>|<｜[^｜<>\n]{1,40}｜>|\[/?INST\]|</?s>|<(?:start|end)_of_turn>"
    r"|^\s*(?:user|assistant|system|human)\s*:?\s*$",
    re.MULTILINE | re.IGNORECASE,
)


def template_sign(text: str, contract: ContractConfig, *, truncated: bool, other_special: bool = False) -> str | None:
    """What in a completion points to the chat template or the end-of-turn token, not to too little training; or None.

    `ended_at_once`: nothing was written; the prompt does not leave the model at the start of an answer.
    `other_turn`: marks of another turn, or `other_special`: special tokens that are neither EOS nor padding, which the trainer's decode hides.
    `run_on`: the whole format was written, and the model went on to the length limit: what ends a turn is not the EOS that sampling waits for.
    """
    kept = strip_end_marks(text, contract)
    if not kept.strip() and not truncated:
        return "ended_at_once"
    for tag in contract.tags:
        kept = kept.replace(tag, " ")
    if other_special or _TURN.search(kept):
        return "other_turn"
    end = text.find(contract.answer_end)
    if truncated and end >= 0 and extract(text[: end + len(contract.answer_end)], contract).well_formed:
        return "run_on"
    return None
