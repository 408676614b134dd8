"""The real GRPO stage on random weights, in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline_config.loading import load_config
from tasks.process.context import StageContext, StageResult


@pytest.fixture(scope="session")
def random_sft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What an SFT stage that taught nothing would leave: random weights."""
    from tasks.models.tiny import build_tiny

    folder = tmp_path_factory.mktemp("random")
    build_tiny(folder / "model", seed=0)
    return folder


@pytest.fixture
def run_grpo(
    random_sft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[StageContext, StageResult]]:
    """Run the stage in the folder `name`, again if it is there already; reward modules in the test's folder can be named."""
    monkeypatch.syspath_prepend(str(tmp_path))
    dataset = tmp_path / "dataset"
    dataset.mkdir()
    rows = [{"id": f"p{i}", "question": f"What is {i} + 0?", "answer": str(i), "source": "sum"} for i in range(40)]
    pq.write_table(pa.Table.from_pylist(rows), dataset / "train.parquet")
    pq.write_table(pa.Table.from_pylist(rows[:8]), dataset / "gate.parquet")

    def start(settings: Sequence[str], name: str, *overrides: str) -> tuple[StageContext, StageResult]:
        from tasks.grpo.entry import run

        work = tmp_path / name
        for folder in ("out", "checkpoints"):
            (work / folder).mkdir(parents=True, exist_ok=True)
        config = load_config("tiny", overrides=[*settings, *overrides])
        ctx = StageContext(config, {"sft": random_sft, "dataset": dataset}, work, seed=3)
        return ctx, run(ctx)

    return start
