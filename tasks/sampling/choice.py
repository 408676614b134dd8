"""For gate, pass rates and evaluation on a GPU: vLLM, or transformers where that is done before a vLLM engine has started.

An engine takes most of a minute to start and then decodes much faster. For a small model and some hundred short completions
transformers has finished by then.
"""

from __future__ import annotations

import math

from pipeline_config.pipeline import PipelineConfig
from tasks.preflight.memory import ModelShape, cache_bytes

ENGINE_START_S = 45.0
"""Start of an engine, imports and profiling of its memory included. On an H200 a stage that evaluated 1,000 short problems took 60 to
70 s with an engine and 26 to 31 s with transformers (benchmarks/gpu_chain.json, runs 1 and 2)."""
LAYER_STEP_S = 0.8e-3
"""Time that transformers takes for one layer of one decoding step, whatever the batch: launching its kernels is what takes long.
On an H200, 500 completions of at most 96 tokens with 30 layers took 1.9 to 3.8 s: 0.7 to 1.3 ms."""
MOST_ROWS = 512
ROWS_SHARE = 0.25
"""Share of the GPU's memory, less the weights, that the rows of a batch may fill with keys, values and logits."""


def rows_that_fit(shape: ModelShape, config: PipelineConfig, gpu_bytes: int) -> int:
    """Completions that transformers samples at once on a GPU, beside weights in 16 bits: keys and values of `model.max_context`
    tokens in 16 bits, and three copies of a token's logits in 32."""
    row = cache_bytes(shape, config.model.max_context) + 3 * 4 * shape.vocab
    left = gpu_bytes - 2 * shape.parameters
    return max(1, min(MOST_ROWS, int(left * ROWS_SHARE) // row))


def transformers_seconds(shape: ModelShape, rows: int, new_tokens: int) -> float:
    """Expected time for `new_tokens` tokens, all completions together, in batches of `rows`.

    Worked example: 1,000 completions of 96 tokens with 30 layers, 512 at once: 188 steps of 24 ms.
    """
    return math.ceil(new_tokens / rows) * shape.layers * LAYER_STEP_S


def engine_pays(shape: ModelShape, rows: int, new_tokens: int) -> bool:
    """Whether an engine, its start included, is expected to be done before transformers."""
    return transformers_seconds(shape, rows, new_tokens) > ENGINE_START_S
