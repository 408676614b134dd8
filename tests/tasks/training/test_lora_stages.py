"""A LoRA run of the real SFT stage: the merge is measured, and adapter and merged weights are both there."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_config.loading import load_config
from tasks.models.tiny import build_tiny
from tasks.process.context import StageContext
from tasks.sft import entry


def test_the_sft_stage_measures_its_merge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_tiny(tmp_path / "model" / "model", seed=0)
    rows = [{"question": f"What is {i} + 2?", "working": f"{i}+2={i + 2}", "answer": str(i + 2)} for i in range(16)]
    (tmp_path / "dataset").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "dataset" / "sft.parquet")
    work = tmp_path / "work"
    (work / "out").mkdir(parents=True)
    (work / "checkpoints").mkdir()
    settings = ["sft.method=lora", "sft.max_steps=2", "sft.per_device_train_batch_size=8", "sft.warmup_steps=0"]
    ctx = StageContext(
        load_config("tiny", overrides=settings),
        {"model": tmp_path / "model", "dataset": tmp_path / "dataset"},
        work,
    )
    result = entry.run(ctx)
    merge = result.metrics["merge"]
    assert merge["tokens"] > 40 and 0 <= merge["mean"] < 0.01 and merge["lost"] < 0.1
    assert (ctx.out / "adapter" / "adapter_model.safetensors").is_file()
    assert (ctx.out / "model" / "model.safetensors").is_file()
    assert result.metrics["trainable_parameters"] < result.metrics["parameters"]
