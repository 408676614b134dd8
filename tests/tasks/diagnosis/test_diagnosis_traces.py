"""Whole logs: the shared corpus, and 300 of a generator that is built differently."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from tasks.diagnosis.doctor import diagnose, diagnose_rows
from tasks.diagnosis.run_info import from_mapping

CORPUS = Path(__file__).resolve().parents[4] / "shared" / "corpora" / "traces"
INDEX = json.loads((CORPUS / "index.json").read_text()) if (CORPUS / "index.json").is_file() else []


@pytest.mark.skipif(not INDEX, reason=f"the shared traces are not at {CORPUS}")
@pytest.mark.parametrize("entry", INDEX, ids=[entry["file"] for entry in INDEX])
def test_corpus(entry: dict) -> None:
    for info in (from_mapping(entry), None):
        found = diagnose(CORPUS / entry["file"], info)
        assert found.verdict in (entry["verdict"], *entry["accept"])
        assert json.loads(json.dumps(found.to_json(), allow_nan=False))["verdict"] == found.verdict
        if entry["onset_step"] is None:
            assert not found.also
        elif found.steps_known:
            # The log of steps says when; within 40 steps or two logged rows of where the fault starts.
            assert found.onset_step is not None
            assert abs(found.onset_step - entry["onset_step"]) <= max(40, 2 * entry["logging_steps"])


@pytest.mark.skipif(not INDEX, reason=f"the shared traces are not at {CORPUS}")
def test_corpus_beta_0_is_not_measured_rather_than_fine() -> None:
    found = diagnose(CORPUS / "healthy_beta0.jsonl")
    assert "kl_explosion" in [item["check"] for item in found.not_measured] and "kl_explosion" not in found.passed


def test_200_faulty_traces(traces: ModuleType) -> None:
    wrong: list[str] = []
    per_kind: Counter[str] = Counter()
    for i in range(200):
        fault = traces.FAULTS[i % len(traces.FAULTS)]
        trace = traces.make_trace(i, fault)
        found = diagnose_rows(trace.rows, from_mapping(trace.info) if trace.info else None)
        if found.verdict not in (fault, *trace.accept):
            wrong.append(f"{trace.name} -> {found.verdict}")
            per_kind[fault] += 1
    assert len(wrong) <= 10, wrong
    assert max(per_kind.values(), default=0) <= 4, wrong


def test_100_healthy_traces_raise_nothing(traces: ModuleType) -> None:
    for i in range(200, 300):
        trace = traces.make_trace(i)
        info = from_mapping(trace.info) if trace.info else None
        ends = range(5, len(trace.rows) + 1, 7) if i % 4 == 0 else ()
        for end in (*ends, len(trace.rows)):
            found = diagnose_rows(trace.rows[:end], info)
            assert not found.failed, f"{trace.name}, row {end}: {found.verdict}, {found.headline}"


def test_the_generator_repeats_itself(traces: ModuleType) -> None:
    assert traces.make_trace(7, "kl_explosion") == traces.make_trace(7, "kl_explosion")
    assert {traces.make_trace(seed).logging_steps for seed in range(12)} == {1, 5, 10}


REAL = [json.loads(line) for line in Path(__file__).with_name("real_runs.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("run", REAL, ids=[run["run"] for run in REAL])
def test_real_runs(run: dict) -> None:
    """TRL 1.13, a 2 M parameter model, digits of sums, one planted fault each: named within ten rows of its start, and of nothing else."""
    rows, info = run["rows"], from_mapping(run["info"])
    seen = [(row["step"], diagnose_rows(rows[: i + 1], info).verdict) for i, row in enumerate(rows)]
    failed = [(step, verdict) for step, verdict in seen if verdict != "healthy"]
    if run["verdict"] == "healthy":
        assert not failed
        return
    assert {verdict for _, verdict in failed} <= {run["verdict"], *run["accept"]}
    assert failed[0][0] <= run["fault_from_step"] + 10
    assert seen[-1][1] in (run["verdict"], *run["accept"])
