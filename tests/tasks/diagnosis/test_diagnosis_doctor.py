"""What the user sees: one object, one text, one page."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from tasks.diagnosis.doctor import Curve, diagnose, diagnose_rows, render_html, render_text
from tasks.diagnosis.findings import Finding
from tasks.diagnosis.ranking import rank
from tasks.diagnosis.render import plot, svg
from tasks.errors import DataError


def nan_log() -> list[dict]:
    log = [
        {"step": i, "reward": 0.5 + i % 3 / 10, "reward_std": 0.3, "grad_norm": 0.2, "entropy": 0.4, "kl": 0.01}
        for i in range(1, 21)
    ]
    for row in log[14:]:
        row.update(grad_norm=math.nan, kl=None, entropy=None)
    return log


def test_json_is_strict_and_complete() -> None:
    data = json.loads(json.dumps(diagnose_rows(nan_log()).to_json(), allow_nan=False))
    assert data["verdict"] == "late_nan" and data["onset_step"] == 15 and data["rows"] == 20 and data["conclusive"]
    assert data["first_step"] and data["knob"] and data["headline"]
    assert len(data["remedies"]) == 3 and data["from_start"] is False
    assert data["curve"]["key"] == "grad_norm" and data["curve"]["values"][13:15] == [0.2, None]
    assert {"check": "truncation_spiral", "missing": "completions/clipped_ratio is not logged"} in data["not_measured"]


def test_text_names_cause_step_and_draws() -> None:
    text = render_text(diagnose_rows(nan_log()), width=80)
    assert text.startswith("late_nan: Values are not finite\n")
    assert "since about step 15 of 20" in text and "first: " in text and "knob: " in text
    assert "could help 1: back to the last good checkpoint with half the learning rate" in text
    assert "grad_norm by step" in text and "x" in text
    assert max(map(len, text.splitlines())) <= 80


def test_rows_are_called_rows_when_the_log_has_no_steps(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text(
        "\n".join("{'loss': 0.0, 'reward': -2.0, 'reward_std': 0.0, 'frac_reward_zero_std': 1.0}" for _ in range(6))
    )
    text = render_text(diagnose(path))
    assert "since about row 1 of 6" in text and "step 1" not in text


def test_html_is_one_page_without_links_and_escapes() -> None:
    page = render_html(diagnose_rows(nan_log()), '<b>"run"</b>.jsonl')
    assert page.startswith("<!doctype html>") and "<b>" not in page and "&lt;b&gt;" in page
    assert "<script" not in page and "http" not in page and "src=" not in page
    graph = re.search(r"<svg.*?</svg>", page, re.DOTALL)
    assert graph is not None
    ET.fromstring(graph.group())
    for path in re.findall(r' d="([^"]*)"', graph.group()):
        assert "nan" not in path and "inf" not in path


def test_too_few_rows_is_said() -> None:
    found = diagnose_rows(nan_log()[:3])
    assert found.verdict == "healthy" and not found.conclusive and "3 logged rows" in found.headline
    assert "too few" in render_html(found)
    assert diagnose_rows([]).rows == 0


def only(count: int, reward: Any, **more: Any) -> list[dict[str, Any]]:
    return [{"step": i + 1, "reward": reward(i) if callable(reward) else reward, **more} for i in range(count)]


@pytest.mark.parametrize(
    ("log", "verdict"),
    [
        (only(200, 0.0), "extraction_failed"),
        (only(20, -2.5), "extraction_failed"),
        (only(20, 1.0), "all_correct"),
        (only(60, 1.0, reward_std=0.0), "all_correct"),
        (only(60, 0.0, eval_accuracy=0.0), "all_wrong"),
        (only(100, lambda i: 0.01 * (i in (30, 40))), "all_wrong"),  # a hit now and then
        (only(100, lambda i: 1 - 0.01 * (i in (30, 40))), "all_correct"),
        (only(100, lambda i: 0.1 + 0.03 * (i % 3) if i < 60 else 0.0), "extraction_failed"),  # alive at first
        (only(60, 0.25, **{"rewards/sound/mean": 0.25}), "all_wrong"),  # its value for a wrong answer
        (only(60, 0.0, **{"rewards/sound/mean": 0.0}), "extraction_failed"),
        (only(60, 0.5, **{"rewards/accuracy_reward/mean": 0.5}), "extraction_failed"),  # pays neither 0 nor 1
        (only(60, lambda i: i % 7 / 7, reward_std=0.0), "entropy_collapse"),
        (only(60, lambda i: -0.1 - 1e-9 * (i % 3)), "extraction_failed"),  # means of float32
        (only(60, lambda i: -0.1 - 1e-9 * (i % 3), reward_std=7e-9), "extraction_failed"),
    ],
)
def test_a_reward_without_spread_is_a_dead_run_whatever_is_logged_beside_it(log: list[dict], verdict: str) -> None:
    found = diagnose_rows(log)
    assert (found.verdict, found.conclusive) == (verdict, True), found.headline


def test_a_constant_mean_with_spread_and_a_run_that_became_all_right_are_no_failures() -> None:
    assert not diagnose_rows(only(60, 0.0, reward_std=1.0)).failed  # for example a normalised reward
    assert not diagnose_rows(only(100, lambda i: min(1.0, 0.02 * i))).failed


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (only(60, None), "0 of 60 rows have a value of the reward"),
        (only(60, None, loss=0.1, grad_norm=0.2), "0 of 60 rows have a value of the reward"),
        (only(60, lambda i: 0.5 if i in (3, 30) else None), "2 of 60 rows have a value of the reward"),
        (only(19, 0.0), "in all 19 rows and neither reward_std nor frac_reward_zero_std is logged"),
    ],
)
def test_what_was_not_measured_is_not_called_healthy(log: list[dict], said: str) -> None:
    found = diagnose_rows(log)
    assert not found.conclusive and found.name == "not judged" and said in found.headline


def test_a_reward_that_is_no_number_is_named() -> None:
    found = diagnose_rows(only(60, math.nan))
    assert found.verdict == "late_nan" and "a reward function returned no number" in found.headline
    assert found.curve.key == "reward" and "call each reward function" in found.first_step
    assert diagnose_rows(only(60, lambda i: 0.1 * i if i < 50 else None)).onset_step == 51


def test_an_sft_log_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sft.jsonl"
    path.write_text('{"step": 1, "loss": 2.0}\n')
    with pytest.raises(DataError, match="GRPO"):
        diagnose(path)


def test_groups_fill_what_the_log_lacks(tmp_path: Path) -> None:
    log, groups = tmp_path / "m.jsonl", tmp_path / "g.jsonl"
    log.write_text("".join(f'{{"step": {s}, "reward": 1.0}}\n' for s in range(1, 7)))
    groups.write_text("".join(f'{{"prompt_id": "p", "step": {s}, "rewards": [1, 1, 1]}}\n' for s in range(1, 7)))
    assert diagnose(log).verdict == "healthy"
    assert diagnose(log, groups=groups).verdict == "all_correct"


@pytest.mark.parametrize(
    "line",
    [
        '{"step": %d, "rewards": [0, NaN]}',
        '{"step": %d, "rewards": [1e308, -1e308]}',
        '{"step": %d, "reward": 1.7e308, "reward_std": 1.7e308, "kl": 1.7e308, "loss": -1.7e308}',
    ],
)
def test_values_that_no_arithmetic_survives_are_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text("".join(line % i + "\n" for i in range(60)))
    found = diagnose(path)
    assert found.verdict == "late_nan"
    json.dumps(found.to_json(), allow_nan=False)
    assert render_text(found) and render_html(found)


def test_plots() -> None:
    lines = plot(Curve("kl", (1, 2, 3, 4), (1.0, 2.0, None, 8.0), onset_step=4), width=20, height=2)
    assert lines[0] == "kl by step"
    assert lines[1].startswith("8 │") and lines[2].startswith("1 │")
    assert "x" in lines[3] and "!" in lines[3]
    assert plot(Curve("kl", (1,), (None,))) == [] and svg(Curve("kl")) == ""
    wide = plot(Curve("kl", (1, 2), (0.001, 100.0)), width=20)
    assert wide[0].endswith("(log scale)")
    assert len(plot(Curve("reward", (1, 2), (3.0, 3.0)), width=20)) == 4
    many = plot(Curve("r", tuple(range(1000)), tuple(float(i) for i in range(1000))), width=60)
    assert all(len(line) <= 60 for line in many)


def failed(name: str, row: int = 0, *, start: bool = False) -> Finding:
    return Finding(name, "failed", onset_row=row, onset_step=row, from_start=start)


@pytest.mark.parametrize(
    ("findings", "cause"),
    [
        ([failed("truncation_spiral", 60), failed("kl_explosion", 50)], "kl_explosion"),
        ([failed("kl_explosion", 150), failed("truncation_spiral", 40)], "truncation_spiral"),
        ([failed("kl_explosion", 10), failed("late_nan", 90)], "late_nan"),
        ([failed("entropy_collapse", 50), failed("all_correct", 0, start=True)], "all_correct"),
        ([failed("extraction_failed", 60), failed("length_collapse", 50)], "length_collapse"),
        ([failed("reward_hacking", 50), failed("length_collapse", 50)], "length_collapse"),
        ([failed("entropy_collapse", 60), failed("reward_hacking", 50)], "reward_hacking"),
        ([failed("all_wrong", 0, start=True), failed("extraction_failed", 0, start=True)], "extraction_failed"),
    ],
)
def test_the_cause_comes_before_its_consequences(findings: list[Finding], cause: str) -> None:
    ranked = rank(findings, 200)
    assert ranked[0].name == cause and len(ranked) == len(findings)
