"""The trace generator, loaded by its path (test folders are no packages)."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def traces() -> ModuleType:
    path = Path(__file__).with_name("trace_generator.py")
    spec = importlib.util.spec_from_file_location("trace_generator", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["trace_generator"] = module
    spec.loader.exec_module(module)
    return module
