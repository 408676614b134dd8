"""Fused kernels: where they are taken. What they compute is liger-kernel's own affair (and needs a GPU)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
CUDA, CPU = torch.device("cuda"), torch.device("cpu")


@pytest.fixture
def applied(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, bool]]:
    """What was asked of liger-kernel, which is taken to be there."""
    from tasks.training import kernels

    asked: list[dict[str, bool]] = []
    monkeypatch.setattr(kernels, "is_liger_kernel_available", lambda: True)
    monkeypatch.setattr(kernels, "apply_liger_kernel", lambda model, what: asked.append(what))
    return asked


def model(**changes: Any) -> Any:
    """As much of a transformers model as is looked at."""
    from transformers import PreTrainedModel

    found = PreTrainedModel.__new__(PreTrainedModel)
    torch.nn.Module.__init__(found)
    found.__dict__["config"] = SimpleNamespace(**{"model_type": "qwen3", "hidden_act": "silu", **changes})
    return found


def test_a_llama_like_model_on_a_gpu_keeps_its_head_and_loss(applied: list[dict[str, bool]]) -> None:
    from tasks.training.kernels import fuse

    assert fuse(model(), CUDA)
    assert [name for name, taken in applied[0].items() if taken] == ["rope", "rms_norm", "swiglu"]


@pytest.mark.parametrize(
    "other",
    [{"model_type": "gemma2"}, {"hidden_act": "gelu"}, {"auto_map": {"AutoModelForCausalLM": "code.Model"}}],
    ids=["another-model", "another-activation", "code-from-a-hub"],
)
def test_other_models_stay_as_they_are(applied: list[dict[str, bool]], other: dict[str, Any]) -> None:
    from tasks.training.kernels import fuse

    assert not fuse(model(**other), CUDA) and not applied


def test_a_wrapped_model_is_left_alone(applied: list[dict[str, bool]]) -> None:
    from tasks.training.kernels import fuse

    assert not fuse(SimpleNamespace(config=model().config), CUDA) and not applied


def test_nothing_on_the_cpu_or_without_the_package(
    applied: list[dict[str, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks.training import kernels

    assert not kernels.fuse(model(), CPU)
    monkeypatch.setattr(kernels, "is_liger_kernel_available", lambda: False)
    assert not kernels.fuse(model(), CUDA) and not applied
