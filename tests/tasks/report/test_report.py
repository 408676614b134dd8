"""The report of a completed, a refused and a crashed run, in both languages, and its charts."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from artifacts.locks import file_lock
from artifacts.manifest import Manifest
from artifacts.registry import Version, change, following
from artifacts.store import Store
from flows.record import RunRecord
from pipeline_config.loading import load_config
from tasks import dataset
from tasks.chain import NAMES
from tasks.dataset.report import REASONS
from tasks.diagnosis.findings import VERDICTS
from tasks.errors import DataError, ExportRefused, GateRefused, Interrupted, PipelineError, Retryable, RunStopped
from tasks.evaluate.scores import score
from tasks.format_gate.verdict import VERDICTS as GATE_VERDICTS
from tasks.grpo.ledger import KINDS
from tasks.grpo.remedies import LADDERS
from tasks.process.checkpoints import mark_complete
from tasks.report.build import LANGUAGES, PAGE, build_report, outcome_classes, page_of, summary, words_of
from tasks.report.collect import collect
from tasks.report.groups import marks
from tasks.report.run_files import open_run
from tasks.report.training import rollouts
from tasks.report.verdict import evidence, verdict

TINY = load_config("tiny")
EVIL = "<script>alert('x')</script> & \"quoted\" </textarea>"
TEMPLATES = "".join(path.read_text(encoding="utf-8") for path in sorted(PAGE.glob("*.html")))
CODE = "".join(path.read_text(encoding="utf-8") for path in sorted(PAGE.parent.glob("*.py")))
EN, ZH = words_of("en"), words_of("zh")


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
DEEPER = (
    "grpo/groups.jsonl",
    "grpo/ledger.jsonl",
    "grpo/remedies.json",
    "grpo/checkpoints.json",
    "format_gate/gate.json",
)
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
        record.stage_done(name, manifest, "made", f"nothing stored yet {EVIL}", 60.0)
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
        hardware={"gpus": [], "cpus": 2},
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
        if tag not in ("meta", "br", "line", "polyline", "polygon", "circle"):
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
    assert not checker.seen & {"link", "img", "iframe", "textarea", "object", "embed"}
    assert "http://" not in html and "https://" not in html and html.count("<script") == 1
    return " ".join(" ".join(checker.text).split())


# -- words --------------------------------------------------------------------------------------------------------


def test_both_languages_have_the_same_words_and_blanks() -> None:
    assert LANGUAGES == ("en", "zh") and EN.keys() == ZH.keys()
    for key, english in EN.items():
        assert bool(english) == bool(ZH[key]), key
        assert sorted(re.findall(r"{(\w+)}", english)) == sorted(re.findall(r"{(\w+)}", ZH[key])), key
    with pytest.raises(KeyError):
        words_of("de")


def test_every_word_of_the_pages_exists_and_none_is_left_over() -> None:
    named = set(re.findall(r"\bw\.(\w+)", TEMPLATES)) | set(re.findall(r"""words\[["'](\w+)["']\]""", CODE))
    begun = set(re.findall(r"""w(?:\.get\(|\[)'(\w+_)'""", TEMPLATES)) | set(re.findall(r"""f["'](\w+_)\{""", CODE))
    begun |= set(re.findall(r"""["'](\w+_)["'] \+""", CODE))
    assert named - {"get"} <= EN.keys()
    left = {key for key in EN if key not in named and not any(key.startswith(part) for part in begun)}
    assert left <= {"no_kl", "no_kl_beta"}  # keys that `not_measured` returns


def test_every_stage_has_words() -> None:
    assert {f"stage_{name}" for name in NAMES} | {f"in_{name}" for name in NAMES} <= EN.keys()


def test_every_cause_of_the_gate_and_the_watchdog_has_words() -> None:
    older = {"truncated", "format_not_learnt", "too_easy", "too_hard"}
    causes = {*VERDICTS, *LADDERS, *GATE_VERDICTS, *older, "killed", "interrupted", "reward_errors"}
    assert {f"cause_{cause}" for cause in causes} <= EN.keys()
    assert {f"rung_{rung}" for rungs in LADDERS.values() for rung in rungs} <= EN.keys()


def test_every_reason_to_drop_a_row_has_words() -> None:
    code = "".join(file.read_text() for file in Path(dataset.__file__).parent.glob("*.py"))
    named = set(re.findall(r"""(?:BadRow|UnreadableRow)\(\s*"(\w+)\"""", code))
    assert {"no_gold", "not_json", "not_an_object"} <= named
    assert {f"drop_{reason}" for reason in named | REASONS.keys()} <= EN.keys()


def test_every_kind_of_group_has_words_and_a_colour_of_its_own() -> None:
    assert {f"group_{kind}" for kind in KINDS} <= EN.keys()
    colours = outcome_classes(list(KINDS))
    assert len(set(colours)) == len(KINDS)
    gate = ["no_answer", "right", "tag_drift", "wrong", "truncated", "unclosed", "empty", "hedged"]
    assert len(set(outcome_classes(gate))) == len(gate)


# -- runs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_completed_run(completed: dict[str, Any], chain_store: Store, language: str) -> None:
    html = build_report(completed, chain_store, language)
    text, words = checked(html), words_of(language)
    titles = "scores curves gate flips rollouts export data cost lineage reproduce pass_rates notes"
    for key in titles.split():
        assert words[key] in text, key
    assert words["ending"] not in text
    assert f'lang="{"zh-CN" if language == "zh" else "en"}"' in html
    assert "30.0% [10.8, 60.3]" in text  # SFT: 3 of 10, Wilson
    assert "model-f16.gguf" in text and words["export_released"] in text and "worse_than_model" in text
    assert "model/model.safetensors" in text and "adapter/adapter_model.safetensors" in text
    assert "bf16" in text and words["changed"] in text
    assert words["cost_cpu"].format(cores=2) in text


def test_texts_from_models_and_data_are_escaped(completed: dict[str, Any], chain_store: Store) -> None:
    html = build_report(completed, chain_store)
    assert "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &amp; &#34;quoted&#34;" in html
    assert "<script>alert" not in html


def test_only_the_page_s_own_script_may_run(completed: dict[str, Any], chain_store: Store) -> None:
    html = build_report(completed, chain_store)
    script = html.split("<script>")[1].split("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = html.split('http-equiv="Content-Security-Policy" content="')[1].split('"')[0].replace("&#39;", "'")
    assert policy.startswith("default-src 'none';") and f"script-src 'sha256-{digest}'" in policy
    # Names and numbers are put in as text; nothing of the data is ever parsed as markup.
    assert "innerHTML" not in script and "insertAdjacent" not in script and "eval" not in script


def test_the_verdict_in_one_sentence(completed: dict[str, Any], chain_store: Store) -> None:
    # SFT 3 of 10, GRPO 7 of 10; four gained and none lost: p = 2 / 2^4 = 0.125. Sampled: 19 of 40, then 31 of 40 right.
    data = collect(completed, chain_store)
    assert verdict(data, EN) == (
        "GRPO did not measurably change strict accuracy (30.0% to 70.0%); "
        "sampled pass@1 did not measurably change (47.5% to 77.5%)."
    )
    # The score test of no change gives z = 4 / sqrt(4) = 2 > 1.96, so Tango's interval just leaves zero out.
    assert evidence(data, EN).startswith(
        "Strict accuracy +40.0 points [+1.1, +68.7], McNemar p = 0.12 · pass@1, sampled +30.0 "
    )
    assert evidence(data, EN).endswith(" · 10 problems")
    lines = summary(completed, chain_store)
    assert lines[0] == verdict(data, EN) and any(
        line.startswith("SFT   Strict accuracy: 30.0% [10.8") for line in lines
    )
    assert sum(line.startswith("export: ") for line in lines) == 2


@pytest.mark.parametrize(
    ("strict", "sampled", "english", "chinese"),
    [
        (
            "better",
            None,
            "GRPO raised strict accuracy from 20.0% to 30.0%.",
            "GRPO 使严格准确率从 20.0% 升至 30.0%。",
        ),
        (
            "no_difference",
            "better",
            "GRPO raised sampled pass@1 from 40.0% to 50.0%; strict accuracy did not measurably change (20.0% to 30.0%).",
            "GRPO 使采样 pass@1 从 40.0% 升至 50.0%；严格准确率没有可测出的变化（20.0% → 30.0%）。",
        ),
        (
            "worse",
            "better",
            "GRPO lowered strict accuracy from 20.0% to 30.0%; sampled pass@1 rose from 40.0% to 50.0%.",
            "GRPO 使严格准确率从 20.0% 降至 30.0%；采样 pass@1 从 40.0% 升至 50.0%。",
        ),
    ],
)
def test_what_changed_measurably_comes_first(strict: str, sampled: str | None, english: str, chinese: str) -> None:
    gain = {"gain": 0.1, "low": 0.0, "high": 0.2}
    pair: dict[str, Any] = {
        "before": "sft",
        "after": "grpo",
        "n": 9,
        "p": 0.5,
        "verdict": strict,
        "gains": {"strict": gain},
    }
    if sampled:
        pair |= {"pass_at_1": {"verdict": sampled}, "gains": {"strict": gain, "pass_at_1": gain}}
    scores = [
        {"model": model, "rates": {"strict": {"rate": rate}, "pass_at_1": {"rate": rate + 0.2}}}
        for model, rate in (("sft", 0.2), ("grpo", 0.3))
    ]
    data = {"ending": {"state": "completed"}, "scores": scores, "differences": [pair], "stages": []}
    assert (verdict(data, EN), verdict(data, ZH)) == (english, chinese)


def test_what_a_completed_run_shows(completed: dict[str, Any], chain_store: Store) -> None:
    data = collect(completed, chain_store)
    assert [chart["key"] for chart in data["charts"]] == [
        "reward",
        "outcomes",
        "dead_groups",
        "length",
        "grad_norm",
        "sft_loss",
    ]
    # Outcomes that never occur are left out.
    assert [label for label, _ in data["charts"][1]["lines"]] == ["right", "wrong"]
    assert data["not_measured"] == ["no_kl_beta"]
    assert [flip["question"] for flip in data["flips"]["gained"]] == [f"What is {name}?" for name in "defg"]
    assert (data["flips"]["gained_total"], data["flips"]["lost_total"]) == (4, 0)
    pairs = [(pair["before"], pair["after"]) for pair in data["differences"]]
    assert pairs == [("base", "sft"), ("sft", "grpo"), ("base", "grpo")]
    # Base solves each problem once in four; SFT three of them four times; GRPO seven.
    assert data["pass_rates"]["models"] == {"base": [0, 10, 0, 0, 0], "sft": [0, 7, 0, 0, 3], "grpo": [0, 3, 0, 0, 7]}
    assert data["gate"]["verdict"] == "go"
    assert data["totals"]["made_s"] == 60.0 * len(completed["stages"]) and data["totals"]["gpu_hours"] == 0.0
    assert [(stage["stage"], stage["action"]) for stage in data["stages"]][:2] == [
        ("model", "made"),
        ("dataset", "made"),
    ]


def test_gpu_hours(make_chain: Any, chain_store: Store) -> None:
    """Six stages compute, each for 60 s on two GPUs; one of them in an earlier run."""
    made = make_chain(TINY, content=CONTENT, metrics=METRICS, hardware={"gpus": ["H200", "H200"], "cpus": 32})
    record = recorded(made)
    (sft,) = [item for item in record["stages"] if item["stage"] == "sft"]
    sft["action"] = "reused"
    data = collect(record, chain_store)
    computing = [row["stage"] for row in data["stages"] if row["gpu_hours"] is not None]
    assert computing == ["sft", "format_gate", "grpo", "evaluate_base", "evaluate_sft", "evaluate_grpo"]
    assert data["totals"]["gpu_hours_all"] == pytest.approx(6 * 2 * 60 / 3600)
    assert data["totals"]["gpu_hours"] == pytest.approx(5 * 2 * 60 / 3600)
    assert "0.200 in all" in checked(build_report(record, chain_store))


def test_gpu_hours_that_are_not_known(make_chain: Any, chain_store: Store) -> None:
    record = recorded(make_chain(TINY, content=CONTENT, metrics=METRICS))
    assert collect(record, chain_store)["totals"]["gpu_hours_all"] is None
    assert EN["cost_unknown"] in checked(build_report(record, chain_store))


@pytest.fixture
def refused(make_chain: Any) -> dict[str, Any]:
    made = make_chain(TINY, until="format_gate", content=CONTENT, metrics={"format_gate": GATE})
    error = GateRefused(f"whole format in 50 % {EVIL}", where="format_gate", fix=f"more SFT {EVIL}", cause="more_sft")
    return recorded(made, error)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_run_that_the_gate_refused(refused: dict[str, Any], chain_store: Store, language: str) -> None:
    words = words_of(language)
    text = checked(build_report(refused, chain_store, language))
    assert words["v_gate"].format(cause=words["cause_more_sft"]) in text
    assert words["state_refused"] in text and "whole format in 50 %" in text
    assert "MORE_SFT" in text and f"{words['kind_tag_drift']} 48" in text
    advice = words["fix_more_sft"] if language == "zh" else f"more SFT {EVIL}"
    assert advice in text and words["resumes_after"] in text
    assert text.index(words["gate_note"]) < text.index(words["curves_lead"])
    assert words["gate_samples"] in text and words["scores"] not in text
    gate = collect(refused, chain_store)["gate"]
    assert [(row["name"], row["held"]) for row in gate["rows"]] == [
        ("format", False),
        ("truncation", True),
        ("dead_groups", True),
        ("pass_at_1", None),
        ("pass_at_group", None),
    ]


@pytest.fixture
def crashed(make_chain: Any, tmp_path: Path) -> dict[str, Any]:
    """A run whose GRPO was killed at step 4 of 18, with a checkpoint at step 3 and a torn last line."""
    made = make_chain(TINY, until="format_gate", content=CONTENT, metrics={"format_gate": GOOD_GATE})
    for name, steps in (("grpo-1111", 4), ("grpo-2222", 2)):
        folder = tmp_path / "home" / "work" / name
        save = folder / "checkpoints" / "checkpoint-3"
        save.mkdir(parents=True)
        (save / "trainer_state.json").write_text("{}")
        mark_complete(save)
        (folder / "checkpoints" / "checkpoint-4").mkdir()
        (folder / "metrics.jsonl").write_text(lines(GRPO_ROWS[:steps]) + '{"step": 5, "rew')
        (folder / "rollouts.jsonl").write_text(lines(ROLLOUTS))
        (folder / "progress.json").write_text('{"done": 3, "total": 18, "label": "grpo"}')
        (folder / "stage.log").write_text("first line\n" * 100 + f"the last line {EVIL}\n")
    error = Retryable("the stage was killed (often: out of memory)", fix="lower the batch size", cause="killed")
    record = recorded(made, error, running="grpo")
    record["stages"][-1]["work"] = "grpo-1111"
    return record


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_run_that_crashed_in_grpo(crashed: dict[str, Any], chain_store: Store, tmp_path: Path, language: str) -> None:
    words = words_of(language)
    text = checked(build_report(crashed, chain_store, language, tmp_path / "home"))
    at = words["v_at"].format(step=4, steps=18)
    assert words["v_failed"].format(place=words["in_grpo"], at=at, cause=words["cause_killed"]) in text
    assert "the stage was killed (often: out of memory)" in text
    assert (words["fix_killed"] if language == "zh" else "lower the batch size") in text
    assert "grpo-1111/stage.log" in text and "the last line" in text and text.count("first line") == 39
    assert words["resumes_at"].format(step=3) in text and "grpo-pipeline run -p tiny" in text
    assert words["chart_reward"] in text and words["rollouts"] in text
    data = collect(crashed, chain_store, tmp_path / "home")
    assert [len(points) for _, points in data["charts"][0]["lines"]] == [4]
    assert data["stages"][-1]["action"] == "failed"
    assert data["ending"]["done"][-2:] == ["sft", "format_gate"]


def test_a_run_that_is_going_on_and_one_that_was_killed(
    crashed: dict[str, Any], chain_store: Store, tmp_path: Path
) -> None:
    """The record of a flow that was killed says running for ever; the lock of the work directory tells the two apart."""
    crashed |= {"status": "running", "error": None, "finished_at": None}
    crashed["stages"][-1]["action"] = "running"
    home = tmp_path / "home"
    assert "The run was killed in GRPO at step 4 of 18, without time to say why." in checked(
        build_report(crashed, chain_store, "en", home)
    )
    with file_lock(home / "locks" / "grpo-1111.lock"):
        assert verdict(collect(crashed, chain_store, home), EN) == "The run is still going on, in GRPO at step 4 of 18."
    # Another machine sees the record, in a store that both share, and nothing else.
    assert verdict(collect(crashed, chain_store, None), EN).startswith("The run was last seen in GRPO;")


def test_secrets_stay_out_of_the_log_s_end(
    crashed: dict[str, Any], chain_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUB_TOKEN", "hunter2-hunter2")
    (tmp_path / "home" / "work" / "grpo-1111" / "stage.log").write_text("using hunter2-hunter2\n")
    assert "using ***" in checked(build_report(crashed, chain_store, "en", tmp_path / "home"))


def test_a_run_that_did_nothing(chain_store: Store, tmp_path: Path) -> None:
    record = recorded({}, KeyboardInterrupt())
    text = checked(build_report(record, chain_store, "en", tmp_path / "none"))
    assert "The run was stopped on request before its first stage." in text
    assert record["status"] == "interrupted"
    assert recorded({}, Interrupted("asked to stop"), running="sft")["stages"][0]["action"] == "interrupted"


@pytest.mark.parametrize(
    ("error", "stage", "expected"),
    [
        (DataError("row 2 is not JSON"), "dataset", "The run failed while building the data set: row 2 is not JSON."),
        (RunStopped("x", cause="all_wrong"), "grpo", "Training was stopped in GRPO: the problems are too hard, every"),
        (ExportRefused("worse", cause="export_refused"), "export", "The run was refused during export: the GGUF file"),
        (PipelineError("a" * 300 + "\nmore"), "sft", f"The run failed in SFT: {'a' * 180}…."),
        (ValueError("boom"), "sft", "The run failed in SFT: boom."),
    ],
)
def test_the_verdict_names_the_cause(chain_store: Store, error: Exception, stage: str, expected: str) -> None:
    record = recorded({}, error, running=stage)
    assert verdict(collect(record, chain_store), EN).startswith(expected)
    for language in LANGUAGES:
        checked(build_report(record, chain_store, language))


def test_a_run_without_grpo_completed(make_chain: Any, chain_store: Store) -> None:
    record = recorded(make_chain(TINY, until="sft", content=CONTENT))
    stages = len(record["stages"])
    assert verdict(collect(record, chain_store), EN) == f"The run completed: {stages} stages, no scores to compare."
    checked(build_report(record, chain_store))


def test_a_run_that_only_measured_the_base_model(make_chain: Any, chain_store: Store) -> None:
    made = make_chain(TINY, until="evaluate_base", content=CONTENT, metrics=METRICS)
    made = {name: made[name] for name in ("model", "dataset", "evaluate_base")}
    text = checked(build_report(recorded(made), chain_store))
    assert "The base model answers 0.0% of the held-out problems strictly right (95% interval 0.0 to 27.8%" in text


def test_artifacts_that_are_gone_are_left_out(completed: dict[str, Any], chain_store: Store) -> None:
    for item in completed["stages"]:
        gone = chain_store.lookup(item["stage"], item["fingerprint"])
        assert gone is not None
        chain_store.remove(gone)
        checked(build_report(completed, chain_store))
    data = collect(completed, chain_store)
    assert not data["scores"] and not data["charts"] and not data["lineage"]


ODD = (
    "",
    "[1]",
    '{"rows": 3, "findings": 7, "steps": 1, "chosen": 1, "candidates": [0], "tags": [2]}',
    "\x00\xff",
    '{"id": 1}\n',
)


@pytest.mark.parametrize("name", [*CONTENT, *DEEPER, "export/proof.json", "preflight/findings.json"])
def test_a_file_of_another_shape_costs_its_part_only(
    completed: dict[str, Any], chain_store: Store, tmp_path: Path, name: str
) -> None:
    run = open_run(completed, chain_store)
    stage, _, file = name.partition("/")
    (tmp_path / "odd" / file).parent.mkdir(parents=True)
    for text in ODD:
        (tmp_path / "odd" / file).write_text(text, encoding="latin-1")
        odd = dataclasses.replace(run, folders={**run.folders, stage: tmp_path / "odd"})
        assert EN["lineage"] in checked(page_of(odd))


def test_scores_with_and_without_samples_side_by_side(make_chain: Any, chain_store: Store) -> None:
    metrics = {**METRICS, "evaluate_base": score(items("a"), 0)}
    record = recorded(make_chain(TINY, content=CONTENT, metrics=metrics))
    checked(build_report(record, chain_store))
    assert collect(record, chain_store)["pass_rates"]["models"].keys() == {"sft", "grpo"}


def test_a_record_of_another_version_still_has_its_report(completed: dict[str, Any], chain_store: Store) -> None:
    del completed["choice"]
    completed["config"] = {"run": {}, "model": {"source": "tiny"}, "seed": 1, "gate": {"of": "the future"}}
    text = checked(build_report(completed, chain_store))
    assert "grpo-pipeline run -c run.yaml" in text


# -- what deeper stages leave -------------------------------------------------------------------------------------


def rich_items(right: str, dirty: str) -> list[dict[str, Any]]:
    """As the evaluation stage writes them now: samples, behaviour, contamination."""
    return [
        {
            **item,
            "samples": 4,
            "sampled_lenient": item["sampled_right"],
            "majority": float(item["right"]),
            "behaviour": {"self_checks": {"wait": 1} if item["id"] in "ab" else {}, "repetition": 0.125, "loop": 0.0},
            "contaminated": item["id"] in dirty,
        }
        for item in items(right)
    ]


GROUPS = [
    {"step": s, "round": r, "prompt_id": p, "kind": k, "right": 0, "rewards": [0.0] * 8, "used": u}
    for s, r, p, k, u in (
        (1, 0, "a", "all_wrong", False),
        (1, 1, "b", "live", True),
        (2, 0, "a", "all_wrong", True),
        (2, 0, "c", "all_right", True),
        (3, 0, "c", "live", True),
        (3, 0, "d", "form_only", True),
    )
]
REMEDIES = {
    "steps": [
        {"rung": "refill", "because": "all_wrong", "headline": EVIL, "at_step": 3, "onset": 1, "start": "here"}
        | {"changes": {"max_refills": [0, 2]}, "set_aside": [], "resumed_from": 3},
        {"rung": "slower", "because": "late_nan", "headline": "NaN", "at_step": 5, "onset": 4, "start": "good"}
        | {"changes": {"learning_rate": [5e-5, 2.5e-5]}, "set_aside": ["a"], "resumed_from": 2},
    ]
}


CHECKPOINTS = {
    "chosen": 2,
    "last": 5,
    "kept_last": False,
    "reason": "step 2 was kept instead of the last step 5",
    "candidates": [
        {"step": 1, "failure": "the weights are gone"},
        {"step": 2, "rate": 0.75, "n": 10, "low": 0.5, "high": 0.9},
        {"step": 5, "rate": 0.25, "n": 10, "low": 0.1, "high": 0.5},
    ],
}


@pytest.fixture
def rich(make_chain: Any) -> dict[str, Any]:
    files, metrics = dict(CONTENT), dict(METRICS)
    for name, right in SCORES.items():
        rows = rich_items(right, "aj")
        files[f"{name}/items.jsonl"] = files[f"{name}/sets/gsm8k/items.jsonl"] = lines(rows)
        metrics[name] = {**score(rows, 4), "sets": {"gsm8k": score(rows, 4)}}
    files["grpo/groups.jsonl"], files["grpo/remedies.json"] = lines(GROUPS), json.dumps(REMEDIES)
    files["grpo/checkpoints.json"] = json.dumps(CHECKPOINTS)
    files["grpo/ledger.jsonl"] = lines([{"id": "a", "set_aside": True}, {"id": "b", "set_aside": False}])
    shares = [{**row, "groups/live": 0.5, "groups/all_wrong": 0.5} for row in GRPO_ROWS]
    files["grpo/metrics.jsonl"] = lines(shares)
    return recorded(make_chain(TINY, content=files, metrics=metrics, hardware={"gpus": [], "cpus": 2}))


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_run_with_all_there_is(rich: dict[str, Any], chain_store: Store, language: str) -> None:
    words = words_of(language)
    text = checked(build_report(rich, chain_store, language))
    assert words["set"].format(name="gsm8k", n=10) in text
    assert "pass@2" in text and "maj@4" in text and words["behaviour"] in text
    # 2 of 10 overlap; without them SFT has b and c of 8.
    assert words["contaminated"].format(n=2, m=10) in text and "SFT 25.0%" in text
    assert words["remedied"].format(n=2) in text
    assert words["rung_slower"] in text and words["at_step"].format(step=2) in text and "5e-05 → 2.5e-05" in text
    assert words["chart_groups"] in text and words["group_all_wrong"] in text
    assert words["checkpoint_lead"].format(step=2) in text and "75.0% [50.0, 90.0]" in text
    assert "the weights are gone" in text


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_run_that_ended_early_as_asked_says_so(language: str) -> None:
    words = words_of(language)
    data = {"ending": {"state": "completed"}, "differences": [], "scores": [], "stages": [{}] * 7}
    plain = verdict({**data, "record": {"choice": {"stop_after": None}}}, words)
    assert plain == words["v_completed"].format(stages=7)
    early = verdict({**data, "record": {"choice": {"stop_after": "grpo"}}}, words)
    assert early == words["v_stopped_after"].format(stages=7, stage=words["stage_grpo"])


def test_the_ledger_in_numbers(rich: dict[str, Any], chain_store: Store) -> None:
    data = collect(rich, chain_store)
    assert data["groups"] == {
        "tried": 6,
        "used": 5,
        "live": 2,
        "dropped": 1,
        "refilled": 1,
        "extra_rollouts": 8,
        "kinds": [("live", 2), ("all_wrong", 2), ("all_right", 1), ("form_only", 1)],
        "prompts": 4,
        "never_live": 1,  # a; c was live once, b and d were tried once
        "set_aside": 1,
    }
    assert [(step["rung"], step["set_aside"]) for step in data["remedies"]] == [("refill", 0), ("slower", 1)]
    # The first remedy went on where it was, the second from the checkpoint at step 2.
    assert marks(data["remedies"]) == [(3.0, "1"), (2.0, "2")]
    assert build_report(rich, chain_store).count('<line class="mark"') >= 2


@pytest.mark.parametrize("language", ["en", "zh"])
def test_which_prompts_were_chosen(rich: dict[str, Any], chain_store: Store, language: str) -> None:
    """Of 100 prompts sampled twice, the 30 that were solved once are kept: each bar says how many there were, and are."""
    run = open_run(rich, chain_store)
    measured = {"samples": 2, "prompts": 100, "kept": 30, "band_used": [0.1, 0.9]}
    measured |= {"prompts_by_right_before": [60, 30, 10], "prompts_by_right_after": [0, 30, 0]}
    measured |= {"dead_groups_before": 0.52, "dead_groups_after": 0.34}
    chosen = run.manifests["dataset"].model_copy(update={"stage": "selection", "metrics": measured})
    text = page_of(dataclasses.replace(run, manifests={**run.manifests, "selection": chosen}), language)
    words = words_of(language)
    assert words["selection_lead"].format(kept="30", prompts="100", low="0.1", high="0.9", k=2) in text
    assert words["selection_dead"].format(before="52.0%", after="34.0%") in text
    assert "<span>0/2<small>60 →<wbr> 0</small></span><span>1/2<small>30 →<wbr> 30</small></span>" in text


def test_training_that_ended_before_its_last_step_says_so(rich: dict[str, Any], chain_store: Store) -> None:
    """tiny asks for 18 steps."""
    run = open_run(rich, chain_store)
    for steps, shown in ((7, True), (18, False)):
        ended = run.manifests["grpo"].model_copy(update={"metrics": {**run.metrics("grpo"), "steps": steps}})
        text = page_of(dataclasses.replace(run, manifests={**run.manifests, "grpo": ended}))
        assert (EN["ended_early"].format(done=steps, asked=18) in text) is shown


def test_samples_are_numbered_as_the_curves_and_none_is_shown_twice(rich: dict[str, Any], chain_store: Store) -> None:
    """The file has the steps done before a completion was sampled; what was sampled first is of step 1."""
    run = open_run(rich, chain_store)
    file = run.path("grpo", "rollouts.jsonl")
    assert file is not None
    again = [{"step": 0, "question": "q", "answer": "1", "completion": "same", "reward": 1.0}] * 4
    other = [{"step": None, "question": "q", "answer": "1", "completion": "same", "reward": 1.0}]
    file.chmod(0o644)
    file.write_text(lines([*again, *other]))
    assert [row["step"] for row in rollouts(run)] == [1, None]


def test_what_the_registry_says_of_the_export(completed: dict[str, Any], chain_store: Store) -> None:
    found = open_run(completed, chain_store).manifests
    version = Version(
        export=found["export"].as_parent(),
        model=found["grpo"].as_parent(),
        evaluation=found["evaluate_grpo"].as_parent(),
    )
    decision = {"outcome": "refused", "reason": "not_better", "text": f"3 gained and 4 lost {EVIL}"}
    change(chain_store, "tiny", lambda newest: following(newest, kind="refused", subject=version, decision=decision))
    text = checked(build_report(completed, chain_store))
    assert EN["promotions"] in text and "not_better" in text and "3 gained and 4 lost" in text
    chain_store.write_record("registry/tiny/000002.json", {"number": "damaged"})
    assert EN["promotions"] not in checked(build_report(completed, chain_store))


# -- in a browser -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["completed", "rich", "refused", "crashed"])
def test_in_a_browser(
    state: str, request: pytest.FixtureRequest, browser: Any, chain_store: Store, tmp_path: Path
) -> None:
    """No console errors, no requests and no sideways scroll, on a desktop and on a phone, in both languages."""
    record = request.getfixturevalue(state)
    for language in LANGUAGES:
        page = tmp_path / f"{language}.html"
        page.write_text(build_report(record, chain_store, language, tmp_path / "home"), encoding="utf-8")
        for window in ("desktop", "phone"):
            browser.open(page, window)
            assert browser.overflow() == (0, []), (language, window)
            assert browser.problems == [], (language, window)
            assert browser.evaluate("document.querySelector('h1').textContent.length") > 10


def test_a_chart_shows_its_values_under_the_pointer(
    completed: dict[str, Any], browser: Any, chain_store: Store, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    page.write_text(build_report(completed, chain_store), encoding="utf-8")
    browser.open(page)
    browser.evaluate("document.querySelector('#curves svg').scrollIntoView({behavior: 'instant', block: 'center'})")
    place = "(() => { const b = document.querySelector('#curves svg').getBoundingClientRect(); return [b.left, b.top, b.width, b.height]; })()"
    left, top, width, height = browser.evaluate(place)
    browser.move(left + width * 466 / 480, top + height / 2)
    tip = "document.querySelector('.tip') && document.querySelector('.tip').textContent"
    assert browser.evaluate(tip) == "optimizer step 50.5"  # step 5, reward 0.5
    browser.move(left + width / 2, top - 40)
    assert browser.evaluate(tip) is None
    browser.evaluate("document.querySelector('#curves svg').focus({preventScroll: true})")
    browser.ask("Input.dispatchKeyEvent", type="keyDown", key="ArrowRight", code="ArrowRight")
    assert browser.evaluate(tip) == "optimizer step 10.1"
    assert browser.problems == []
