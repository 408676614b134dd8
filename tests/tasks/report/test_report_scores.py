"""What the report says about evaluation: paired gains, pass rates, flips; and reading rows that may be damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tasks.report.run_files import read_json, read_jsonl, series
from tasks.report.scores import difference, differences, flips, histogram, histogram_labels, pass_rates


def item(name: str, right: bool, sampled: int | None = None, samples: int = 4) -> dict[str, Any]:
    made = {
        **dict.fromkeys(("id", "question", "completion"), name),
        "answer": "1",
        **dict.fromkeys(("right", "lenient", "well_formed"), right),
    }
    return made if sampled is None else {**made, "sampled_right": sampled, "samples": samples}


def test_difference_on_common_items_only() -> None:
    before = [item("a", False, 1), item("b", True, 4), item("only before", True, 4)]
    after = [item("a", True, 3), item("b", True, 4), item("only after", False, 0)]
    found = difference(before, after)
    assert (found["n"], found["gained"], found["lost"], found["p"]) == (2, 1, 0, 1.0)
    assert list(found["gains"]) == ["strict", "pass_at_1", "ability", "format_part"]
    assert found["gains"]["strict"]["gain"] == found["gains"]["ability"]["gain"] == 0.5
    assert found["gains"]["pass_at_1"]["gain"] == pytest.approx(0.25)
    assert difference(before, [item("c", True)]) == {"n": 0}
    assert differences({"sft": before, "grpo": [item("c", True)]}) == []
    # Without samples there is no pass@1.
    assert "pass_at_1" not in difference([item("a", True)], [item("a", True)])["gains"]


def test_histogram() -> None:
    assert histogram([0, 0, 1, 4, 4, 4], 4) == [2, 1, 0, 0, 3]
    assert histogram_labels(4) == ["0/4", "1/4", "2/4", "3/4", "4/4"]
    # 32 samples: ten bars; 3/32 = 9.4 % in the first, 4/32 = 12.5 % in the second, 32/32 in the last.
    assert histogram([0, 3, 4, 31, 32], 32) == [2, 1, 0, 0, 0, 0, 0, 0, 0, 2]
    assert histogram_labels(32)[0] == "0–10%" and len(histogram_labels(32)) == 10


def test_pass_rates_need_the_same_number_of_samples() -> None:
    shown = pass_rates({"sft": [item("a", True, 2)], "grpo": [item("a", True, 4)]})
    assert shown and shown["models"] == {"sft": [0, 0, 1, 0, 0], "grpo": [0, 0, 0, 0, 1]} and shown["n"] == 1
    assert pass_rates({"sft": [item("a", True, 2)], "grpo": [item("a", True, 4, 8)]}) is None
    assert pass_rates({"sft": [item("a", True)]}) is None


def test_flips_in_both_directions() -> None:
    before = [item(f"{i}", i < 10) for i in range(20)]
    after = [item(f"{i}", i >= 10 or i < 8) for i in range(20)]
    found = flips(before, after)
    assert (found["gained_total"], found["lost_total"]) == (10, 2)
    assert [flip["question"] for flip in found["lost"]] == ["8", "9"] and len(found["gained"]) == 6
    assert found["lost"][0]["before"]["kind"] == "right" and found["lost"][0]["after"]["kind"] == "wrong"


def test_rows_that_cannot_be_read_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"step": 1}\n\n[1]\nnull\n{"step": 2, "text": "\xe2\x80\xa8"}\n\xff\n{"st')
    assert [row["step"] for row in read_jsonl(path)] == [1, 2]
    assert read_jsonl(path, limit=1) == [{"step": 1}]
    assert read_jsonl(tmp_path / "none") == []
    path.write_text("[" * 100_000)
    assert read_jsonl(path) == [] and read_json(path) is None and read_json(tmp_path) is None


def test_series_leaves_gaps_out() -> None:
    rows = [
        {"step": 1, "a": 1},
        {"step": 2, "a": None},
        {"step": 3, "a": "text"},
        {"step": 4, "a": True},
        {"step": 5, "a": float("nan")},
        {"a": 7},
        {"step": None, "a": 8},
        {"step": 6, "a": 2.5},
    ]
    assert series(rows, "a") == [(1.0, 1.0), (6.0, 2.5)]
