"""What a back end changes silently is refused when it alters what is learnt, and written down when it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline_config.loading import load_config
from tasks.errors import ConfigError
from tasks.process.context import StageContext
from tasks.training.arguments import effective_config, refuse_overrides

pytest.importorskip("trl")

UNSLOTH = {
    "learning_rate": 5e-5,
    "weight_decay": 0.001,
    "optim": "adamw_8bit",
    "warmup_steps": 0.1,
    "gradient_accumulation_steps": 2,
    "per_device_train_batch_size": 4,
}
"""Defaults of unsloth 2026.10.9's argument classes (unsloth/models/rl.py), for SFT and GRPO."""
UNSLOTH_GRPO = {
    **UNSLOTH,
    "num_generations": 4,
    "loss_type": "bnpo",
    "beta": 0.001,
    "vllm_importance_sampling_correction": False,
    "scale_rewards": "none",  # for dr_grpo
    "mask_truncated_completions": True,  # for dapo
    "epsilon_high": 0.28,  # for dapo
}


@pytest.fixture
def ctx(tmp_path: Path) -> StageContext:
    return StageContext(load_config("tiny", overrides=["grpo.learning_rate=4e-5"]), {}, tmp_path)


def grpo(ctx: StageContext) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is wanted of GRPO, and what TRL's arguments hold."""
    import torch

    from tasks.grpo.arguments import grpo_arguments, wanted_arguments

    settings = ctx.config.grpo
    return wanted_arguments(settings), grpo_arguments(ctx, settings, torch.device("cpu"), [1.0]).to_dict()


def sft(ctx: StageContext) -> tuple[dict[str, Any], dict[str, Any]]:
    import torch
    from trl import SFTConfig

    from tasks.sft.entry import sft_arguments, wanted_arguments

    return wanted_arguments(ctx.config.sft), SFTConfig(**sft_arguments(ctx, torch.device("cpu"))).to_dict()


@pytest.mark.parametrize("asked", [grpo, sft])
def test_trl_changes_nothing(ctx: StageContext, asked: Any) -> None:
    wanted, used = asked(ctx)
    assert wanted.keys() <= used.keys()
    refuse_overrides(wanted, used, "trl")


def test_an_equal_word_for_off_is_no_change(ctx: StageContext) -> None:
    wanted, used = grpo(ctx)
    assert wanted["top_k"] == 0
    refuse_overrides(wanted, {**used, "top_k": -1}, "unsloth")


@pytest.mark.parametrize(
    ("asked", "name", "value"),
    [*((grpo, *item) for item in UNSLOTH_GRPO.items()), *((sft, *item) for item in UNSLOTH.items())],
)
def test_every_silent_default_of_unsloth_is_refused(ctx: StageContext, asked: Any, name: str, value: Any) -> None:
    wanted, used = asked(ctx)
    with pytest.raises(ConfigError, match=rf"unsloth changed .*{name}: asked .*, trains with {value!r}") as caught:
        refuse_overrides(wanted, {**used, name: value}, "unsloth", asked.__name__)
    assert (caught.value.cause, caught.value.where) == ("backend_overrides", asked.__name__)


@pytest.mark.parametrize("stage", ["sft", "grpo"])
def test_every_argument_with_a_default_of_unsloths_is_passed(
    ctx: StageContext, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """Unsloth leaves what is passed alone, but for what the check of the built trainer refuses."""
    import torch

    passed: dict[str, Any] = {}
    if stage == "sft":
        from tasks.sft.entry import sft_arguments

        passed = sft_arguments(ctx, torch.device("cpu"))
    else:
        from tasks.grpo import arguments

        def record(**given: Any) -> Any:
            passed.update(given)
            raise ValueError("recorded")

        monkeypatch.setattr(arguments, "GRPOConfig", record)
        with pytest.raises(ConfigError, match="recorded"):
            arguments.grpo_arguments(ctx, ctx.config.grpo, torch.device("cpu"), [1.0])
    silent = UNSLOTH if stage == "sft" else UNSLOTH_GRPO
    assert {*silent, "seed", "logging_steps", "report_to"} <= passed.keys()
    assert passed["report_to"] == [] and "max_prompt_length" not in passed  # which it would print and ignore


def test_what_alters_nothing_is_written_down(ctx: StageContext) -> None:
    _, used = grpo(ctx)
    found = effective_config(used, {**used, "torch_empty_cache_steps": 250, "output_dir": "elsewhere"})
    assert found["changed_by_the_trainer"] == {"torch_empty_cache_steps": {"asked": None, "used": 250}}
    assert found["arguments"]["torch_empty_cache_steps"] == 250 and "output_dir" not in found["arguments"]


@pytest.mark.parametrize(
    ("settings", "backend", "wanted"),
    [
        ([], "trl", {"detokenize": False}),
        ([], "unsloth", None),
        (["vllm.mode=server", "vllm.server_url=http://127.0.0.1:8000"], "trl", None),
        (["vllm.enabled=off"], "trl", None),
    ],
)
def test_only_the_colocated_engine_is_told_not_to_write_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: list[str], backend: str, wanted: dict[str, bool] | None
) -> None:
    import torch

    from tasks.grpo import arguments

    monkeypatch.setenv("GRPO_PIPELINE_BACKEND", backend)
    monkeypatch.setattr(arguments, "uses_vllm", lambda config, device: config.vllm.enabled != "off")
    ctx = StageContext(load_config("tiny", overrides=settings), {}, tmp_path)
    made = arguments.grpo_arguments(ctx, ctx.config.grpo, torch.device("cpu"), [1.0])
    assert made.generation_kwargs == wanted
