"""One row per problem: what the model wrote, its marks, and counts over its sampled completions. No torch.

Every evaluation of a model makes its rows here, whatever engine wrote the completions, so that all are on one ruler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from pipeline_config.contract import ContractConfig
from tasks.contract.grading import Grade, grade, lenient
from tasks.evaluate.behaviour import behaviour_of
from tasks.evaluate.voting import majority


class Written(Protocol):
    """A completion: its text without special tokens, its length with EOS, and whether it was cut at the limit."""

    @property
    def text(self) -> str: ...
    @property
    def tokens(self) -> int: ...
    @property
    def truncated(self) -> bool: ...


def make_item(
    row: Mapping[str, Any], greedy: Written, sampled: Sequence[Written], contract: ContractConfig
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(item, rows of its sampled completions).

    Args:
        row: the problem: `id`, `question`, `answer` (the gold) and perhaps `source`.
        greedy: the completion at temperature 0.
        sampled: further completions at the sampling temperature; empty for none.

    Returns:
        The item has `id`, `question`, `answer`, `source`, `completion`, `tokens`, `truncated`, `kind`, `right` (strict),
        `well_formed`, `lenient` and `behaviour`; with samples also `samples` (their number) and, over them,
        `sampled_right`, `sampled_lenient`, `sampled_truncated`, `sampled_tokens` (mean) and `majority` (0 to 1).
    """
    gold = row["answer"]
    mark, loose = _judge(greedy, gold, contract)
    item: dict[str, Any] = {
        "id": row["id"],
        "question": row["question"],
        "answer": gold,
        "source": row.get("source", ""),
        "completion": greedy.text,
        "tokens": greedy.tokens,
        "truncated": greedy.truncated,
        "kind": str(mark.kind),
        "right": mark.right,
        "well_formed": mark.well_formed,
        "lenient": loose,
        "behaviour": behaviour_of(greedy.text),
    }
    if not sampled:
        return item, []
    judged = [_judge(completion, gold, contract) for completion in sampled]
    item |= {
        "samples": len(sampled),
        "sampled_right": sum(mark.right for mark, _ in judged),
        "sampled_lenient": sum(loose for _, loose in judged),
        "sampled_truncated": sum(completion.truncated for completion in sampled),
        "sampled_tokens": sum(completion.tokens for completion in sampled) / len(sampled),
        "majority": majority([mark for mark, _ in judged]),
    }
    rows = [
        {
            "id": row["id"],
            "sample": i,
            "completion": completion.text,
            "tokens": completion.tokens,
            "truncated": completion.truncated,
            "kind": str(mark.kind),
            "right": mark.right,
            "well_formed": mark.well_formed,
            "lenient": loose,
        }
        for i, (completion, (mark, loose)) in enumerate(zip(sampled, judged, strict=True))
    ]
    return item, rows


def _judge(completion: Written, gold: str, contract: ContractConfig) -> tuple[Grade, bool]:
    """The strict grade, and whether a lenient reading finds the gold; what is right strictly is right leniently."""
    mark = grade(completion.text, gold, contract, truncated=completion.truncated)
    return mark, mark.right or lenient(completion.text, gold, contract)
