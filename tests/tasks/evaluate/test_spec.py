"""The frozen spec: what enters it, and which difference is named. And the grader's version against its verdicts."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from pipeline_config.contract import ContractConfig
from tasks.contract.grading import grade, lenient
from tasks.evaluate.spec import GRADER_VERSION, differences, make_spec, problems_digest

ROWS = [{"id": "1", "question": "3 + 5?", "answer": "8"}, {"id": "2", "question": "2 + 2?", "answer": "4"}]
SAMPLER = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": None}


def spec(**changed: Any) -> dict[str, Any]:
    options: dict[str, Any] = {
        "rows": ROWS,
        "contract": ContractConfig(),
        "chat_template": "{{ messages }}",
        "max_new_tokens": 64,
        "max_context": 256,
        "samples": 4,
        "sampler": SAMPLER,
        "seed": 0,
    }
    options |= changed
    return make_spec(options.pop("rows"), options.pop("contract"), options.pop("chat_template"), **options)


def test_equal_settings_give_equal_digests() -> None:
    assert spec() == spec()
    assert differences(spec(), spec()) == []
    renamed = [{**row, "id": "x", "source": "elsewhere"} for row in ROWS]
    assert spec(rows=renamed)["digest"] == spec()["digest"], "ids and sources are no part of the problems"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"rows": ROWS[:1]}, "problems.n: 2 -> 1"),
        ({"rows": ROWS[::-1]}, "problems.digest"),
        ({"rows": [{**ROWS[0], "answer": "9"}, ROWS[1]]}, "problems.digest"),
        ({"contract": ContractConfig(answer_start="<A>")}, 'prompt.contract.answer_start: "<SOLUTION>" -> "<A>"'),
        ({"chat_template": "{{ messages }}!"}, "prompt.chat_template"),
        ({"max_new_tokens": 65}, "limits.max_new_tokens: 64 -> 65"),
        ({"max_context": 512}, "limits.max_context: 256 -> 512"),
    ],
)
def test_what_a_greedy_score_depends_on(change: dict[str, Any], named: str) -> None:
    before, after = spec(), spec(**change)
    assert before["digest"] != after["digest"] and before["greedy_digest"] != after["greedy_digest"]
    assert any(line.startswith(named) for line in differences(before, after, greedy=True))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"samples": 8}, "sampling.samples: 4 -> 8"),
        ({"seed": 1}, "sampling.seed: 0 -> 1"),
        ({"sampler": {**SAMPLER, "temperature": 0.6}}, "sampling.temperature: 1 -> 0.6"),
        ({"samples": 0}, "sampling"),
    ],
)
def test_how_samples_are_drawn_does_not_concern_greedy_scores(change: dict[str, Any], named: str) -> None:
    before, after = spec(), spec(**change)
    assert before["digest"] != after["digest"] and before["greedy_digest"] == after["greedy_digest"]
    assert differences(before, after)[0].startswith(named)
    assert differences(before, after, greedy=True) == []


def test_without_samples_seed_and_sampler_are_no_part_of_it() -> None:
    assert spec(samples=0, seed=1)["digest"] == spec(samples=0, seed=2, sampler=None)["digest"]


def test_the_grading_is_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = spec()
    monkeypatch.setattr("tasks.evaluate.spec.GRADER_VERSION", GRADER_VERSION + 1)
    assert differences(before, spec()) == [f"grading.version: {GRADER_VERSION} -> {GRADER_VERSION + 1}"]
    assert {"math-verify", "sympy"} <= spec()["grading"].keys()


def test_problems_digest_by_content() -> None:
    assert problems_digest(ROWS) != problems_digest(ROWS[:1]) != problems_digest([])


ANSWERS = (
    "8", "8.0", "08", "+8", "8 apples", "$8", r"\boxed{8}", r"$\frac{16}{2}$", "8 or 9", "about 8", "3 + 5", "3 + 5 = 8",
    "eight", "-8", "80%", "0.8", "1,234", "1234", "1 234", "1/2", "0.5", r"\frac{1}{2}", "50%", "(1, 2)", "(2, 1)",
    r"\sqrt{8}", r"2\sqrt{2}", "x+1", "1+x", "yes", "No", "(B)", "b", "", "12:30", "5 m", "500 cm", "2^3", "1e3", "∞",
    "8 xyz", "8 score", "8的两倍", "square of x = 8", "2x = x+1", "y = x+1", "x+1 million", "±8", "8, -8", "8, 1 or 2",
)  # fmt: skip
GOLDS = ("8", "1234", r"\frac{1}{2}", "(1,2)", r"2\sqrt{2}", "x+1", "yes", "B", "-8", "80\\%")
LAYOUTS = (
    "w<end_working_out><SOLUTION>{}</SOLUTION>",
    "w<end_working_out>\n<SOLUTION> {}\n</SOLUTION>\n",
    "w<end_working_out><SOLUTION>{}",
    "w\n#### {}",
    "The answer is {}.",
    "so it is {}",
    "w<end_working_out><SOLUTION>{}</SOLUTION><SOLUTION>{}</SOLUTION>",
)
VERDICTS = {2: "c885f037f2eb6ebda9260e70ad8966ad4be4f3350e0be1972e13c967eba7197c"}
"""GRADER_VERSION -> sha256 over the verdicts on the corpus above."""


def test_the_graders_version_is_raised_when_its_verdicts_change() -> None:
    """When this fails: raise GRADER_VERSION in tasks/evaluate/spec.py and add its digest here, so that no score under the
    new verdicts is compared with one under the old."""
    contract, lines = ContractConfig(), []
    for gold in GOLDS:
        for answer in ANSWERS:
            for layout in LAYOUTS:
                text = layout.replace("{}", answer)
                mark = grade(text, gold, contract)
                lines.append(f"{gold}|{text}|{mark.kind}|{mark.well_formed}|{lenient(text, gold, contract)}")
    assert VERDICTS[GRADER_VERSION] == hashlib.sha256("\n".join(lines).encode()).hexdigest()
