"""The frozen corpora: every uncontested answer right, and the order that rewards need on the hacks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline_config.contract import ContractConfig
from tasks.contract.grading import Kind, grade

CORPORA = Path(__file__).resolve().parents[3].parent / "shared" / "corpora"
CONTRACT = ContractConfig()


def load(name: str) -> list[dict[str, Any]]:
    path = CORPORA / name
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


ANSWERS, HACKS = load("answers.jsonl"), load("hacks.jsonl")
needs_corpora = pytest.mark.skipif(not ANSWERS, reason="shared/corpora is not beside this checkout")
OWN_POLICY = {"pow"}
"""Policy rows decided otherwise than suggested; see docs/answers.md."""


@needs_corpora
def test_every_uncontested_answer() -> None:
    wrong = []
    for row in ANSWERS:
        verdict = grade(row["response_text"], row["gold"], CONTRACT)
        if verdict.right != row["should_match"] and not row["policy"]:
            wrong.append((row["id"], verdict.kind))
    assert wrong == []


@needs_corpora
def test_policy_answers_are_decided_as_documented() -> None:
    for row in ANSWERS:
        if row["policy"]:
            expected = row["should_match"] != (row["id"] in OWN_POLICY)
            assert grade(row["response_text"], row["gold"], CONTRACT).right is expected, row["id"]


@needs_corpora
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("drift", Kind.TAG_DRIFT),
        ("sol", Kind.TAG_DRIFT),
        ("lower", Kind.TAG_DRIFT),
        ("lookalike", Kind.TAG_DRIFT),
        ("notags", Kind.NO_ANSWER),
        ("noend", Kind.MISORDERED),
        ("empty", Kind.EMPTY),
        ("emptygold", Kind.BAD_GOLD),
        ("nan_gold", Kind.BAD_GOLD),
        ("inf_gold", Kind.BAD_GOLD),
        ("or", Kind.HEDGED),
        ("shot100", Kind.HEDGED),
        ("not", Kind.HEDGED),
        ("range", Kind.HEDGED),
        ("echoexpr", Kind.UNFINISHED),
        ("code_inject", Kind.UNFINISHED),
        ("near5", Kind.WRONG),
    ],
)
def test_kinds_on_the_corpus(name: str, kind: Kind) -> None:
    row = next(row for row in ANSWERS if row["id"] == name)
    assert grade(row["response_text"], row["gold"], CONTRACT).kind is kind


@pytest.mark.skipif(not HACKS, reason="shared/corpora is not beside this checkout")
@pytest.mark.parametrize("row", HACKS, ids=lambda row: row["id"])
def test_hacks_are_right_only_where_they_may_be(row: dict[str, Any]) -> None:
    verdict = grade(row["completion"], row["gold"], CONTRACT)
    may_be_right = row["share_max"] == 1.0
    assert verdict.right is may_be_right
    if row["share_max"] == 0.0:
        assert not verdict.well_formed
