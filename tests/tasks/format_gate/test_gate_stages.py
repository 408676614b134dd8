"""The gate, a further SFT round, pass rates and the selection as real stages on a real tiny model: too little SFT, more of it, then go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_config.loading import load_config
from tasks.errors import Interrupted
from tasks.format_gate.verdict import decide
from tasks.models.tiny import build_tiny
from tasks.process.context import StageContext, StageResult

pytest.importorskip("trl")

QUICK = [
    "sft.per_device_train_batch_size=16",
    "sft.learning_rate=3e-3",
    "sft.warmup_steps=5",
    "grpo.num_generations=4",
    "grpo.max_completion_length=24",
    "gate.prompts=40",
    "gate.min_format_rate=0.5",
    "pass_rates.samples=4",
    "grpo.per_device_train_batch_size=32",
]


def problem(a: int, b: int, trace: bool) -> dict[str, Any]:
    row = {"id": f"{a}+{b}", "question": f"What is {a} + {b}?", "answer": str(a + b), "source": "sum"}
    return {**row, "working": f"{a} + {b} = {a + b}"} if trace else row


class Stages:
    """Runs stages one after the other in this process, each in a work directory of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.outputs, self.count = folder, dict[str, Path](), 0

    def context(self, *inputs: str, options: dict[str, Any] | None = None, sets: tuple[str, ...] = ()) -> StageContext:
        self.count += 1
        work = self.folder / f"work-{self.count}"
        for name in ("out", "checkpoints"):
            (work / name).mkdir(parents=True)
        config = load_config("tiny", overrides=[*QUICK, *sets])
        return StageContext(config, {n: self.outputs[n] for n in inputs}, work, seed=3, options=options or {})

    def sft(self, *inputs: str, sets: tuple[str, ...] = (), **options: Any) -> StageResult:
        from tasks.sft.entry import run

        ctx = self.context(*inputs, options=options, sets=sets)
        result = run(ctx)
        self.outputs["sft"] = ctx.out
        return result

    def gate(self, *sets: str, **options: Any) -> StageResult:
        from tasks.format_gate.entry import run

        ctx = self.context("sft", "dataset", options=options, sets=sets)
        result = run(ctx)
        self.outputs["format_gate"] = ctx.out
        return result


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Stages:
    """A base model and tables: SFT sees sums of an even first number, and some of GRPO's; GRPO's training table has both."""
    stages = Stages(tmp_path_factory.mktemp("gate"))
    for name in ("model/model", "dataset"):
        (stages.folder / name).mkdir(parents=True)
    build_tiny(stages.folder / "model" / "model", seed=0)
    tables = {
        "sft": [problem(a, b, True) for a in range(0, 10, 2) for b in range(10)] * 4,
        "train": [problem(a, b, False) for b in range(10) for a in (2, 1, 3, 5, 7)],
        "gate": [problem(9, b, False) for b in range(10)],
    }
    for name, rows in tables.items():
        pq.write_table(pa.Table.from_pylist(rows), stages.folder / "dataset" / f"{name}.parquet")
    stages.outputs = {"model": stages.folder / "model", "dataset": stages.folder / "dataset"}
    return stages


def samples(stages: Stages) -> list[dict[str, Any]]:
    text = (stages.outputs["format_gate"] / "samples.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def test_too_little_sft_then_a_round_then_go(stages: Stages) -> None:
    first = stages.sft("model", "dataset", sets=("sft.max_steps=6",))
    assert (first.metrics["steps"], first.metrics["round"]) == (6, 0)
    before = stages.gate(whole=True).metrics
    config = load_config("tiny", overrides=QUICK)
    assert decide(before, config.gate).name == "more_sft"
    # What SFT has not seen of GRPO's problems, 40 of 50.
    assert (before["prompts"], before["prompts_of_grpo"], before["stopped_early"]) == (40, 40, False)
    assert len({row["id"] for row in samples(stages)}) == 40
    assert all(int(row["id"][0]) % 2 for row in samples(stages))

    again = stages.sft("sft", "dataset", sets=("sft.max_steps=6",), round=1, max_steps=50)
    assert (again.metrics["steps"], again.metrics["round"]) == (50, 1)
    after = stages.gate(whole=True).metrics
    assert decide(after, config.gate).name == "go"
    assert after["format_rate_low"] > before["format_rate_high"]
    assert after["components"]["sound"]["std_within"] > 0
    assert after["taught_tokens"]["max"] <= 24 and after["tags_lost_in_decode"] == []
    rows = samples(stages)
    assert len(rows) == 160 == after["completions"]
    assert sum(row["well_formed"] for row in rows) == round(after["format_rate"] * 160)
    assert sum(row["right"] for row in rows) == sum(i * n for i, n in enumerate(after["prompts_by_right"]))
    written = json.loads((stages.outputs["format_gate"] / "gate.json").read_text(encoding="utf-8"))
    assert written["prompts_by_right"] == after["prompts_by_right"]


def test_a_clear_case_is_settled_before_all_is_sampled(stages: Stages) -> None:
    """Groups of 16 make four looks, at 10, 20, 30 and 40 prompts. Nobody can miss a format rate of 0.01."""
    result = stages.gate("grpo.num_generations=16", "gate.min_format_rate=0.01", "grpo.per_device_train_batch_size=32")
    prompts = result.metrics["prompts"]
    assert result.metrics["looks"] == 4
    assert result.metrics["stopped_early"] and prompts in (10, 20, 30)
    assert result.notes == [f"The first {prompts} of 40 prompts already decided; the others were not sampled."]
    assert len(samples(stages)) == 16 * prompts


def test_a_prompt_that_sft_saw_is_replaced_by_one_that_nobody_trains_on(stages: Stages) -> None:
    from tasks.format_gate.entry import choose_prompts

    tables = {
        n: pq.read_table(stages.outputs["dataset"] / f"{n}.parquet").to_pylist() for n in ("train", "sft", "gate")
    }
    rows, trained_on = choose_prompts(**tables, count=45)
    assert trained_on == 40 and len(rows) == 45
    assert [row["id"] for row in rows[40:]] == ["9+0", "9+1", "9+2", "9+3", "9+4"]


def test_pass_rates_of_the_training_prompts(stages: Stages, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped after two of three blocks, the stage goes on with the third; the numbers are those of one go."""
    from tasks.pass_rates import entry
    from tasks.sampling.sampler import Sampler
    from tasks.selection.entry import run as select

    monkeypatch.setattr(entry, "BLOCK", 20)
    whole = stages.context("sft", "dataset")
    in_one_go = entry.run(whole).metrics
    assert (in_one_go["prompts"], in_one_go["samples"]) == (50, 4)
    assert sum(in_one_go["prompts_by_right"]) == 50

    calls: list[int] = []
    budgets: list[int] = []
    start, sample = Sampler.__init__, Sampler.sample

    def started(self: Sampler, folder: Any, tokenizer: Any, config: Any, new_tokens: int) -> None:
        budgets.append(new_tokens)
        start(self, folder, tokenizer, config, new_tokens)

    def interrupted(self: Sampler, prompts: Any, *rest: Any, **more: Any) -> Any:
        calls.append(len(prompts))
        if len(calls) == 3:
            raise Interrupted("stop")
        return sample(self, prompts, *rest, **more)

    monkeypatch.setattr(Sampler, "__init__", started)
    monkeypatch.setattr(Sampler, "sample", interrupted)
    ctx = stages.context("sft", "dataset")
    with pytest.raises(Interrupted):
        entry.run(ctx)
    assert entry.run(ctx).metrics == in_one_go
    assert calls == [20, 20, 10, 10]
    # The engine is chosen by all that is to be sampled, so a resumed stage goes on with the one that it began with.
    assert budgets == [50 * 4 * ctx.config.grpo.max_completion_length] * 2
    assert (ctx.out / "rates.parquet").read_bytes() == (whole.out / "rates.parquet").read_bytes()

    stages.outputs["pass_rates"] = ctx.out
    chosen = select(stages.context("dataset", "pass_rates", sets=("pass_rates.min_kept=8",))).metrics
    assert 8 <= chosen["kept"] <= 50
    assert sum(chosen["prompts_by_right_after"]) == chosen["kept"]
    assert chosen["dead_groups_after"] <= chosen["dead_groups_before"]
