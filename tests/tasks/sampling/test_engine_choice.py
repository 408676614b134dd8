"""vLLM or transformers, and how many completions at once: worked examples for a 135M and an 8B model."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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


def test_a_batch_fills_a_quarter_of_what_the_weights_leave() -> None:
    # 512 tokens: 2 x 2 x 30 x 192 x 512 = 11.8 MB of keys and values and 0.6 MB of logits a row: 512 rows are 6.3 GB.
    assert rows_that_fit(SMALL, with_context(512), 80 * GIB) == MOST_ROWS
    # 4096 tokens: 604 MB + 1.8 MB a row; a quarter of 80 GiB less 16 GB of weights holds 28, one of 24 GiB 4.
    assert rows_that_fit(LARGE, with_context(4096), 80 * GIB) == 28
    assert rows_that_fit(LARGE, with_context(4096), 24 * GIB) == 4
    assert rows_that_fit(LARGE, with_context(4096), 1 * GIB) == 1


def test_expected_time() -> None:
    # 96,000 tokens in batches of 512: 188 steps of 30 layers of 0.8 ms.
    assert transformers_seconds(SMALL, 512, 96_000) == pytest.approx(188 * 30 * 0.0008)


def test_an_engine_starts_only_for_work_that_takes_longer_than_its_start() -> None:
    assert not engine_pays(SMALL, 512, 1000 * 96)
    assert engine_pays(SMALL, 512, 20_000 * 96)
    assert engine_pays(LARGE, 28, 200 * 1024)


@pytest.mark.parametrize(
    ("memory", "sets", "tokens", "rows", "engine"),
    [
        ("81920", [], 1000, MOST_ROWS, False),
        ("81920", [], 10**8, MOST_ROWS, True),
        ("81920", ["vllm.enabled=on"], 1000, MOST_ROWS, True),
        ("81920", ["vllm.enabled=off"], 10**8, MOST_ROWS, False),
        ("81920", ["model.max_context=8192"], 1000, MOST_ROWS, False),
        ("8", [], 1000, 15, False),  # a quarter of 8 MiB, rows of 2 x 2 x 4 x 16 x 512 + 12 x 64 bytes
        ("81920", ["evaluation.batch_size=7"], 1000, 7, False),
        ("[N/A]", [], 1000, 64, False),
        (None, [], 1000, 64, False),
    ],
)
def test_the_sampler_on_a_gpu(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    memory: str | None,
    sets: list[str],
    tokens: int,
    rows: int,
    engine: bool,
) -> None:
    """By the GPU's MiB, settings and work: how many completions at once, and whether an engine is started."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from tasks.sampling import sampler

    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2}
    transformers.LlamaConfig(vocab_size=64, **shape).save_pretrained(tmp_path)
    gpus = [{"total": memory}] if memory else []
    monkeypatch.setattr(sampler, "visible_gpus", lambda: gpus)
    monkeypatch.setattr(sampler, "device_of", lambda config: torch.device("cuda"))
    monkeypatch.setattr(sampler, "uses_vllm", lambda config, device: config.vllm.enabled != "off")
    monkeypatch.setattr(sampler, "load_model", lambda *_: torch.nn.Identity())
    started: dict[str, Any] = {"start_engine": lambda folder, config: "engine"}
    monkeypatch.setitem(sys.modules, "tasks.sampling.engine", SimpleNamespace(**started))
    config = load_config("smollm2-135m-gpu", overrides=sets)
    made = sampler.Sampler(tmp_path, None, config, tokens)  # type: ignore[arg-type]
    assert (made.rows, made.name) == (rows, "vllm" if engine else "transformers")


def test_a_batch_that_does_not_fit_is_halved_unless_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from tasks.sampling.sampler import Completion, Sampler, SamplingSettings

    tried: list[int] = []

    def complete(self: Sampler, prompts: Any, generation: Any) -> list[Completion]:
        tried.append(len(prompts))
        if len(prompts) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return [Completion(str(prompt[0]), 1, truncated=False) for prompt in prompts]

    monkeypatch.setattr(Sampler, "_complete", complete)
    tokenizer: Any = SimpleNamespace(pad_token_id=0, eos_token_id=1)
    model: Any = SimpleNamespace(device=torch.device("cpu"))
    done: list[int] = []

    def sample(*sets: str) -> list[list[str]]:
        made = Sampler.around(model, tokenizer, load_config("smollm2-135m-gpu", overrides=list(sets)))
        found = made.sample([[n] for n in range(5)], SamplingSettings(1.0, 4, n=2), lambda n, of: done.append(n))
        return [[completion.text for completion in each] for each in found]

    assert sample() == [[str(n)] * 2 for n in range(5)]
    assert tried == [10, 5, 2, 2, 2, 2, 2] and done == [2, 4, 6, 8, 10]
    with pytest.raises(torch.OutOfMemoryError):
        sample("evaluation.batch_size=4")
