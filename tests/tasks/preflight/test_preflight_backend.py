"""What unsloth would change, read from an installed file of the same shape as its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline_config.loading import load_config
from pipeline_config.training import GRPOSettings
from tasks.findings import Finding
from tasks.preflight.backend import check_backend, overrides, overriding_code

pytest.importorskip("trl")

# As in unsloth/models/rl.py: code of the generated argument class in strings, between much other code.
SOURCE = '''
import nothing_that_exists

def patch(call_args):
    """loss_type = 'x' in a docstring is no code."""
    replacements = {"beta": 0.001}
    extra_args = ""
    if "loss_type" in call_args:
        check_dr_grpo = (
            "if loss_type.lower() == 'dr_grpo':\\n"
            "    if scale_rewards == True:\\n"
            "        print('will override')\\n"
            "        scale_rewards = False\\n"
            "elif loss_type.lower() == 'dapo':\\n"
            "    if beta != 0.0:\\n"
            "        print(f'You have set it to {beta}.')\\n"
            "    mask_truncated_completions = True\\n"
            "    epsilon_high = 0.28\\n"
            "\\n"
        )
        extra_args += check_dr_grpo
    check_num_generations = (
        "if steps_per_generation is None and generation_batch_size is None:\\n"
        "    ga = gradient_accumulation_steps\\n"
        "    world_size = int(os.environ.get('WORLD_SIZE', '1'))\\n"
        "    if (ga * world_size * per_device_train_batch_size) % num_generations != 0:\\n"
        "        per_device_train_batch_size = num_generations\\n"
    )
    check_unknown = "if dataset_num_proc is None:\\n    max_steps = 7\\n"
    dangerous = "import subprocess\\nmax_steps = 3\\n"
    return extra_args + check_num_generations + check_unknown + dangerous
'''


def settings(*overrides: str) -> GRPOSettings:
    return load_config("tiny", overrides=[f"grpo.{text}" for text in overrides]).grpo


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package `unsloth` that cannot be imported, as without a GPU."""
    models = tmp_path / "unsloth" / "models"
    models.mkdir(parents=True)
    (tmp_path / "unsloth" / "__init__.py").write_text("raise NotImplementedError('Unsloth needs a GPU')")
    (models / "rl.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return models / "rl.py"


def test_trl_changes_nothing() -> None:
    assert check_backend(settings(), "trl").status == "ok"


def test_without_unsloth_it_is_not_measured() -> None:
    finding = check_backend(settings(), "unsloth")
    assert (finding.name, finding.status) == ("config.backend_overrides", "not_measured")
    assert "not installed" in finding.evidence


@pytest.mark.usefixtures("installed")
def test_dapo_is_rewritten() -> None:
    finding = check_backend(settings("loss_type=dapo"), "unsloth")
    assert finding.status == "fail"
    assert "mask_truncated_completions: asked False, trains with True" in finding.evidence
    assert "epsilon_high: asked 0.2, trains with 0.28" in finding.evidence
    assert "grpo.epsilon_high=0.28" in finding.fix and "beta" not in finding.evidence


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    "asked",
    [
        ("loss_type=dapo", "mask_truncated_completions=true", "epsilon_high=0.28"),
        ("loss_type=bnpo",),
        ("loss_type=dr_grpo",),  # `group` is not True: what the entry then sets back is not touched
    ],
)
def test_what_it_leaves_alone(asked: tuple[str, ...]) -> None:
    assert check_backend(settings(*asked), "unsloth").status == "ok"


def test_a_file_without_such_code_or_not_python(installed: Path) -> None:
    installed.write_text("x = 1")
    assert check_backend(settings(), "unsloth").status == "not_measured"
    installed.write_text("def (")
    finding: Finding = check_backend(settings(), "unsloth")
    assert finding.status == "not_measured" and "cannot be read" in finding.evidence


def test_only_whole_conditions_about_arguments_are_run() -> None:
    values = {"loss_type": "bnpo", "max_steps": 5, "per_device_train_batch_size": 6, "num_generations": 4,
              "gradient_accumulation_steps": 1}  # fmt: skip
    pieces = list(overriding_code(SOURCE, values))
    assert len(pieces) == 2  # the batch, and the one about an unknown argument; never the import
    assert overrides(pieces, values) == {"per_device_train_batch_size": (6, 4)}
