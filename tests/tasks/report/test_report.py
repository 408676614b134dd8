"""The report of a completed, a refused and a crashed run, in both languages, and its charts."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artifacts.manifest import Manifest
from artifacts.store import Store
from flows.record import RunRecord
from pipeline_config.loading import load_config
from tasks.errors import GateRefused, Interrupted, Retryable
from tasks.evaluate.scores import score
from tasks.report import build
from tasks.report.build import build_report, verdict
from tasks.report.collect import collect, read_jsonl, series
from tasks.report.svg import line_chart, ticks
from tasks.report.words import WORDS

TINY = load_config("tiny")
EVIL = "<script>alert('x')</script> & \"quoted\" </textarea>"
TEMPLATE = Path(build.__file__).with_name("template.html").read_text(encoding="utf-8")


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def items(right: str) -> list[dict[str, Any]]:
    """Ten problems a to j, right in those that are named."""
    return [
        {
            "id": name,
            "question": f"What is {name}?",
            "answer": "5",
            "completion": f"{name}: {EVIL}",
            "tokens": 12,
            "truncated": False,
            "right": name in right,
            "lenient": name in right,
            "well_formed": True,
            "sampled_right": 4 if name in right else 1,
        }
        for name in "abcdefghij"
    ]


GATE = {
    "prompts": 12,
    "completions": 96,
    "format_rate": 0.5,
    "format_rate_low": 0.4,
    "format_rate_high": 0.6,
    "truncation_rate": 0.0,
    "pass_at_1": 0.25,
    "pass_at_group": 0.5,
    "dead_groups": 0.5,
    "dead_all_right": 0.0,
    "dead_all_wrong": 0.5,
    "kinds": {"right": 24, "tag_drift": 48, "wrong": 24},
}
GOOD_GATE = {**GATE, "format_rate": 0.99, "format_rate_low": 0.95, "kinds": {"right": 24, "wrong": 72}}
SCORES = {"evaluate_base": "", "evaluate_sft": "abc", "evaluate_grpo": "abcdefg"}
GRPO_ROWS = [
    {
        "step": step,
        "reward": 0.1 * step,
        "rewards/sound/mean": 0.1 * step,
        "outcomes/right": 0.1 * step,
        "outcomes/wrong": 1 - 0.1 * step,
        "outcomes/hedged": 0.0,
        "frac_reward_zero_std": 0.5,
        "kl": None,
        "completions/mean_length": 20.0 + step,
        "completions/max_length": 64.0,
        "grad_norm": 0.3,
    }
    for step in range(1, 6)
]
ROLLOUTS = [
    {"step": s, "question": f"q{s} {EVIL}", "answer": "5", "completion": EVIL, "reward": r}
    for s, r in ((1, 0.0), (2, None), (3, 1.0))
]
CONTENT = {
    "dataset/stats.json": json.dumps({"rows": {"train": 7}, "note": EVIL}),
    "sft/metrics.jsonl": lines([{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}]),
    "format_gate/samples.jsonl": lines(
        [{"kind": "wrong", "question": "q", "answer": "5", "completion": EVIL, "reward": 0.25}]
    ),
    "grpo/metrics.jsonl": lines(GRPO_ROWS),
    "grpo/rollouts.jsonl": lines(ROLLOUTS),
    **{f"{name}/items.jsonl": lines(items(right)) for name, right in SCORES.items()},
}
METRICS = {
    "format_gate": GOOD_GATE,
    **{name: score(items(right), 4) for name, right in SCORES.items()},
    "export": {
        "f16": {
            "bytes": 5_000_000,
            "verdict": "released",
            "reasons": [],
            "n": 10,
            "right": 7,
            "accuracy": 0.7,
            "accuracy_low": 0.397,
            "accuracy_high": 0.892,
            "lost": 0,
            "gained": 0,
        },
        "q4_k_m": {"bytes": 2_000_000, "verdict": "refused", "reasons": ["worse_than_model"], "n": 0},
    },
}


def recorded(made: dict[str, Manifest], error: BaseException | None = None, running: str = "") -> dict[str, Any]:
    record = RunRecord.start(TINY)
    for name, manifest in made.items():
        record.stage_started(name)
        record.stage_done(name, manifest, "made", f"nothing stored yet {EVIL}", 12.34)
    if running:
        record.stage_started(running)
    if error:
        record.fail(error)
    record.finish()
    return record.to_json()


@pytest.fixture
def completed(make_chain: Any) -> dict[str, Any]:
    made = make_chain(
        TINY,
        content=CONTENT,
        metrics=METRICS,
        notes={"sft": [f"3 traces were left out {EVIL}"]},
        effective={"grpo": {"changed_by_the_trainer": {"bf16": {"asked": True, "used": False}}}},
    )
    return recorded(made)


class Checker(HTMLParser):
    """Elements open and close in order; collects element names and text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen.add(tag)
        if tag not in ("meta", "br", "line", "polyline"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes <{self.open[-1] if self.open else ''}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def checked(html: str) -> str:
    """The text of a well-formed, self-contained page."""
    checker = Checker()
    checker.feed(html)
    assert checker.open == []
    assert not checker.seen & {"script", "link", "img", "iframe", "textarea"}
    assert "http://" not in html and "https://" not in html
    return " ".join(" ".join(checker.text).split())


# -- words --------------------------------------------------------------------------------------------------------


def test_both_languages_have_the_same_words_and_blanks() -> None:
    assert WORDS["en"].keys() == WORDS["zh"].keys()
    for key, english in WORDS["en"].items():
        chinese = WORDS["zh"][key]
        assert english and chinese
        assert sorted(re.findall(r"{(\w+)}", english)) == sorted(re.findall(r"{(\w+)}", chinese)), key


def test_every_word_of_the_template_exists_and_none_is_left_over() -> None:
    used = set(re.findall(r"\bw\.(\w+)", TEMPLATE))
    spoken = {"stopped", "completed", "result", "significant", "not_significant"}
    charts = {key for key in WORDS["en"] if key.startswith("chart_")}
    assert used | spoken | charts == WORDS["en"].keys()


def test_language_of_the_configuration() -> None:
    assert set(WORDS) == {"en", "zh"}
    with pytest.raises(KeyError):
        WORDS["de"]


# -- runs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_completed_run(completed: dict[str, Any], chain_store: Store, language: str) -> None:
    html = build_report(completed, chain_store, language)
    text = checked(html)
    words = WORDS[language]
    for key in (
        "before_after",
        "stages",
        "gate",
        "curves",
        "flipped",
        "rollouts",
        "export",
        "files",
        "notes",
        "lineage",
    ):
        assert words[key] in text, key
    assert f'lang="{"zh-CN" if language == "zh" else "en"}"' in html
    assert "30.0 % [10.8, 60.3] n=10" in text  # SFT: 3 of 10, Wilson
    assert "model-f16.gguf" in text and "released" in text and "worse_than_model" in text
    assert text.count("model.safetensors") == text.count("adapter_model.safetensors") + 1 == 2
    assert "bf16" in text and words["changed"] in text


def test_texts_from_models_and_data_are_escaped(completed: dict[str, Any], chain_store: Store) -> None:
    html = build_report(completed, chain_store)
    assert "<script" not in html
    assert "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &amp; &#34;quoted&#34;" in html
    assert "\\u003cscript\\u003e" in html  # in stats.json


def test_the_verdict_in_one_sentence(completed: dict[str, Any], chain_store: Store) -> None:
    # SFT 3 of 10, GRPO 7 of 10; four gained and none lost: 2 / 2^4 = 0.125.
    assert verdict(collect(completed, chain_store), WORDS["en"]) == (
        "GRPO took strict accuracy from 30.0% to 70.0% (+40.0 points, n = 10). "
        "The difference is not significant (McNemar's exact p = 0.12)."
    )
    assert "从 30.0% 变为 70.0%（+40.0 个百分点" in verdict(collect(completed, chain_store), WORDS["zh"])


def test_what_a_completed_run_shows(completed: dict[str, Any], chain_store: Store) -> None:
    data = collect(completed, chain_store)
    assert [chart["title"] for chart in data["curves"]] == [
        "reward",
        "outcomes",
        "dead_groups",
        "length",
        "grad_norm",
        "sft_loss",
    ]
    # Outcomes that never occur are left out; a single line at zero is not.
    assert [label for label, _ in data["curves"][1]["lines"]] == ["right", "wrong"]
    assert [flip["question"] for flip in data["flipped"]["gained"]] == [f"What is {name}?" for name in "defg"]
    assert data["flipped"]["lost"] == []
    assert [pair["name"] for pair in data["comparisons"]] == ["base → SFT", "SFT → GRPO", "base → GRPO"]
    assert data["gate_verdict"][0] == "go"
    assert [(stage["stage"], stage["action"]) for stage in data["stages"]][:2] == [
        ("model", "made"),
        ("dataset", "made"),
    ]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_run_that_the_gate_refused(make_chain: Any, chain_store: Store, language: str) -> None:
    made = make_chain(TINY, until="format_gate", content=CONTENT, metrics={"format_gate": GATE})
    error = GateRefused(
        f"whole format in 50 % {EVIL}", where="format_gate", fix=f"more SFT {EVIL}", cause="format_not_learnt"
    )
    text = checked(build_report(recorded(made, error), chain_store, language))
    words = WORDS[language]
    assert f"{words['stopped']}: format_not_learnt. whole format in 50 %" in text
    assert "FORMAT_NOT_LEARNT" in text and "tag_drift 48" in text and "more SFT" in text
    assert words["gate_samples"] in text and words["before_after"] not in text


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_run_that_crashed_in_grpo(make_chain: Any, chain_store: Store, tmp_path: Path, language: str) -> None:
    """What GRPO had logged until then is read from its work directory, with a torn last line."""
    made = make_chain(TINY, until="sft", content=CONTENT)
    for name, age in (("grpo-0000", 100), ("grpo-1111", 0)):
        folder = tmp_path / "work" / name
        folder.mkdir(parents=True)
        (folder / "metrics.jsonl").write_text(lines(GRPO_ROWS[: 2 if age else 4]) + '{"step": 5, "rew')
        (folder / "rollouts.jsonl").write_text(lines(ROLLOUTS))
    error = Retryable("the stage was killed (often: out of memory)", fix="lower the batch size", cause="killed")
    record = recorded(made, error, running="grpo")
    text = checked(build_report(record, chain_store, language, tmp_path / "work"))
    words = WORDS[language]
    assert f"{words['stopped']}: killed. the stage was killed" in text and "lower the batch size" in text
    assert words["chart_reward"] in text and words["rollouts"] in text
    data = collect(record, chain_store, tmp_path / "work")
    assert [len(points) for _, points in data["curves"][0]["lines"]] == [4]
    assert data["stages"][-1]["action"] == "failed"


def test_a_run_that_did_nothing(chain_store: Store, tmp_path: Path) -> None:
    record = recorded({}, KeyboardInterrupt())
    text = checked(build_report(record, chain_store, "en", tmp_path / "none"))
    assert "The run stopped: KeyboardInterrupt." in text
    assert record["status"] == "interrupted"
    assert recorded({}, Interrupted("asked to stop"), running="sft")["stages"][0]["action"] == "interrupted"


def test_a_run_without_grpo_completed(make_chain: Any, chain_store: Store) -> None:
    made = make_chain(TINY, until="sft", content=CONTENT)
    assert verdict(collect(recorded(made), chain_store), WORDS["en"]) == "The run completed."


def test_artifacts_that_are_gone_are_left_out(completed: dict[str, Any], make_chain: Any, chain_store: Store) -> None:
    entries = {item["stage"]: item["fingerprint"] for item in completed["stages"]}
    gone = chain_store.lookup("grpo", entries["grpo"])
    assert gone is not None
    chain_store.remove(gone)
    text = checked(build_report(completed, chain_store))
    assert "grpo" in text and WORDS["en"]["rollouts"] not in text


def test_scores_with_and_without_samples_side_by_side(make_chain: Any, chain_store: Store) -> None:
    metrics = {**METRICS, "evaluate_base": score(items("a"), 0)}
    html = build_report(recorded(make_chain(TINY, content=CONTENT, metrics=metrics)), chain_store)
    checked(html)
    table = html.split(WORDS["en"]["pass1"])[1].split("</table>")[0]
    assert [row.count("<td") for row in table.split("<tr>")[1:]] == [7, 7, 7]


# -- rows and charts ----------------------------------------------------------------------------------------------


def test_rows_that_cannot_be_read_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"step": 1}\n\n[1]\nnull\n{"step": 2, "text": "\xe2\x80\xa8"}\n\xff\n{"st')
    assert [row["step"] for row in read_jsonl(path)] == [1, 2]
    assert read_jsonl(path, limit=1) == [{"step": 1}]
    assert read_jsonl(tmp_path / "none") == []


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


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.25, 0.5, 0.75, 1]),
        (0, 100, [0, 25, 50, 75, 100]),
        (0, 400, [0, 100, 200, 300, 400]),
        (1, 30, [10, 20, 30]),
        (-1, 1, [-1, -0.5, 0, 0.5, 1]),
        (0.012, 0.049, [0.02, 0.03, 0.04]),
        (0, 0.0004, [0, 0.0001, 0.0002, 0.0003, 0.0004]),
        (-0.3, 0.1, [-0.3, -0.2, -0.1, 0, 0.1]),
        (5, 5, [5]),
    ],
)
def test_ticks_are_round_numbers(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)


@given(st.floats(-1e9, 1e9), st.floats(1e-9, 1e9))
def test_ticks_lie_inside_and_are_few(low: float, width: float) -> None:
    high = low + width
    if high - low < abs(low) * 1e-9:
        return
    values = ticks(low, high)
    room = (high - low) * 1e-4
    assert 1 <= len(values) <= 6
    assert all(low - room <= value <= high + room for value in values)
    assert values == sorted(values)


def test_a_chart_of_two_lines() -> None:
    chart = line_chart([("a", [(0, 0.0), (10, 1.0)]), ("b", [(0, 0.5), (10, 0.5)])], 'x < "y"')
    checker = Checker()
    checker.feed(chart)
    assert checker.open == [] and chart.count("<polyline") == 2
    assert 'aria-label="x &lt; &quot;y&quot;"' in chart
    # x: 46 to 408, y: 166 (low) to 10 (high).
    assert 'points="46.0,166.0 408.0,10.0"' in chart and 'points="46.0,88.0 408.0,88.0"' in chart


@pytest.mark.parametrize("points", [[(3, 0.0)], [(1, 7.0), (2, 7.0)], [(1, 1e-300), (2, 1e300)], [(1, -5), (9, 5e-9)]])
def test_charts_of_odd_data(points: list[tuple[float, float]]) -> None:
    chart = line_chart([("a", points)], "odd")
    assert "nan" not in chart and "inf" not in chart
