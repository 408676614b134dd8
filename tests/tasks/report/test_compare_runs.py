"""Two runs compared: which settings differ, whether their scores may be compared, and the paired result."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from artifacts.store import Store, open_store
from flows.record import RunRecord
from pipeline_config.loading import load_config
from tasks.evaluate.scores import score
from tasks.evaluate.spec import make_spec
from tasks.report.build import LANGUAGES, words_of
from tasks.report.compare import NO_COMMON_MODEL, NO_COMMON_PROBLEM, compare_runs, settings
from tasks.report.compare_page import build_comparison, evidence, headline
from tasks.report.run_files import RunFiles, open_run

EN = words_of("en")
LETTERS = "abcdefghijkl"


def items(right: str, names: str = LETTERS) -> list[dict[str, Any]]:
    """A problem a letter, right in those that are named; three of four samples right where the greedy answer is, else one."""
    return [
        {
            "id": name,
            "question": f"What is {name}?",
            "answer": "5",
            "completion": name,
            "tokens": 12,
            "truncated": False,
            "right": name in right,
            "lenient": name in right,
            "well_formed": True,
            "samples": 4,
            "sampled_right": 3 if name in right else 1,
        }
        for name in names
    ]


def spec(names: str, **changed: Any) -> dict[str, Any]:
    config = load_config("tiny")
    rows = [{"question": f"What is {name}?", "answer": "5"} for name in names]
    limits = {"max_new_tokens": 48, "max_context": 256, **changed}
    return make_spec(rows, config.contract, "template", samples=4, sampler={"temperature": 1.0}, **limits)


@pytest.fixture
def run(make_chain: Any, chain_store: Store, tmp_path: Path) -> Any:
    """Make a run of `tiny`: what its GRPO model got right, with these settings."""

    def made(
        right: str,
        *overrides: str,
        names: str = LETTERS,
        with_spec: dict[str, Any] | None = None,
        until: str = "export",
    ) -> RunFiles:
        config = load_config("tiny", overrides=list(overrides))
        rows = {"evaluate_sft": items("ab", names), "evaluate_grpo": items(right, names)}
        metrics = {name: {**score(found, 4), "spec": with_spec or spec(names)} for name, found in rows.items()}
        curve = [{"step": s, "reward": 0.1 * s, "frac_reward_zero_std": 0.5} for s in (1, 2, 3)]
        content = {
            f"{name}/items.jsonl": "".join(json.dumps(row) + "\n" for row in found) for name, found in rows.items()
        }
        content["grpo/metrics.jsonl"] = "".join(json.dumps(row) + "\n" for row in curve)
        hardware = {"gpus": ["H200"], "cpus": 8}
        chain = make_chain(
            config, content=content, metrics=metrics, hardware=hardware, until=until, mark="\n" if overrides else ""
        )
        record = RunRecord.start(config)
        for name, manifest in chain.items():
            record.stage_started(name)
            record.stage_done(name, manifest, "made", "nothing stored yet", 60.0)
        record.finish()
        return open_run(record.to_json(), chain_store, tmp_path / "home")

    return made


def test_settings_that_differ() -> None:
    a, b = (
        load_config("tiny", overrides=sets).model_dump(mode="json") for sets in ([], ["grpo.beta=0.1", "run.threads=2"])
    )
    assert settings(a, b) == [
        {"name": "grpo.beta", "a": 0.0, "b": 0.1, "matters": True},
        {"name": "run.threads", "a": None, "b": 2, "matters": False},
    ]
    assert settings({"a": {"b": [1]}}, {"a": {}}) == [{"name": "a.b", "a": [1], "b": None, "matters": True}]
    assert settings(a, a) == []


def test_a_better_run(run: Any) -> None:
    """B has seven problems more and none less: p = 2 / 2^7 = 0.0156; so has pass@1 by the sign-flip test."""
    found = compare_runs(run("abc"), run("abcdefghij", "grpo.beta=0.1"))
    assert [row["name"] for row in found["settings"]] == ["grpo.beta"]
    (one,) = found["sets"]
    row = next(row for row in one["models"] if row["model"] == "grpo")
    assert (row["comparable"], row["common"], row["n"]) == (True, 12, [12, 12])
    difference = row["difference"]
    assert (difference["gained"], difference["lost"], difference["verdict"]) == (7, 0, "better")
    assert difference["p"] == pytest.approx(2 / 2**7)
    assert headline(found, EN) == (
        "B is better in strict accuracy: 83.3% against 25.0%; B is better in sampled pass@1: 66.7% against 37.5%."
    )
    assert evidence(found, EN).startswith("GRPO models on the same 12 problems · Strict accuracy +58.3 points [")
    stages = {row["stage"]: row for row in found["stages"]}
    assert stages["sft"]["how"] == "same" and stages["grpo"]["how"] == "differs"
    assert stages["grpo"]["terms"] == ["grpo.beta: 0 -> 0.1"]
    sft = next(row for row in one["models"] if row["model"] == "sft")
    assert sft["same_model"] and not row["same_model"]
    assert found["a"]["cost"]["gpu_hours_all"] > 0
    assert [chart["key"] for chart in found["curves"]] == ["reward", "dead_groups"]
    # The other way round A is the better one.
    turned = compare_runs(run("abcdefghij", "grpo.beta=0.1"), run("abc"))
    assert headline(turned, EN).startswith("A is better in strict accuracy: 83.3% against 25.0%")


def test_no_measurable_difference(run: Any) -> None:
    found = compare_runs(run("abcdef"), run("abcdeg", "grpo.beta=0.1"))
    assert headline(found, EN).startswith("No measurable difference in strict accuracy (50.0% and 50.0%)")


def test_only_common_problems_count(run: Any) -> None:
    """A answered a to h, B e to l: four in common, of which A has f right and B e, f, g."""
    a, b = run("abf", names="abcdefgh"), run("efgijkl", "grpo.beta=0.1", names="efghijkl")
    found = compare_runs(a, b)
    row = found["sets"][0]["models"][-1]
    assert (row["common"], row["n"]) == (4, [8, 8])
    assert (row["a"]["strict"]["hits"], row["b"]["strict"]["hits"]) == (1, 3)
    assert "the 4 problems that both answered (of 8 and 8)" in evidence(found, EN)


def test_the_same_question_with_another_gold_is_another_problem(run: Any, chain_store: Store) -> None:
    a, b = run("abc"), run("abc", "grpo.beta=0.1", names=LETTERS.upper())
    found = compare_runs(a, b)
    assert found["verdict"]["reasons"] == [NO_COMMON_PROBLEM]
    assert headline(found, EN) == "These runs cannot be compared: they have no evaluation problem in common."


def test_another_length_limit_is_another_ruler(run: Any) -> None:
    found = compare_runs(run("abc"), run("abcdefghij", "grpo.beta=0.1", with_spec=spec(LETTERS, max_new_tokens=64)))
    row = found["sets"][0]["models"][-1]
    assert row["reasons"] == ["limits.max_new_tokens: 48 -> 64"] and row["difference"] is None
    assert headline(found, EN) == "These runs cannot be compared: limits.max_new_tokens: 48 -> 64."
    assert evidence(found, EN) == ""


def test_another_prompt_is_named_but_compared(run: Any) -> None:
    other = spec(LETTERS)
    other["prompt"] = {**other["prompt"], "chat_template": "another"}
    row = compare_runs(run("abc"), run("abd", "grpo.beta=0.1", with_spec=other))["sets"][0]["models"][-1]
    assert row["comparable"] and len(row["notes"]) == 1 and row["notes"][0].startswith("prompt.chat_template")


def test_without_specs_the_terms_decide(run: Any) -> None:
    """Artifacts of older versions hold no spec, but these terms."""

    def older(made: RunFiles, limit: int) -> RunFiles:
        manifests = {}
        for name, manifest in made.manifests.items():
            metrics = {key: value for key, value in manifest.metrics.items() if key != "spec"}
            terms = {"max_new_tokens": limit, "max_context": 256, "template": {"contract": limit}}
            manifests[name] = manifest.model_copy(update={"metrics": metrics, "terms": terms})
        return dataclasses.replace(made, manifests=manifests)

    a, b = older(run("abc"), 48), older(run("abc", "grpo.beta=0.1"), 40)
    row = compare_runs(a, b)["sets"][0]["models"][-1]
    assert row["reasons"] == ["limits.max_new_tokens: 48 -> 40"]
    assert row["notes"] == ["prompt.contract: 48 -> 40"]
    assert compare_runs(a, older(b, 48))["sets"][0]["models"][-1]["comparable"]


def test_runs_without_scores(run: Any) -> None:
    found = compare_runs(run("abc", until="sft"), run("abc", "grpo.beta=0.1"))
    assert found["verdict"]["reasons"] == [NO_COMMON_MODEL]
    assert headline(found, EN) == "These runs cannot be compared: no model was evaluated in both."
    for language in LANGUAGES:
        assert "<h1>" in build_comparison(found, language)


@pytest.mark.parametrize("state", ["better", "not comparable", "no scores"])
def test_in_a_browser(state: str, run: Any, browser: Any, tmp_path: Path) -> None:
    second = {
        "better": lambda: run("abcdefghij", "grpo.beta=0.1", "grpo.rewards.proximity=0.2"),
        "not comparable": lambda: run("abc", "grpo.beta=0.1", with_spec=spec(LETTERS, max_new_tokens=64)),
        "no scores": lambda: run("abc", "grpo.beta=0.1", until="sft"),
    }[state]
    found = compare_runs(run("abc"), second())
    for language in LANGUAGES:
        page = tmp_path / f"{language}.html"
        page.write_text(build_comparison(found, language), encoding="utf-8")
        for window in ("desktop", "phone"):
            browser.open(page, window)
            assert browser.overflow() == (0, []) and browser.problems == [], (language, window)


def test_a_store_elsewhere(run: Any, tmp_path: Path) -> None:
    """Runs of two stores: what is in one is not looked for in the other."""
    a = run("abc")
    empty = open_run(a.record, open_store(str(tmp_path / "empty" / "store")))
    found = compare_runs(a, empty)
    assert {row["how"] for row in found["stages"]} == {"only_a"} and not found["verdict"]["comparable"]
