"""The stage with real files: every finding is written, and a fail stops the run by its name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_config.loading import load_config
from tasks.errors import ConfigError, DataError, Interrupted, ModelError, PipelineError, StoreError
from tasks.findings import Finding
from tasks.preflight import entry, machine, verdict
from tasks.process.context import StageContext, StageResult

pytest.importorskip("trl")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The artifact of the model stage."""
    from tasks.models.tiny import build_tiny

    folder = tmp_path_factory.mktemp("artifact")
    build_tiny(folder / "model", seed=0)
    return folder


def problems(count: int, start: int = 0) -> list[dict[str, str]]:
    rows = [(11 + i, 60 + 3 * i) for i in range(start, start + count)]
    return [
        {
            "id": f"p{a}",
            "question": f"{a} + {b} = ?",
            "working": f"{a} + {b} = {a + b}",
            "answer": str(a + b),
            "source": "sum",
        }
        for a, b in rows
    ]


@pytest.fixture
def stage(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., StageContext]:
    """`stage("grpo.top_p=0.9", train=[...])`: a context with tables of its own. The export is not carried out."""
    monkeypatch.setattr(entry, "check_export", lambda *_: [Finding("export.dry_run", "ok", "not carried out")])

    def make(*overrides: str, model: Path = tiny, **tables: list[dict[str, str]]) -> StageContext:
        dataset, work = tmp_path / "dataset", tmp_path / "work"
        (work / "out").mkdir(parents=True, exist_ok=True)
        dataset.mkdir(exist_ok=True)
        own = {"train": problems(64), "gate": problems(8, 64), "eval": problems(8, 72), "sft": problems(16, 80)}
        for name, rows in {**own, **tables}.items():
            pq.write_table(pa.Table.from_pylist(rows), dataset / f"{name}.parquet")
        batch = ["grpo.per_device_train_batch_size=64", *overrides]
        return StageContext(load_config("tiny", overrides=batch), {"model": model, "dataset": dataset}, work)

    return make


def findings(ctx: StageContext) -> dict[str, dict[str, Any]]:
    data = json.loads((ctx.out / "findings.json").read_text(encoding="utf-8"))
    return {row["name"]: row for row in data["findings"]}


def stopped(ctx: StageContext) -> PipelineError:
    with pytest.raises(PipelineError) as caught:
        entry.run(ctx)
    assert findings(ctx)[caught.value.cause]["status"] == "fail"
    return caught.value


def test_a_sound_run_passes(stage: Any, capsys: pytest.CaptureFixture[str]) -> None:
    ctx = stage()
    result = entry.run(ctx)
    assert isinstance(result, StageResult)
    found = findings(ctx)
    assert {row["status"] for row in found.values()} <= {"ok", "warn"}, [
        r for r in found.values() if r["status"] == "fail"
    ]
    assert {row["group"] for row in found.values()} == set(verdict.GROUPS)
    assert result.metrics["findings/fail"] == 0 and result.metrics["findings/ok"] > 40
    assert result.metrics["memory_bytes"] > 10**9 and result.metrics["disk_bytes"] > 10**6
    printed = capsys.readouterr().out
    assert all(name in printed for name in found)
    plans = json.loads((ctx.out / "findings.json").read_text())["plans"]
    weights = plans["memory"]["stages"]["grpo"]["weights"]
    assert weights == plans["disk"]["models"] and 4 * 1e6 < weights < 4 * 3e6  # 4 bytes a weight


def test_warnings_are_notes_and_stop_nothing(stage: Any) -> None:
    result = entry.run(stage("grpo.top_p=0.9"))
    assert [note for note in result.notes if note.startswith("config.sampling: top_p=0.9")]


def test_zero_golds(stage: Any) -> None:
    ctx = stage(train=[{**row, "answer": "0"} for row in problems(64)])
    error = stopped(ctx)
    assert (type(error), error.cause, error.exit_code) == (DataError, "data.zero_golds", 11)
    assert "1 more: data.constant_answer" in error.message and error.fix


def test_grouped_golds_are_fine(stage: Any) -> None:
    rows = [{**row, "answer": f"{1000 + i:,}"} for i, row in enumerate(problems(64))]
    entry.run(stage(train=rows))
    assert stopped(stage("grpo.rewards.preset=self_llm", train=rows)).cause == "data.gold_scores_maximum"


def test_prompts_that_do_not_fit(stage: Any) -> None:
    rows = [*problems(63), {**problems(1, 99)[0], "question": "1 + 1 = ? " * 60}]
    error = stopped(stage(train=rows))
    assert error.cause == "data.context" and "> 256 tokens" in error.message


def test_too_few_problems_for_one_step(stage: Any) -> None:
    error = stopped(stage(train=problems(7)))
    assert (type(error), error.cause) == (ConfigError, "config.rows")


def with_tokenizer(tiny: Path, folder: Path, change: Callable[[Any], None]) -> Path:
    """The model's artifact with a changed tokenizer."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(tiny / "model"))
    change(tokenizer)
    tokenizer.save_pretrained(str(folder / "model"))
    for name in ("config.json", "model.safetensors"):
        (folder / "model" / name).write_bytes((tiny / "model" / name).read_bytes())
    return folder


def test_tags_registered_as_special_tokens(stage: Any, tiny: Path, tmp_path: Path) -> None:
    def register(tokenizer: Any) -> None:
        tokenizer.add_special_tokens({"additional_special_tokens": ["<SOLUTION>", "</SOLUTION>"]})

    error = stopped(stage(model=with_tokenizer(tiny, tmp_path / "artifact", register)))
    assert (type(error), error.cause, error.exit_code) == (ModelError, "tag.answer_start", 12)


def test_a_template_without_a_generation_prompt(stage: Any, tiny: Path, tmp_path: Path) -> None:
    def cut(tokenizer: Any) -> None:
        tokenizer.chat_template = tokenizer.chat_template.partition("{%- if add_generation_prompt")[0]

    error = stopped(stage(model=with_tokenizer(tiny, tmp_path / "artifact", cut)))
    assert (type(error), error.cause) == (ModelError, "template.generation_prompt")


@pytest.mark.parametrize(("missing", "cause"), [("chat_template", "no_chat_template"), ("eos_token", "no_eos")])
def test_a_tokenizer_that_lacks_something(stage: Any, tiny: Path, tmp_path: Path, missing: str, cause: str) -> None:
    ctx = stage(model=with_tokenizer(tiny, tmp_path / "artifact", lambda tokenizer: setattr(tokenizer, missing, None)))
    error = stopped(ctx)
    assert (type(error), error.cause) == (ModelError, cause)
    assert findings(ctx)["export.dry_run"]["status"] == "not_measured"


def test_bad_rewards(stage: Any, user_module: str) -> None:
    function = f"grpo.rewards.functions=[{{path: '{user_module}:raises'}}]"
    ctx = stage("grpo.rewards.preset=null", function)
    error = stopped(ctx)
    assert (type(error), error.cause) == (ConfigError, "rewards.no_exception")
    assert findings(ctx)["data.gold_scores_maximum"]["status"] == "not_measured"


def test_a_constant_reward(stage: Any, user_module: str) -> None:
    function = f"grpo.rewards.functions=[{{path: '{user_module}:constant'}}]"
    assert stopped(stage("grpo.rewards.preset=null", function)).cause == "rewards.two_outcomes"


def test_a_reward_that_cannot_be_loaded(stage: Any, user_module: str) -> None:
    function = f"grpo.rewards.functions=[{{path: '{user_module}:nothing'}}]"
    error = stopped(stage("grpo.rewards.preset=null", function))
    assert isinstance(error, ConfigError) and "nothing" in error.message


@pytest.mark.parametrize(
    ("here", "kind", "cause"),
    [
        (machine.Machine(10**6, (), 10**12), ConfigError, "memory.host"),
        (machine.Machine(10**12, (), 10**6), StoreError, "disk"),
    ],
)
def test_too_little_of_something(
    stage: Any, monkeypatch: pytest.MonkeyPatch, here: machine.Machine, kind: type, cause: str
) -> None:
    monkeypatch.setattr(machine, "read_machine", lambda _: here)
    error = stopped(stage())
    assert (type(error), error.cause) == (kind, cause)


def test_an_export_that_cannot_work(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ctx = stage()
    failing = [Finding("export_unsupported", "fail", "unknown architecture", "another model")]
    monkeypatch.setattr(entry, "check_export", lambda *_: failing)
    error = stopped(ctx)
    assert (type(error), error.cause, error.fix) == (ModelError, "export_unsupported", "another model")


def test_a_check_that_breaks_is_not_measured_and_does_not_stop_the_run(
    stage: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaks(*_: Any, **__: Any) -> Any:
        raise KeyError("surprise")

    monkeypatch.setattr(entry.data, "check_lengths", breaks)
    ctx = stage()
    entry.run(ctx)
    found = findings(ctx)["data"]
    assert found["status"] == "not_measured" and "KeyError: 'surprise'" in found["evidence"]
    assert "Traceback" in capsys.readouterr().err


def test_a_stop_is_no_finding(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any, **__: Any) -> Any:
        raise Interrupted("asked to stop")

    monkeypatch.setattr(entry.data, "check_golds", stop)
    with pytest.raises(Interrupted):
        entry.run(stage())
