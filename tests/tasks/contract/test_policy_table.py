"""The policy tables of docs/answers.md say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipeline_config.contract import ContractConfig
from tasks.contract.grading import Kind, grade

DOC = Path(__file__).resolve().parents[3] / "docs" / "answers.md"
CONTRACT = ContractConfig()
S, E, A, Z = CONTRACT.tags


def policy_rows() -> list[tuple[str, str, str]]:
    rows, inside = [], False
    for line in DOC.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            inside = line in ("## Policy: numbers", "## Policy: words, units, equations")
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not inside or len(cells) != 4 or cells[0] == "text" or set(cells[0]) == {"-"}:
            continue
        texts, golds = (re.findall(r"`([^`]+)`", cell) for cell in cells[:2])
        pairs = zip(texts, golds, strict=True) if len(texts) == len(golds) else ((t, g) for t in texts for g in golds)
        rows += [(text, gold, cells[2]) for text, gold in pairs]
    return rows


ROWS = policy_rows()


def test_the_tables_are_found() -> None:
    assert len(ROWS) > 80
    assert {verdict for _, _, verdict in ROWS} <= {"not right", *map(str, Kind)}


@pytest.mark.parametrize(("text", "gold", "verdict"), ROWS)
def test_policy(text: str, gold: str, verdict: str) -> None:
    kind = grade(f"w{E}{A}{text}{Z}", gold, CONTRACT).kind
    if verdict == "not right":
        assert kind is not Kind.RIGHT
    else:
        assert kind == verdict
