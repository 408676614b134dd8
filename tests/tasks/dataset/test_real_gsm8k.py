"""The real GSM8K, where it is at hand: every row parses, and the counts are those that were published with it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from pipeline_config.contract import ContractConfig
from pipeline_config.data import DataConfig
from pipeline_config.sources import FileSource
from tasks.contract.answers import parse_answer
from tasks.dataset.build import build
from tasks.dataset.pools import read_pool
from tasks.dataset.problem import Problem, gold_in_question
from tasks.dataset.ruler import Limits, Ruler, gold_check
from tasks.dataset.sources import problems

FOLDER = Path(__file__).resolve().parents[4] / "shared" / "data" / "gsm8k"
TEST = FileSource(url=str(FOLDER / "test.jsonl"), layout="gsm8k")
TRAIN = FileSource(url=str(FOLDER / "train.jsonl.gz"), layout="gsm8k")

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="GSM8K is not at hand (../shared/data/gsm8k)")


@pytest.fixture(scope="module")
def test_rows() -> list[Problem]:
    return list(problems(TEST, Counter()))


@pytest.fixture(scope="module")
def train_rows() -> list[Problem]:
    return list(problems(TRAIN, Counter()))


def test_counts_of_golds(test_rows: list[Problem], train_rows: list[Problem]) -> None:
    assert (len(test_rows), len(train_rows)) == (1319, 7473)
    for rows, commas, negative, zero in ((test_rows, 14, 2, 0), (train_rows, 79, 3, 1)):
        golds = [row.gold for row in rows]
        assert all(re.fullmatch(r"-?[\d,]+", gold) for gold in golds)
        assert sum("," in gold for gold in golds) == commas
        assert sum(gold.startswith("-") for gold in golds) == negative
        assert golds.count("0") == zero
        values = [parse_answer(gold) for gold in golds]
        assert all(value is not None and value.fraction is not None for value in values)


def test_workings_have_neither_marks_nor_gold_line(test_rows: list[Problem]) -> None:
    for row in test_rows:
        assert row.working
        assert "<<" not in row.working
        assert "####" not in row.working


def test_every_gold_of_the_test_split_checks_itself(test_rows: list[Problem]) -> None:
    check = gold_check(ContractConfig())
    assert [row.where for row in test_rows if check(row)] == []


def test_no_repeats_and_no_overlap() -> None:
    pools = [read_pool(source) for source in (TEST, TRAIN)]
    assert [pool.counts for pool in pools] == [{"read": 1319}, {"read": 7473}]
    one, other = ({digest for digest, _ in pool.entries} for pool in pools)
    assert not one & other


def test_golds_in_the_question(test_rows: list[Problem]) -> None:
    """78 by the count published with the data, which takes a number with a unit or sign at it for another one."""
    assert 78 <= sum(gold_in_question(row.gold, row.question) for row in test_rows) <= 84


def test_tables() -> None:
    ruler = Ruler(
        prompt=lambda question: len(question) // 4,
        example=lambda problem: len(problem.question + problem.working) // 4,
        check=lambda problem: "",
    )
    data = DataConfig(
        train=(TRAIN,), eval=(TEST,), eval_rows="all", train_rows="all", sft_rows=500, sft_may_repeat_train=True
    )
    built = build(data, ruler, Limits(context=2048, completion=512, eval_completion=512, sft_length=1024))
    assert built.stats["rows"] == {"eval": 1319, "gate": 64, "train": 7473 - 64, "sft": 500}
    assert built.stats["dropped"] == {
        "in_gate": 64 + sum(r["dropped"].get("in_gate", 0) for r in built.stats["sources"][3:])
    }
