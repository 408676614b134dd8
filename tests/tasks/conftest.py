"""A tiny random model and its GGUF files, made once with the real converter and quantizer."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipeline_config.contract import ContractConfig
from tasks.contract.prompts import encode_prompt, trained_template
from tasks.export import convert
from tasks.export.checks import Problem
from tasks.models.tiny import build_tiny


@dataclass(frozen=True)
class Exported:
    folder: Path
    f16: Path
    q4: Path
    tokenizer: Any
    contract: ContractConfig
    problems: list[Problem]


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    from transformers import AutoTokenizer

    root = tmp_path_factory.mktemp("export")
    folder = root / "grpo" / "model"
    build_tiny(folder, seed=0)
    contract = ContractConfig()
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    tokenizer.chat_template = trained_template(tokenizer.chat_template, contract)
    tokenizer.save_pretrained(str(folder))
    f16, q4 = root / "model-f16.gguf", root / "model-q4_k_m.gguf"
    convert.convert(folder, f16, "f16", "tiny")
    convert.quantize(f16, q4, "q4_k_m", threads=1)
    questions = [f"What is {17 * i + 3} + {i}?" for i in range(6)]
    problems = [
        Problem(str(i), q, str(18 * i + 3), encode_prompt(tokenizer, contract, q), False, "\n1 + 2 = 3\n")
        for i, q in enumerate(questions)
    ]
    return Exported(folder, f16, q4, tokenizer, contract, problems)


@pytest.fixture
def copy_of(tmp_path: Path):
    """Copy a file into the test's own folder, to be damaged there."""

    def copy(file: Path) -> Path:
        return Path(shutil.copy(file, tmp_path / file.name))

    return copy
