"""vLLM or transformers: worked examples for a 135M and an 8B model."""

import pytest

from pipeline_config.loading import load_config
from pipeline_config.pipeline import PipelineConfig
from tasks.preflight.memory import ModelShape
from tasks.sampling.choice import MOST_ROWS, engine_pays, rows_that_fit, transformers_seconds

SMALL = ModelShape(
    135_000_000, layers=30, hidden=576, intermediate=1536, vocab=49_152, kv_width=192, linear={}, linear_parameters=0
)
LARGE = ModelShape(
    8_000_000_000,
    layers=36,
    hidden=4096,
    intermediate=12_288,
    vocab=151_936,
    kv_width=1024,
    linear={},
    linear_parameters=0,
)
GIB = 2**30


def with_context(tokens: int) -> PipelineConfig:
    return load_config("tiny", overrides=[f"model.max_context={tokens}", "grpo.max_completion_length=16"])


def test_a_batch_fills_a_quarter_of_the_free_memory() -> None:
    # 512 tokens: 2 x 2 x 30 x 192 x 512 = 11.8 MB of keys and values and 0.6 MB of logits a row: 512 rows are 6.3 GB.
    assert rows_that_fit(SMALL, with_context(512), 80 * GIB) == MOST_ROWS
    # 4096 tokens: 604 MB + 1.8 MB a row; a quarter of 80 GiB holds 35.
    assert rows_that_fit(LARGE, with_context(4096), 80 * GIB) == 35
    assert rows_that_fit(LARGE, with_context(4096), 1 * GIB) == 1


def test_expected_time() -> None:
    # 96,000 tokens in batches of 512: 188 steps of 30 layers of 0.8 ms.
    assert transformers_seconds(SMALL, 512, 96_000) == pytest.approx(188 * 30 * 0.0008)


def test_an_engine_starts_only_for_work_that_takes_longer_than_its_start() -> None:
    assert not engine_pays(SMALL, 512, 1000 * 96)
    assert engine_pays(SMALL, 512, 20_000 * 96)
    assert engine_pays(LARGE, 35, 200 * 1024)
