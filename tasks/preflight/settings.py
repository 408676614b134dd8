"""The configuration against the installed libraries: would the trainers accept it, and what would they change?

Argument objects are built exactly as the stages build them, but for the CPU: no GPU is touched.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import urllib.request
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import torch

from pipeline_config.parallel import ParallelConfig
from pipeline_config.pipeline import PipelineConfig
from pipeline_config.training import GRPOSettings, Optimization, VLLMSettings
from tasks.errors import ConfigError
from tasks.findings import Finding
from tasks.process.context import StageContext


def check_arguments(ctx: StageContext) -> list[Finding]:
    """Every argument that we pass exists in the installed TRL, and its argument classes take the values."""
    import trl

    from tasks.grpo.arguments import grpo_arguments
    from tasks.sft.entry import sft_arguments

    version = f"trl {trl.__version__}"
    arguments = sft_arguments(ctx, torch.device("cpu"))
    findings = [check_names("config.sft_arguments", arguments, trl.SFTConfig, version)]
    # This is one process on the CPU: what needs several, or a GPU for vLLM, cannot be built here.
    config = ctx.config
    batch = config.grpo.per_device_train_batch_size * config.parallel.processes
    vllm = config.vllm.model_copy(update={"enabled": "off"})
    alone = config.model_copy(update={"vllm": vllm, "parallel": ParallelConfig()})
    without = StageContext(alone, {}, ctx.work_dir, ctx.seed)
    if findings[0].status == "ok":
        try:
            trl.SFTConfig(**sft_arguments(without, torch.device("cpu")))
        except (TypeError, ValueError) as error:
            fix = "correct the settings under sft"
            findings = [Finding("config.sft_arguments", "fail", f"{version} refuses them: {error}", fix)]
    try:
        whole = config.grpo.model_copy(update={"per_device_train_batch_size": batch})
        built = grpo_arguments(without, whole, torch.device("cpu"), [1.0])
    except ConfigError as error:
        fix = error.fix or "correct the settings under grpo, or install the pinned requirements"
        return [*findings, Finding("config.grpo_arguments", "fail", f"{version}: {error.message}", fix)]
    evidence = (
        f"{version} takes them: {built.generation_batch_size} completions per step, "
        f"{built.generation_batch_size // built.num_generations} groups of {built.num_generations}"
    )
    return [*findings, Finding("config.grpo_arguments", "ok", evidence)]


def check_names(name: str, arguments: Mapping[str, Any], kind: type, version: str) -> Finding:
    """All arguments are parameters of the installed class."""
    unknown = sorted(arguments.keys() - inspect.signature(kind).parameters.keys())
    if unknown:
        evidence = f"{kind.__name__} of {version} has no {', '.join(unknown)}"
        return Finding(name, "fail", evidence, "install the pinned requirements (requirements/)")
    return Finding(name, "ok", f"all {len(arguments)} arguments exist in {kind.__name__} of {version}")


def compared_literals(kind: type, attribute: str) -> frozenset[str]:
    """Texts that the code of a class compares `self.<attribute>` or `args.<attribute>` with; empty if it has no source.

    TRL accepts any `loss_type` and only refuses it in the first loss, after the first rollouts.
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except (OSError, TypeError, SyntaxError):
        return frozenset()
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and isinstance(node.left, ast.Attribute) and node.left.attr == attribute:
            constants = (n for right in node.comparators for n in ast.walk(right) if isinstance(n, ast.Constant))
            found.update(n.value for n in constants if isinstance(n.value, str))
    return frozenset(found)


def check_choices(settings: GRPOSettings, trainer: type, vllm: bool) -> list[Finding]:
    """The trainer's code knows the loss and the reward scaling, and the loss works with the rollout engine."""
    findings = []
    for field, value in (("loss_type", settings.loss_type), ("scale_rewards", settings.scale_rewards)):
        known = compared_literals(trainer, field)
        name = f"config.{field}"
        if not known:
            findings.append(Finding(name, "not_measured", f"{trainer.__name__} has no source to read"))
        elif value not in known:
            fix = f"grpo.{field}: one of {', '.join(sorted(known))}"
            findings.append(Finding(name, "fail", f"{trainer.__name__} does not know {value!r}", fix))
        else:
            findings.append(Finding(name, "ok", f"{trainer.__name__} knows {value!r}"))
    if settings.loss_type == "vespo" and vllm:
        evidence = "vespo with vLLM needs another importance sampling correction than the one that is used"
        findings[0] = Finding("config.loss_type", "fail", evidence, "set vllm.enabled=off or another grpo.loss_type")
    elif settings.loss_type == "luspo":
        evidence = "luspo is defined on whole sequences; the importance ratio is per token here"
        findings[0] = Finding("config.loss_type", "warn", evidence, "set grpo.loss_type=dapo, dr_grpo or grpo")
    return findings


def check_batch(settings: GRPOSettings, devices: int, rows: int) -> list[Finding]:
    """Whole groups on all devices, and enough problems for one step."""
    batch, steps, group = (
        settings.per_device_train_batch_size,
        settings.gradient_accumulation_steps,
        settings.num_generations,
    )
    completions = batch * steps * devices
    shown = (
        f"{batch} per device x {steps} accumulated x {devices} device{'s' * (devices != 1)} = {completions} completions"
    )
    if completions % group:
        fix = "make the product a multiple of grpo.num_generations"
        return [Finding("config.batch", "fail", f"{shown}, not whole groups of {group}", fix)]
    prompts = completions // group
    findings = [Finding("config.batch", "ok", f"{shown} = {prompts} groups of {group}")]
    if rows < prompts:
        # TRL's sampler leaves an incomplete batch out, so that the training would end at step 0.
        evidence = f"one step takes {prompts} problems and there are {rows}: not a single step would be made"
        findings.append(Finding("config.rows", "fail", evidence, "raise data.train_rows or lower the batch"))
    else:
        needed = prompts * -(-settings.max_steps // settings.num_iterations)
        evidence = f"{rows} problems, {needed} are sampled in {settings.max_steps} steps ({needed / rows:.1f} passes)"
        findings.append(Finding("config.rows", "ok", evidence))
    return findings


def check_sampling(settings: GRPOSettings, vllm: bool) -> Finding:
    """Truncated sampling distributions bias the importance ratio of vLLM's correction (trl#6789)."""
    off = {"top_p": (1.0,), "top_k": (0,), "min_p": (None, 0.0)}
    changed = {name: getattr(settings, name) for name, values in off.items() if getattr(settings, name) not in values}
    if not changed:
        return Finding("config.sampling", "ok", "completions come from the distribution that is trained")
    shown = ", ".join(f"{name}={value}" for name, value in changed.items())
    fix = "set " + ", ".join(
        f"grpo.{name}={'null' if values[0] is None else values[0]}" for name, values in off.items()
    )
    if vllm:
        evidence = (
            f"{shown}: vLLM's log-probabilities are those of the truncated distribution, the trainer's are not, so the "
            "importance sampling correction is biased"
        )
    else:
        evidence = f"{shown}: completions come from another distribution than the one that is trained"
    return Finding("config.sampling", "warn", evidence, fix)


def check_devices(config: PipelineConfig, gpus: int, cuda_build: bool) -> list[Finding]:
    """GPU, torch build, and the packages that the settings need."""
    wanted = config.run.device
    findings = []
    if wanted == "cuda" and not (gpus and cuda_build):
        why = "no GPU is visible" if not gpus else "torch is a build without CUDA"
        findings.append(Finding("config.device", "fail", f"run.device is cuda and {why}", "set run.device=auto or cpu"))
    elif gpus and not cuda_build and wanted == "auto":
        evidence = f"{gpus} GPU(s) are visible, but torch is a build without CUDA: the CPU computes"
        findings.append(Finding("config.device", "warn", evidence, "install the gpu requirements"))
    else:
        findings.append(Finding("config.device", "ok", f"{gpus} GPU(s) visible, run.device is {wanted}"))
    processes = config.parallel.processes
    if processes > gpus and gpus and cuda_build and wanted != "cpu":
        fix = f"set parallel.processes={gpus}, or show the run more GPUs (CUDA_VISIBLE_DEVICES)"
        evidence = f"parallel.processes is {processes} and {gpus} GPU(s) are visible"
        findings.append(Finding("config.devices", "fail", evidence, fix))
    if config.parallel.strategy != "ddp" and processes > 1 and not gpus:
        evidence = f"parallel.strategy {config.parallel.strategy} needs GPUs, and none is visible"
        findings.append(Finding("config.strategy", "fail", evidence, "set parallel.strategy=ddp"))
    elif config.parallel.strategy == "deepspeed" and processes > 1 and find_spec("deepspeed") is None:
        fix = "install deepspeed, or set parallel.strategy=ddp or fsdp"
        findings.append(Finding("config.strategy", "fail", "the package deepspeed is not installed", fix))
    for name, settings in (("sft", config.sft), ("grpo", config.grpo)):
        findings += _check_packages(name, settings, gpus)
    if config.model.load_in_4bit and not gpus:
        fix = "set model.load_in_4bit=false"
        findings.append(Finding("config.load_in_4bit", "fail", "4-bit weights need a GPU, and none is visible", fix))
    if config.vllm.enabled == "on" and not (gpus and find_spec("vllm")):
        evidence = "vllm.enabled is on, but there is no GPU or vllm is not installed"
        fix = "set vllm.enabled=auto, or install the gpu requirements"
        findings.append(Finding("config.vllm", "fail", evidence, fix))
    return findings


def check_server(vllm: VLLMSettings, timeout_s: float = 3.0) -> list[Finding]:
    """Does the server of `vllm.mode: server` answer? A warning: it may be started after SFT."""
    if vllm.mode != "server":
        return []
    name, url = "config.vllm_server", f"{vllm.server_url}".rstrip("/") + "/health"
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:  # noqa: S310 - the setting only takes http and https
            return [Finding(name, "ok", f"{vllm.server_url} answers ({answer.status})")]
    except (OSError, ValueError) as error:
        fix = "start it before GRPO begins, or correct vllm.server_url"
        return [Finding(name, "warn", f"{vllm.server_url} does not answer: {error}", fix)]


def _check_packages(name: str, settings: Optimization, gpus: int) -> list[Finding]:
    if settings.optim != "adamw_8bit" or (gpus and find_spec("bitsandbytes")):
        return []
    missing = "a GPU" if not gpus else "the package bitsandbytes"
    fix = f"set {name}.optim=adamw_torch, or install the gpu requirements"
    return [Finding(f"config.{name}_optim", "fail", f"{name}.optim adamw_8bit needs {missing}", fix)]


def check_adapter(name: str, settings: Optimization, linear: Mapping[str, int]) -> list[Finding]:
    """The layers that get a LoRA adapter exist in the model; peft says nothing about those that do not."""
    if settings.method != "lora":
        return []
    missing = [target for target in settings.lora.target_modules if target not in linear]
    check, there = f"config.{name}_lora", ", ".join(sorted(linear))
    fix = f"{name}.lora.target_modules: of {there}"
    if len(missing) == len(settings.lora.target_modules):
        return [Finding(check, "fail", f"the model has none of the layers {', '.join(missing)}", fix)]
    if missing:
        return [Finding(check, "warn", f"the model has no layers {', '.join(missing)}: they get no adapter", fix)]
    return [Finding(check, "ok", f"all {len(settings.lora.target_modules)} kinds of layers exist")]
