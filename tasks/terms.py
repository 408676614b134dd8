"""What the result of each stage depends on.

A term is a value that changes the result. Logging, paths, time-outs and save intervals are not terms. A stage names
the *files* of its parents that it reads, so that a change elsewhere in a parent does not rerun it.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from artifacts.manifest import Manifest
from pipeline_config.pipeline import PipelineConfig
from tasks.dataset.identity import identities_of, source_identities
from tasks.errors import ConfigError
from tasks.evaluate.plan import SAMPLER, plan_of
from tasks.grpo.arithmetic import aligned_save_steps
from tasks.process.gpu import visible_gpus
from tasks.selection.switch import least_kept
from tasks.stage import file_digest, folder_digest
from tasks.training.backend import backend_of

Parents = Mapping[str, Manifest]

NO_TERMS = {
    "logging_steps",
    "save_steps",
    "save_total_limit",
    "watchdog",
    "max_initial_kl",
    "canary_steps",
    "max_canary_gap",
}
HELD_OUT, REMEDIES = {"eval_steps", "eval_problems"}, {"remedies", "remedy_bounds"}
TABLES = ("sft", "train", "gate", "eval")
ROLLOUT = (*SAMPLER, "num_generations", "max_completion_length")


def backend_terms(config: PipelineConfig) -> dict[str, Any]:
    """How a stage computes, as far as that changes its result."""
    return {
        "device": config.run.device,
        "dtype": config.model.dtype,
        "load_in_4bit": config.model.load_in_4bit,
    }


def rollout_terms(config: PipelineConfig) -> dict[str, Any]:
    """How completions are sampled."""
    grpo = config.grpo.model_dump(mode="json")
    return {**{key: grpo[key] for key in ROLLOUT}, "vllm": config.vllm.enabled, "max_context": config.model.max_context}


def template_terms(config: PipelineConfig) -> dict[str, Any]:
    """What decides a prompt's token ids beside the tokenizer: the contract and a chat template of the user's."""
    terms: dict[str, Any] = {"contract": config.contract.model_dump(mode="json")}
    if config.model.chat_template:
        try:
            text = Path(config.model.chat_template).read_bytes()
        except OSError as error:
            raise ConfigError(
                f"cannot be read: {error.strerror}",
                where=f"model.chat_template ({config.model.chat_template})",
                fix="give the path of a Jinja file",
            ) from error
        terms["chat_template"] = hashlib.sha256(text).hexdigest()
    return terms


def model_terms(config: PipelineConfig, parents: Parents) -> dict[str, Any]:
    terms: dict[str, Any] = {
        "source": config.model.source,
        "revision": config.model.revision,
        "trust_remote_code": config.model.trust_remote_code,
    }
    folder = Path(config.model.source)
    if folder.is_dir():
        # A changed local model is noticed by its files' sizes and times; the stage then digests the contents.
        terms["files"] = sorted(
            [entry.name, entry.stat().st_size, entry.stat().st_mtime_ns]
            for entry in folder.iterdir()
            if entry.is_file()
        )
    return terms


def base_model_digest(model: Manifest) -> str:
    """What stands for the base model: its files if it was built, else their recorded digests; never the stage's log."""
    built = any(entry.path.startswith("model/") for entry in model.files)
    return folder_digest(model, "model") if built else file_digest(model, "reference.json")


def reward_terms(config: PipelineConfig) -> dict[str, Any]:
    """What a completion is paid for, with the source code of the user's own functions (not of what they import)."""
    rewards = config.grpo.rewards
    terms = rewards.model_dump(mode="json", exclude={"max_error_rate", "timeout_s"})
    return {**terms, "code": {function.path: _code_digest(function.path) for function in rewards.functions}}


def _code_digest(path: str) -> str | None:
    """sha256 of the file of `package.module:function`, found without importing anything; None when there is none."""
    folders: Iterable[str] = [str(Path.cwd()), *sys.path]
    spec = None
    for name in path.partition(":")[0].split("."):
        spec = PathFinder.find_spec(name, list(folders))
        if spec is None:
            return None
        folders = spec.submodule_search_locations or []
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        return None
    return hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()


def dataset_terms(config: PipelineConfig, parents: Parents) -> dict[str, Any]:
    return {
        # The window is in the sources that it was filled into.
        "data": config.data.model_dump(mode="json", exclude={"window"}),
        "sources": source_identities(config.data),
        "template": template_terms(config),
        "lengths": {
            "sft": config.sft.max_length,
            "completion": config.grpo.max_completion_length,
            "eval_completion": config.evaluation.max_new_tokens or config.grpo.max_completion_length,
            "context": config.model.max_context,
        },
        "model": base_model_digest(parents["model"]),
    }


def preflight_terms(config: PipelineConfig, parents: Parents) -> dict[str, Any]:
    """What the preflight checks: not learning rates, steps or seeds, which no check depends on."""
    sft, grpo = config.sft.model_dump(mode="json"), config.grpo.model_dump(mode="json")
    shared = ("method", "optim", "lr_scheduler_type", "gradient_checkpointing", "per_device_train_batch_size")
    learnt = ("loss_type", "scale_rewards", "mask_truncated_completions", "num_iterations")
    terms: dict[str, Any] = {
        "sft": {key: sft[key] for key in (*shared, "gradient_accumulation_steps", "max_length")},
        "grpo": {
            **{key: grpo[key] for key in (*shared, "gradient_accumulation_steps", *learnt)},
            **{key: grpo[key] for key in ROLLOUT if key != "temperature"},
            "reference": config.grpo.beta > 0,
            "rewards": reward_terms(config),
        },
        "export": config.export.formats,
        "reward_audit": config.preflight.reward_audit,
        "eval_completion": config.evaluation.max_new_tokens or config.grpo.max_completion_length,
        "max_context": config.model.max_context,
        "trained_by": [backend_of(config, config.sft), backend_of(config, config.grpo)],
        "backend": backend_terms(config),
        "parallel": config.parallel.model_dump(mode="json"),
        "template": template_terms(config),
        "model": base_model_digest(parents["model"]),
        "tables": {name: file_digest(parents["dataset"], f"{name}.parquet") for name in TABLES},
    }
    for name, settings in (("sft", config.sft), ("grpo", config.grpo)):
        if settings.method == "lora":
            terms[name]["lora"] = settings.lora.model_dump(mode="json")
    if config.run.device != "cpu":
        # Another GPU has other memory; what vLLM may take of it matters only there.
        terms["gpu_mib"] = sorted({gpu["total"] for gpu in visible_gpus()})
        terms["vllm"] = config.vllm.model_dump(mode="json", exclude={"enforce_eager"})
        terms["grpo"]["epsilon_high"] = config.grpo.epsilon_high
    return terms


def world_terms(config: PipelineConfig) -> dict[str, Any]:
    """Processes multiply the batch; how they share the model changes no more than rounding does."""
    return {"processes": config.parallel.processes} if config.parallel.processes > 1 else {}


def sft_terms(config: PipelineConfig, parents: Parents) -> dict[str, Any]:
    return {
        "sft": _semantic(config.sft.model_dump(mode="json")),
        "trained_by": backend_of(config, config.sft),
        "backend": backend_terms(config),
        "template": template_terms(config),
        "model": base_model_digest(parents["model"]),
        "traces": file_digest(parents["dataset"], "sft.parquet"),
        **world_terms(config),
    }


def sft_round_terms(config: PipelineConfig, parents: Parents) -> dict[str, Any]:
    """One more SFT round; its number and its steps are the stage's options."""
    sft = _semantic(config.sft.model_dump(mode="json", exclude={"max_steps", "num_train_epochs"}))
    return {
        "sft": sft,
        "trained_by": backend_of(config, config.sft),
        "backend": backend_terms(config),
        "template": template_terms(config),
        "policy": folder_digest(parents["sft"], "model"),
        "traces": file_digest(parents["dataset"], "sft.parquet"),
        **world_terms(config),
    }


def gate_terms(config: PipelineConfig, parents: Parents) -> dict[str, Any]:
    return {
        # Thresholds are applied to the measured rates in the flow, so changing one resamples nothing. Where one has stopped the sampling
        # early and another would not have, the flow asks for the whole measurement, which is another instance.
        "prompts": config.gate.prompts,
        "early_stop": config.gate.early_stop,
        "rollout": rollout_terms(config),
        "rewards": reward_terms(config),
        "backend": backend_terms(config),
        "template": template_terms(config),
        "policy": folder_digest(parents["sft"], "model"),
        "tables": {name: file_digest(parents["dataset"], f"{name}.parquet") for name in ("train", "sft", "gate")},
    }


def pass_rates_terms(config: PipelineConfig, parents: Parents) -> dict[str, Any]:
    rollout = rollout_terms(config)
    rollout.pop("num_generations")
    return {
        # The band is applied by the selection, so another one samples nothing again.
        "samples": config.pass_rates.samples,
        "max_prompts": config.pass_rates.max_prompts,
        "rollout": rollout,
        "backend": backend_terms(config),
        "template": template_terms(config),
        "policy": folder_digest(parents["sft"], "model"),
        "problems": file_digest(parents["dataset"], "train.parquet"),
    }


def selection_terms(config: PipelineConfig, parents: Parents) -> dict[str, Any]:
    return {
        "band": [config.pass_rates.low, config.pass_rates.high],
        "least_kept": least_kept(config),
        "group_size": config.grpo.num_generations,
        "rates": file_digest(parents["pass_rates"], "rates.parquet"),
        "problems": file_digest(parents["dataset"], "train.parquet"),
    }


def grpo_terms(config: PipelineConfig, parents: Parents) -> dict[str, Any]:
    grpo = _semantic(config.grpo.model_dump(mode="json"))
    terms: dict[str, Any] = {name: value for name, value in grpo.items() if name not in HELD_OUT | REMEDIES}
    if config.grpo.acts:
        # A remedy changes what is trained; without one, a stopped run has no result.
        terms["remedies"] = grpo["remedy_bounds"]
    terms.pop("checkpoint_choice")
    if config.grpo.checkpoint_choice.enabled:
        terms["checkpoint_choice"] = {
            **grpo["checkpoint_choice"],
            "save_steps": aligned_save_steps(config.grpo),
            "gate": file_digest(parents["dataset"], "gate.parquet"),
        }
    if config.grpo.eval_steps:
        # Sampling held-out problems moves the random generator, and what it finds can stop the run.
        terms["held_out"] = {
            **{name: grpo[name] for name in HELD_OUT},
            "gate": file_digest(parents["dataset"], "gate.parquet"),
        }
    return {
        "grpo": {**terms, "rewards": reward_terms(config)},
        "vllm": config.vllm.enabled,
        "max_context": config.model.max_context,
        "trained_by": backend_of(config, config.grpo),
        "backend": backend_terms(config),
        "template": template_terms(config),
        "policy": folder_digest(parents["sft"], "model"),
        # Where nothing was set aside, the selected table is the dataset's, byte for byte.
        "problems": file_digest(parents.get("selection", parents["dataset"]), "train.parquet"),
        **world_terms(config),
    }


def evaluation_sets_terms(config: PipelineConfig, parents: Parents) -> dict[str, Any]:
    settings = config.evaluation
    terms: dict[str, Any] = {
        "sets": [one.model_dump(mode="json", exclude={"samples"}) for one in settings.sets],
        "problems": settings.problems,
        "overlap": settings.overlap.model_dump(mode="json"),
        "tables": {name: file_digest(parents["dataset"], f"{name}.parquet") for name in ("eval", "sft", "train")},
    }
    if settings.sets:
        terms |= {
            "sources": identities_of(one.source for one in settings.sets),
            "holdout_share": config.data.holdout_share,
            "on_long_prompt": config.data.on_long_prompt,
            "completion": settings.max_new_tokens or config.grpo.max_completion_length,
            "context": config.model.max_context,
            "template": template_terms(config),
            "model": base_model_digest(parents["model"]),
        }
    return terms


def evaluate_terms(config: PipelineConfig, parents: Parents) -> dict[str, Any]:
    models = [manifest for name, manifest in parents.items() if name != "evaluation_sets"]
    (model,) = models
    sets = parents["evaluation_sets"]
    _check_sets(config, sets)
    return {
        "sets": {
            one.name: {
                **one.terms(config.evaluation.seed),
                "problems": file_digest(sets, f"sets/{one.name}.parquet"),
                "overlap": file_digest(sets, f"overlap/{one.name}.jsonl"),
            }
            for one in plan_of(config)
        },
        "max_context": config.model.max_context,
        "vllm": config.vllm.enabled,
        "backend": backend_terms(config),
        "template": template_terms(config),
        "model": base_model_digest(model) if model.stage == "model" else folder_digest(model, "model"),
    }


def _check_sets(config: PipelineConfig, sets: Manifest) -> None:
    """Sets taken as they are (`--start-from`, `--resume-from`) must be those of the configuration: a result under the
    wrong name would be worse than none."""
    wanted = [one.model_dump(mode="json", exclude={"samples"}) for one in config.evaluation.sets]
    if sets.terms.get("sets") != wanted or sets.terms.get("problems") != config.evaluation.problems:
        raise ConfigError(
            "the stored evaluation sets are not those of this configuration",
            where=f"evaluation.sets, artifact evaluation_sets/{sets.fingerprint[:16]}",
            fix="add --start-from evaluate: then the sets are made for this configuration",
        )


def export_terms(config: PipelineConfig, parents: Parents) -> dict[str, Any]:
    return {
        "export": config.export.model_dump(mode="json", exclude={"threads", "parallel"}),
        "template": template_terms(config),
        "model": folder_digest(parents["grpo"], "model"),
        "before": folder_digest(parents["sft"], "model"),
        "problems": file_digest(parents["dataset"], "eval.parquet"),
        "items": file_digest(parents["evaluate_grpo"], "items.jsonl"),
        "max_new_tokens": config.evaluation.max_new_tokens or config.grpo.max_completion_length,
        "max_context": config.model.max_context,
    }


def _semantic(section: dict[str, Any]) -> dict[str, Any]:
    section = {key: value for key, value in section.items() if key not in NO_TERMS}
    if section.get("method") == "full":
        section.pop("lora", None)
    return section
