"""The measured peak beside the prediction, with a GPU whose numbers the test sets."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline_config.loading import load_config
from tasks.models.tiny import build_tiny
from tasks.preflight.memory import LIBRARIES

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    build_tiny(folder, seed=0)
    return folder


def test_the_error_of_a_prediction() -> None:
    from tasks.training.memory import relative_error

    assert relative_error(115, 100) == pytest.approx(0.15) and relative_error(85, 100) == pytest.approx(-0.15)
    assert relative_error(85, 0) is None


def test_on_a_gpu(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from tasks.training.memory import memory_record

    config = load_config("tiny", overrides=["run.device=auto", "vllm.gpu_memory_utilization=0.5"])
    properties = SimpleNamespace(total_memory=80 * 10**9)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 50 * 10**9)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda: 55 * 10**9)
    record = memory_record("grpo", config, model, torch.device("cuda"), longest_prompt=100, vllm=True)
    assert record["parts"]["engine"] == 40 * 10**9  # vLLM's half
    assert (record["allocated"], record["reserved"]) == (50 * 10**9, 55 * 10**9)
    assert record["relative_error"] == pytest.approx((record["predicted"] - LIBRARIES) / (50 * 10**9) - 1)


def test_on_the_cpu_nothing_is_compared(model: Path) -> None:
    import torch

    from tasks.training.memory import memory_record

    record = memory_record("sft", load_config("tiny"), model, torch.device("cpu"), longest_example=60)
    assert record["resident"] > 10**8 and "relative_error" not in record
    assert (
        record["predicted"] == sum(record["parts"][name] for name in ("certain", "activations", "logits")) + LIBRARIES
    )
