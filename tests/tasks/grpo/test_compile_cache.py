"""Compiled graphs are found again by a process whose model lies elsewhere, and only where the model is of the same kind."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import wraps
from types import SimpleNamespace

import pytest

from tasks.grpo.compile_cache import leave_path_out


@pytest.mark.parametrize("wrapped", [False, True])
def test_the_key_is_without_the_path(monkeypatch: pytest.MonkeyPatch, wrapped: bool) -> None:
    """Also where vllm has wrapped its own function already, for a trace, say."""

    @dataclass
    class ModelConfig:
        model: str
        layers: int

        def compute_hash(self) -> str:
            calls.append(self.model)
            return f"{self.model}|{self.layers}"

    calls: list[str] = []
    if wrapped:
        theirs = ModelConfig.compute_hash
        monkeypatch.setattr(ModelConfig, "compute_hash", wraps(theirs)(lambda self: theirs(self)))
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "vllm.config", SimpleNamespace(ModelConfig=ModelConfig))
    leave_path_out()
    leave_path_out()  # again, as two trainers in one process would
    one, same, other = ModelConfig("/store/a", 30), ModelConfig("/store/b", 30), ModelConfig("/store/a", 36)
    assert one.compute_hash() == same.compute_hash() != other.compute_hash()
    assert one.model == "/store/a" and calls == ["", "", ""]


def test_without_vllm_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.setitem(sys.modules, "vllm.config", None)
    leave_path_out()
